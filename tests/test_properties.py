"""What public capsule codes get wrong, as properties that every routing, layer and model here has."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck

from tests.battery import SUBJECTS, B, Op, Subject
from torchcaps import layers, models
from torchcaps.layers.base import RoutedLayer
from torchcaps.ops import Routed

subjects = pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)


def made(subject: Subject, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, Tensor]:
    module = subject.make().to(dtype)
    for parameter in module.parameters():  # biases start at 0, where some mistakes do not show
        if not parameter.detach().any():
            nn.init.normal_(parameter, std=0.1)
    return module, torch.randn(B, *subject.shape, dtype=dtype)


def loss(routed: Routed) -> Tensor:
    return routed.pose.square().sum() + routed.activation.sum()


@subjects
def test_row_of_a_batch_is_that_image_alone(subject: Subject) -> None:
    """Logits shared or averaged over the batch make a prediction depend on its batch-mates."""
    module, x = made(subject, torch.float64)
    together = module(x)
    for k in range(B):
        alone = module(x[k : k + 1])
        torch.testing.assert_close(alone.pose[0], together.pose[k], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(alone.activation[0], together.activation[k], rtol=1e-12, atol=1e-12)


@subjects
@pytest.mark.parametrize("n", [0, 1])
def test_batches_of_none_and_of_one(subject: Subject, n: int) -> None:
    module, x = made(subject)
    x = x[:n].requires_grad_()
    routed = module(x)
    whole = module(torch.randn(B, *subject.shape))
    assert routed.pose.shape == (n, *whole.pose.shape[1:])
    assert routed.activation.shape == (n, *whole.activation.shape[1:])
    loss(routed).backward()
    assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in module.parameters())


@subjects
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_black_image_without_biases_is_finite(subject: Subject, dtype: torch.dtype) -> None:
    """A norm without care has no gradient at 0: 12 public codes give NaN here."""
    module = subject.make().to(dtype)
    for name, parameter in module.named_parameters():
        if "bias" in name:
            nn.init.zeros_(parameter)
    x = torch.zeros(B, *subject.shape, dtype=dtype, requires_grad=True)
    routed = module(x)
    loss(routed).backward()
    assert bool(routed.pose.isfinite().all()) and bool(routed.activation.isfinite().all())
    assert x.grad is not None and bool(x.grad.isfinite().all())
    assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in module.parameters())


@subjects
def test_derivative_is_right(subject: Subject) -> None:
    if subject.last:
        pytest.skip("its gradient is not the derivative by definition; see ops/test_dynamic.py and ops/test_em.py")
    module, x = made(subject, torch.float64)
    parameters = {name: p.detach() for name, p in module.named_parameters() if "decoder" not in name}

    def function(x: Tensor, *values: Tensor) -> tuple[Tensor, Tensor]:
        routed = torch.func.functional_call(module, dict(zip(parameters, values, strict=True)), (x,))
        return routed.pose, routed.activation

    inputs = [value.requires_grad_() for value in (x[:1], *parameters.values())]
    assert gradcheck(function, inputs, fast_mode=sum(v.numel() for v in inputs) > 300)


@subjects
def test_non_contiguous_input(subject: Subject) -> None:
    module, x = made(subject, torch.float64)
    strided = x.transpose(0, -1).contiguous().transpose(0, -1)
    assert not strided.is_contiguous()
    torch.testing.assert_close(module(strided).pose, module(x).pose, rtol=1e-12, atol=1e-12)


@subjects
def test_default_device_does_not_matter(subject: Subject) -> None:
    """Constants are made where the input is, not where ``torch.set_default_device`` says."""
    module, x = made(subject)
    inputs, found = (x.requires_grad_(), *module.parameters()), []
    for device in ("cpu", "meta"):
        with torch.device(device):
            routed = module(x)
            gradients = torch.autograd.grad(loss(routed), inputs, allow_unused=True)
            found.append((*routed[:2], *(gradient for gradient in gradients if gradient is not None)))
    torch.testing.assert_close(*found, rtol=0, atol=0)


@subjects
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_dtype_is_kept(subject: Subject, dtype: torch.dtype) -> None:
    module, x = made(subject, dtype)
    routed = module(x)
    assert routed.pose.dtype == routed.activation.dtype == dtype


@subjects
def test_bfloat16_autocast_is_near_float32(subject: Subject) -> None:
    module, x = made(subject)
    x.requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        narrow = module(x)
    wide = module(x)
    assert (narrow.activation.float() - wide.activation).abs().max() < 0.05
    assert (narrow.pose.float() - wide.pose).abs().max() < 0.05
    loss(narrow).backward()
    assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in module.parameters())


@subjects
def test_activation_is_the_length_and_below_one(subject: Subject) -> None:
    """Squash along another axis than the pose, or a softmax of the lengths, breaks this."""
    if not subject.lengths:
        pytest.skip("its activations are not lengths; see ops/test_em.py")
    module, x = made(subject, torch.float64)
    routed = module(10 * x)
    torch.testing.assert_close(routed.activation, routed.pose.norm(dim=-1))
    assert bool((routed.activation < 1).all())
    assert (routed.activation.flatten(1).sum(dim=1) - 1).abs().max() > 1e-3  # no softmax over the capsules


@subjects
def test_couplings_sum_to_one_over_the_upper_capsules(subject: Subject) -> None:
    module, x = made(subject, torch.float64)
    if subject.name in ("PrimaryCaps", "MatrixPrimaryCaps"):
        pytest.skip("nothing is routed")
    if not subject.shares:
        pytest.skip("upper capsules compete over places; see ops/test_em.py")
    if isinstance(module, Op):
        module.options["return_coupling"] = True
        routed = module(x)
    else:
        inner = getattr(module, "model", None)
        routed = inner(x, return_coupling=True).capsules[-1] if inner is not None else module(x, return_coupling=True)
    total = routed.coupling.sum(dim=-1)
    if "all-options" in subject.name or "leaky" in subject.name:  # what is left routes to nothing
        assert bool((total < 1).all()) and bool((total > 0).all())
    else:
        torch.testing.assert_close(total, torch.ones_like(total))
    lower = routed.coupling.sum(dim=-2)  # over the lower capsules nothing is normalised
    assert (lower - 1).abs().max() > 0.1


@subjects
def test_permuting_capsules(subject: Subject) -> None:
    """The order of lower capsules does not matter; that of upper ones is that of their parameters."""
    if not subject.permutes:
        pytest.skip("its capsules have places, or no parameters of their own")
    module, x = made(subject, torch.float64)
    tensors = dict(module.tensors.items())  # type: ignore[operator, union-attr]
    lower, upper = torch.randperm(x.shape[1]), torch.randperm(tensors["weight"].shape[1])
    plain, both = module(x), tensors["weight"].shape[:2]
    with torch.no_grad():
        for value in tensors.values():
            value.copy_(value[lower][:, upper] if value.shape[:2] == both else value[upper])
    permuted = module(x[:, lower])
    torch.testing.assert_close(permuted.pose, plain.pose[:, upper], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(permuted.activation, plain.activation[:, upper], rtol=1e-12, atol=1e-12)


@subjects
def test_all_parameters_exist_before_the_first_call_and_get_a_gradient(subject: Subject) -> None:
    """An optimizer made before the first forward must see everything."""
    module, x = made(subject)
    before = [name for name, _ in module.named_parameters()]
    loss(module(x.requires_grad_())).backward()
    assert [name for name, _ in module.named_parameters()] == before
    for name, parameter in module.named_parameters():
        if "decoder" not in name:
            assert parameter.grad is not None and bool(parameter.grad.any()), name


def test_nothing_that_makes_capsules_is_left_out() -> None:
    parts = [part for subject in SUBJECTS for part in subject.make().modules()]
    kinds = {type(part) for part in parts}
    routed = {(type(part), part.routing.name) for part in parts if isinstance(part, RoutedLayer)}
    assert routed == set(product((layers.DenseCaps, layers.ConvCaps, layers.ClassCaps), layers.ROUTINGS))
    given = [getattr(module, name) for module in (layers, models) for name in module.__all__]
    modules = {kind for kind in given if isinstance(kind, type) and issubclass(kind, nn.Module)}
    #: They make images, or none at all.
    others = {layers.Conv2d, models.PlainAutoencoder, models.TemplateAutoencoder, models.TransformingAutoencoder}
    assert modules - kinds - others == {models.Transforming}  # what the auto-encoders inherit from
