"""Kinds of wrong arguments that fuzzing found (``tools/fuzz_calls.py``): each is refused by name."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from torchcaps import explain, layers, models, ops
from torchcaps.checks import as_number, check_at_least, check_choice
from torchcaps.data import Images, Limits, transformed_pairs
from torchcaps.hub import HubModel
from torchcaps.optim import Muon
from torchcaps.playground import fit_drawing, transform_image

U, WEIGHT = torch.rand(2, 3, 4), torch.rand(3, 5, 4, 6)
VOTES, ACTIVATION, BETA = torch.rand(2, 3, 5, 4), torch.rand(2, 3), torch.zeros(5)
AWAY = torch.rand(5, 6, device="meta")
COMPLEX = torch.zeros(5, 6, dtype=torch.complex64)
POSE = ops.Capsules(torch.rand(2, 3, 4), torch.rand(2, 3))
STATE = layers.InvertedAttentionRouting(pose="vector")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        # Another device: torch would give unwritten memory, or name nothing.
        (lambda: ops.dynamic_routing(U, WEIGHT, bias=AWAY), "bias must be on cpu as u is, got a tensor on meta"),
        (lambda: ops.fixed_routing(U, WEIGHT, bias=AWAY), "bias must be on cpu as u is, got a tensor on meta"),
        (lambda: ops.dense_votes(U, WEIGHT.to("meta")), "weight must be on cpu as u is, got a tensor on meta"),
        (
            lambda: ops.inverted_attention_routing(U, WEIGHT, score_bias=torch.tensor(0.5, device="meta")),
            "score_bias must be on cpu as pose is, got a tensor on meta",
        ),
        (
            lambda: ops.em_routing_from_votes(VOTES, ACTIVATION, BETA, BETA.to("meta")),
            "beta_a must be on cpu as votes is, got a tensor on meta",
        ),
        (lambda: ops.mask_capsules(POSE, torch.zeros(2, 3, device="meta")), "target must be on cpu as"),
        # Complex numbers: torch would drop their imaginary parts.
        (lambda: ops.dynamic_routing(U, WEIGHT, bias=COMPLEX), "bias must be real, got torch.complex64"),
        (lambda: ops.margin_loss(COMPLEX, torch.zeros(5, dtype=torch.int64)), "lengths must be real"),
        # Integers on both sides.
        (lambda: ops.dense_votes(U.int(), WEIGHT.int()), "u and weight must be floating point, got torch.int32"),
        (lambda: ops.affine_parts(torch.eye(3).long()), "matrix must be floating point, got torch.int64"),
        (lambda: ops.pose_loss(torch.ones(1, 2, 2).long(), torch.ones(1, 2, 2)), "found must be floating point"),
        # What is no truth value, number, device or dtype.
        (lambda: ops.safe_norm(U, keepdim=torch.ones(2)), "keepdim must be True or False"),  # type: ignore[arg-type]
        (lambda: ops.coordinate_offset(2, torch.tensor(0.5), 4), "width must be an integer"),  # type: ignore[arg-type]
        (lambda: ops.coordinate_offset(2, 2, 4, device="nowhere"), "device must be a torch.device or the name of one"),
        (lambda: ops.coordinate_offset(2, 2, 4, dtype=torch.int64), "dtype must be one of floating point"),
        # Numbers out of range that gave NaN, or shares that are none.
        (
            lambda: ops.variational_bayes_routing_from_votes(VOTES, ACTIVATION - 2, BETA, BETA),
            "activation must hold probabilities 0 … 1",
        ),
        (lambda: ops.self_routing(U, ACTIVATION - 2, None, route_weight=torch.rand(3, 5, 4)), "activation must be at"),
        # Capsules within an argument are named by it.
        (lambda: ops.mask_capsules(torch.rand(3)), r"capsules must be \[B, J, D\]"),
        (lambda: ops.mask_capsules(torch.rand(2, 3, 0)), r"capsules must be \[B, J, D\] with one class or more"),
        (lambda: ops.mask_capsules(POSE._replace(activation=None)), "capsules.activation must be a torch.Tensor"),  # type: ignore[arg-type]
        (
            lambda: ops.affine_matrix(
                ops.AffineParts(torch.rand(3), torch.rand(3, 2), torch.rand(2), torch.rand(3, 2))
            ),
            r"parts.shear must be \[3\] beside that angle, got shape \[2\]",
        ),
        (
            lambda: ops.affine_matrix(ops.AffineParts(None, None, None, None)),  # type: ignore[arg-type]
            "parts.angle must be a torch.Tensor",
        ),
        (lambda: ops.which_backend("dynamic", "auto", U, 3), "each of tensors must be a torch.Tensor"),  # type: ignore[arg-type]
        (lambda: ops.conv2d(U, WEIGHT, stride=1.5), "stride must be an integer"),  # type: ignore[arg-type]
        # Layers.
        (lambda: layers.DenseCaps(3, None, 4, 4), "n_out must be an integer of at least 1, got None"),  # type: ignore[arg-type]
        (lambda: layers.DenseCaps(10**30, 3, 4, 4), "n_in must be below 2147483648, got 1000000"),
        (lambda: layers.DenseCaps(3, 5, 4, 4, routing=STATE)(POSE, state=3), "state must be the Capsules"),  # type: ignore[arg-type]
        (
            lambda: layers.DenseCaps(3, 5, 4, 4, routing=STATE)(POSE, state=POSE),
            r"state must have poses \[B=2, J=5, d_out=4\], got shape \[2, 3, 4\]",
        ),
        (lambda: layers.Decoder(3, 4, (1, 5, 5), hidden=(8, 1.5)), "each of hidden must be an integer"),  # type: ignore[arg-type]
        (
            lambda: layers.Decoder(3, 4, (1, 5, 5))(POSE.pose.double()),
            "capsules must be torch.float32 as the parameters are, got torch.float64",
        ),
        (lambda: layers.route_concurrently([abs], POSE, 1), "layers must list capsule layers that route"),  # type: ignore[list-item]
        # Networks.
        (lambda: models.Scores(models.CapsNet), "model must be a torch.nn.Module"),  # type: ignore[arg-type]
        (
            lambda: models.BackboneCapsNet("plain", (3, 64, 64), 2, d_class=0),
            "d_class must be an integer of at least 1",
        ),
        (lambda: models.BackboneCapsNet("plain", (3, 64, 64), 2, mean=0.5), "mean must have a number for each"),  # type: ignore[arg-type]
        (lambda: models.build("norb_cnn", torch.tensor(3), 2), r"image_shape must be \(channels, height, width\)"),  # type: ignore[arg-type]
        (lambda: models.baselines.BaselineCNN((1, 8, 8), 2, (2,), ()), "hidden must list a layer at least"),
        (
            lambda: models.plain_autoencoder((1, 8, 8))(torch.rand(1, 1, 8, 8).double()),
            "x must be torch.float32 as the",
        ),
        (lambda: HubModel("capsnet_small", (1, 28, 28), [["a"]]), "classes must be a list of different names"),  # type: ignore[list-item]
        (lambda: HubModel("capsnet_small", (1, 28, 28), options=3), "options must be a dict"),  # type: ignore[arg-type]
        # Explanations and drawings.
        (lambda: explain.em_class_caps(3), "model must be nn.Module, got 3"),  # type: ignore[arg-type]
        (lambda: explain.draw_image_rows([("a", torch.ones(2, 1, 4, 4).byte())]), "rows, a, must hold floats 0 … 1"),
        (
            lambda: explain.draw_misclassified(torch.rand(1, 1, 4, 4), torch.tensor([0]), torch.tensor([7]), ["a"]),
            "predicted must hold classes 0 … 0, got 7 … 7",
        ),
        (
            lambda: explain.unwrap_rotation(torch.rand(2, 6), torch.rand(3, 6)),
            "true must be as predicted or of one image",
        ),
        (lambda: explain.red_and_green(torch.rand(3, 1, 4, 4)), r"parts must be \[..., 2, C, H, W\]"),
        (
            lambda: explain.principal_components(torch.full((3, 2), math.nan)),
            "points and weight must hold finite numbers",
        ),
        # Data, drawings of one's own, optimizers.
        (lambda: Images(torch.rand(1, 1, 4, 4), torch.tensor([0]), 3), "factors must be tensors by name, got 3"),  # type: ignore[arg-type]
        (
            lambda: transformed_pairs(torch.rand(1, 1, 4, 4), Limits(scale=(1,)), torch.Generator()),  # type: ignore[arg-type]
            "limits must be Limits",
        ),
        (lambda: fit_drawing(torch.full((9, 9), math.nan)), "ink must be numbers 0 … 1"),
        (lambda: transform_image(torch.rand(1, 4, 4), rotate=math.inf), "rotate must be finite, got inf"),
        (lambda: Muon([{"params": []}, 3]), "params must be groups of parameters"),  # type: ignore[list-item]
    ],
)
def test_it_is_refused_by_name(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("value", [Fraction(1, 2), np.float32(0.5), np.array(0.5), torch.tensor(0.5)])
def test_numbers_of_any_kind_count_as_pythons(value: Any) -> None:
    found = as_number("number", value)
    assert (found, type(found)) == (0.5, float)
    lengths, target = torch.rand(2, 3), torch.tensor([0, 1])
    wanted = ops.margin_loss(lengths, target, positive=0.5)
    assert torch.equal(ops.margin_loss(lengths, target, positive=value), wanted)
    assert torch.equal(ops.spread_loss(lengths, target, value), ops.spread_loss(lengths, target, 0.5))
    assert ops.spread_margin(value) == ops.spread_margin(0.5)


@pytest.mark.parametrize("value", [np.ones(3), torch.ones(3), np.array(["a", "b"]), [1], None])
def test_what_equals_nothing_is_no_choice(value: Any) -> None:
    with pytest.raises(ValueError, match="letter must be one of a, b; got"):
        check_choice("letter", value, ("a", "b"))
    check_choice("letter", np.str_("a"), ("a", "b"))


def test_no_size_is_beyond_all_memory() -> None:
    check_at_least("seed", 2**62, 0, below=2**63)
    with pytest.raises(ValueError, match="size must be below 2147483648, got 2147483648"):
        check_at_least("size", 2**31, 1)


@pytest.mark.parametrize(
    "dtypes", [(torch.float64, torch.float32), (torch.float16, torch.float32), (torch.int64, torch.float32)]
)
def test_votes_have_the_common_dtype(dtypes: tuple[torch.dtype, torch.dtype]) -> None:
    u, weight = U.to(dtypes[0]), WEIGHT.to(dtypes[1])
    common = torch.promote_types(*dtypes)
    assert torch.equal(ops.dense_votes(u, weight), ops.dense_votes(u.to(common), weight.to(common)))
    pose, matrices = torch.rand(2, 3, 4, 4).to(dtypes[0]), torch.rand(3, 5, 4, 4).to(dtypes[1])
    assert torch.equal(ops.matrix_votes(pose, matrices), ops.matrix_votes(pose.to(common), matrices.to(common)))


def test_single_numbers_may_be_on_the_cpu() -> None:
    """As torch has it: they are copied to where the others are."""
    routed = ops.inverted_attention_routing(
        U.to("meta"), WEIGHT.to("meta"), score_weight=torch.rand(6).to("meta"), score_bias=torch.tensor(0.5)
    )
    assert routed.activation.device.type == "meta"


def test_autocast_chooses_the_dtype_of_a_decoder() -> None:
    decoder = layers.Decoder(3, 4, (1, 5, 5))
    with torch.autocast("cpu", torch.bfloat16):
        assert decoder(POSE.pose.bfloat16()).shape == (2, 1, 5, 5)


def test_what_a_module_is_made_of_may_be_no_parameter() -> None:
    """As in quantized or sharded layers, which know by themselves what they take."""
    decoder = layers.Decoder(3, 4, (1, 5, 5))
    decoder.double()
    for layer in decoder.layers:
        assert isinstance(layer, nn.Linear)
        weight = layer.weight
        del layer.weight
        layer.weight = weight.detach().float()  # type: ignore[assignment]
        layer.bias = None  # type: ignore[assignment]
    assert decoder(POSE.pose).shape == (2, 1, 5, 5)
