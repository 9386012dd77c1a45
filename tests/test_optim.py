"""Muon: held to torch's own, to singular values, and to the definition of its steps."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

from torchcaps.layers import ConvCaps, DenseCaps, MatrixPrimaryCaps, PrimaryCaps
from torchcaps.models import capsnet, matched_cnn, matrix_capsnet_small
from torchcaps.models.windows import Local
from torchcaps.optim import Layout, Muon, groups, is_weight, layouts, orthogonalized, orthogonalized_each
from torchcaps.training import Experiment, Optim


def quintic(matrix: Tensor) -> Tensor:
    """As Jordan et al. (2024) print it, in float64."""
    x = matrix.double()
    x = x / x.norm()
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x


@pytest.mark.parametrize("shape", [(40, 12), (12, 40), (9, 9), (7, 1), (1, 7)])
def test_orthogonalized_is_the_quintic_of_the_paper(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * torch.logspace(0, -2, shape[1])
    found = orthogonalized(matrix)
    assert found.shape == shape
    torch.testing.assert_close(found.double(), quintic(matrix), rtol=1e-4, atol=1e-4)


def test_singular_values_come_near_one_and_directions_stay() -> None:
    generator = torch.Generator().manual_seed(0)
    u, _, v = torch.linalg.svd(torch.randn(60, 20, generator=generator), full_matrices=False)
    found = orthogonalized(u @ torch.diag(torch.logspace(0, -1.5, 20)) @ v)
    inner = u.T @ found @ v.T
    assert inner.diag().min() > 0.6 and inner.diag().max() < 1.25
    torch.testing.assert_close(inner, inner.diag().diag(), rtol=0, atol=1e-4)


def test_nothing_and_minute_directions_stay_finite() -> None:
    assert orthogonalized(torch.zeros(5, 3)).eq(0).all()
    one = torch.ones(30, 4)  # of rank 1: rounding must not become directions
    found = torch.linalg.svdvals(orthogonalized(one))
    assert 0.6 < found[0] < 1.25 and found[1:].max() < 0.1


def test_half_precision_and_autocast_round_no_more_than_the_step() -> None:
    generator = torch.Generator().manual_seed(0)
    one = torch.ones(40, 12) + 0.01 * torch.randn(40, 12, generator=generator)  # of rank 1, nearly
    for matrix in (torch.ones(40, 12), one, one.T, torch.randn(40, 12, generator=generator)):
        for dtype in (torch.bfloat16, torch.float16):
            half = matrix.to(dtype)
            found, wanted = orthogonalized(half), orthogonalized(half.float())
            assert found.dtype == dtype and torch.equal(found, wanted.to(dtype))
        with torch.autocast("cpu", torch.bfloat16):
            found = orthogonalized(matrix)
        assert torch.equal(found, orthogonalized(matrix))


def test_nothing_is_left_of_what_has_no_gradient_any_more() -> None:
    """A dead unit's momentum falls until it is a subnormal number, and stays one: each step would be slow."""
    layer = nn.Conv2d(2, 4, 3)
    optimizer = Muon(groups(layer), lr=1e-3)
    for step in range(1500):
        layer.weight.grad, layer.bias.grad = torch.ones_like(layer.weight), torch.ones_like(layer.bias)  # type: ignore[union-attr]
        if step:
            layer.weight.grad[:2] = 0
            layer.bias.grad.zero_()
        optimizer.step()
    momentum, mean = optimizer.state[layer.weight]["momentum"], optimizer.state[layer.bias]["mean"]
    assert not momentum[:2].any() and momentum[2:].all() and not mean.any()


def test_what_is_minute_beside_the_rest_has_no_part_in_the_step() -> None:
    """What is left of a dead unit makes products of subnormal numbers."""
    matrix = torch.randn(20, 6, generator=torch.Generator().manual_seed(0))
    matrix[:, :3] *= torch.tensor([1e-12, 1e-20, 1e-28])
    step = orthogonalized(matrix)
    assert not step[:, :3].any()
    torch.testing.assert_close(step[:, 3:], orthogonalized(matrix[:, 3:]), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("scale", [1e-25, 1e-15, 1e15, 1e25])
def test_the_scale_of_the_gradient_does_not_matter(scale: float) -> None:
    matrix = torch.randn(20, 6, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(orthogonalized(matrix * scale), orthogonalized(matrix), rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch has a Muon since 2.9")
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_steps_are_those_of_torch(weight_decay: float) -> None:
    """Of torch's own Muon, which takes matrices alone and rounds to bfloat16 in between; of Adam for the bias."""
    torch.manual_seed(0)
    layer = nn.Conv2d(3, 8, 3)
    weight, bias = (nn.Parameter(p.detach().clone()) for p in (layer.weight.flatten(1), layer.bias))
    before = weight.detach().clone()
    ours = Muon(groups(layer, weight_decay), lr=0.02, eps=1e-3, betas=(0.8, 0.9))
    muon = torch.optim.Muon([weight], lr=0.02, weight_decay=0, adjust_lr_fn="match_rms_adamw")
    adam = torch.optim.Adam([bias], lr=0.02, eps=1e-3, betas=(0.8, 0.9))
    for _ in range(4):
        gradients = torch.randn_like(layer.weight), torch.randn_like(layer.bias)
        layer.weight.grad, layer.bias.grad = (gradient.clone() for gradient in gradients)
        weight.grad, bias.grad = gradients[0].flatten(1) + weight_decay * weight.detach(), gradients[1]
        for optimizer in (ours, muon, adam):
            optimizer.step()
        assert torch.equal(layer.weight.grad, gradients[0])  # as a step leaves it
        torch.testing.assert_close(layer.bias, bias)
        moved = (weight - before).norm()
        assert (layer.weight.flatten(1) - weight).norm() < 0.02 * moved


def test_a_weight_is_the_matrix_that_its_layer_multiplies_by() -> None:
    """Inputs times the matrix, without routing and squash, is what the layer computes before them."""
    torch.manual_seed(0)
    x = torch.randn(2, 3, 5, 5)
    patches = nn.functional.unfold(x, 3).transpose(1, 2)  # [B, places, C·K·K]
    for layer in (nn.Conv2d(3, 8, 3, bias=False), MatrixPrimaryCaps(3, 2, kernel_size=3)):
        ((weight, layout),) = layouts(layer).items()
        wanted = nn.functional.conv2d(x, weight).flatten(2).transpose(1, 2)
        torch.testing.assert_close(patches @ as_matrix(weight, layout).T, wanted)
    layer = PrimaryCaps(3, 2, 4, kernel_size=3)
    ((weight, layout),) = layouts(layer).items()
    by_place = patches.unflatten(2, (3, 3, 3)).permute(0, 1, 3, 4, 2).flatten(2)  # [B, places, K·K·C]
    wanted = nn.functional.conv2d(x, weight.permute(3, 2, 0, 1)).flatten(2).transpose(1, 2)
    torch.testing.assert_close(by_place @ as_matrix(weight, layout), wanted)
    dense = DenseCaps(5, 3, 4, 6)
    ((weight, layout),) = layouts(dense).items()
    poses = torch.randn(2, 5, 4)
    summed = torch.einsum("bia,ijac->bjc", poses, weight).flatten(1)
    torch.testing.assert_close(poses.flatten(1) @ as_matrix(weight, layout), summed)


def as_matrix(weight: Tensor, layout: Layout) -> Tensor:
    view = layout.view(weight)
    return view.reshape(math.prod(view.shape[: layout.rows]), -1)


@pytest.mark.parametrize(
    "layer",
    [DenseCaps(5, 3, 4, 6), ConvCaps(2, 3, 16, 16, 3, routing="em"), PrimaryCaps(3, 2, 4, kernel_size=3)],
    ids=["dense", "matrices", "primary"],
)
def test_a_step_is_orthogonal_in_place(layer: nn.Module) -> None:
    torch.manual_seed(0)
    layer = copy.deepcopy(layer)
    ((weight, layout),) = layouts(layer).items()
    before, address = weight.detach().clone(), weight.data_ptr()
    weight.grad = torch.randn_like(weight)
    matrix = as_matrix(weight.grad, layout)
    Muon(groups(layer), lr=0.1).step()
    step = as_matrix(before - weight.detach(), layout)
    assert weight.data_ptr() == address
    wanted = quintic(0.0975 * matrix) * 0.1 * 0.2 * math.sqrt(max(matrix.shape))
    torch.testing.assert_close(step.double(), wanted, rtol=1e-3, atol=1e-4)


def test_which_weights_it_steps() -> None:
    caps = capsnet(channels=4, n_types=2, decoder=[8])
    assert {name for name, p in caps.named_parameters() if p in layouts(caps)} == {
        "conv.weight",
        "primary.weight",
        "classes.weight",
    }
    em = matrix_capsnet_small()
    assert {name for name, p in em.named_parameters() if p in layouts(em)} == {
        name for name, _ in em.named_parameters() if name.endswith("weight")
    }
    cnn = matched_cnn()
    stepped = {name for name, p in cnn.named_parameters() if p in layouts(cnn)}
    assert stepped and all(dict(cnn.named_parameters())[name].dim() == 4 for name in stepped)
    caps.conv.weight.requires_grad = False  # it may be trained later
    assert caps.conv.weight in layouts(caps)
    assert not layouts(Local(2, 3, 4))


def test_weights_that_were_frozen_when_the_groups_were_made_are_stepped_by_muon_too() -> None:
    torch.manual_seed(0)
    layer, gradient = nn.Conv2d(3, 4, 3), torch.randn(4, 3, 3, 3)
    stepped = []
    for frozen in (False, True):
        model = nn.Sequential(copy.deepcopy(layer), DenseCaps(5, 3, 4, 6))
        weight = model[0].weight.requires_grad_(not frozen)
        optimizer = Muon(groups(model), lr=0.1)
        weight.requires_grad_(True).grad = gradient.clone()
        optimizer.step()
        stepped.append(weight.detach())
    torch.testing.assert_close(stepped[1], stepped[0], rtol=0, atol=0)


def test_recurrent_parametrised_and_pruned_weights_decay_too() -> None:
    turned = nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))
    pruned = prune.l1_unstructured(nn.Linear(3, 2), "weight", 2)
    model = nn.ModuleDict({"lstm": nn.LSTM(3, 2), "turned": turned, "pruned": pruned, "caps": DenseCaps(2, 2, 3, 3)})
    decayed = {name for name, _ in model.named_parameters() if is_weight(name)}
    assert decayed == {
        "lstm.weight_ih_l0",
        "lstm.weight_hh_l0",
        "turned.parametrizations.weight.original0",
        "turned.parametrizations.weight.original1",
        "pruned.weight_orig",
        "caps.weight",
    }
    parts = groups(model, 0.1)
    assert sum(len(part["params"]) for part in parts if part["weight_decay"]) == len(decayed)


def filled(model: nn.Module, seed: int = 0) -> None:
    generator = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        p.grad = torch.randn(p.shape, generator=generator)


def same(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


def test_its_state_is_saved_and_loaded(tmp_path: Path) -> None:
    torch.manual_seed(0)
    layer = DenseCaps(5, 3, 4, 6)
    other = copy.deepcopy(layer)
    first = Muon(groups(layer, 0.1), lr=0.1)
    filled(layer)
    first.step()
    torch.save(first.state_dict(), tmp_path / "state.pt")
    other.load_state_dict(layer.state_dict())
    second = Muon(groups(other), lr=0.3)
    second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    both, optimizer = copy.deepcopy((layer, first))
    for model, each in ((layer, first), (other, second), (both, optimizer)):
        filled(model, 1)
        each.step()
    assert same(layer, other) and same(layer, both)


def test_the_state_of_another_optimizer_is_refused() -> None:
    layer = DenseCaps(5, 3, 4, 6)
    adam = torch.optim.Adam(layer.parameters())
    with pytest.raises(ValueError, match="different number of parameter groups"):
        Muon(groups(layer)).load_state_dict(adam.state_dict())


def test_a_scaler_of_gradients_skips_the_whole_step_where_one_overflows() -> None:
    layer = DenseCaps(5, 3, 4, 6)
    optimizer = Muon(groups(layer), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    before = copy.deepcopy(layer)
    x = torch.rand(2, 5, 4)
    for scale in (math.inf, 1.0):
        optimizer.zero_grad()
        scaler.scale(layer(x * scale).pose.sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        assert same(layer, before) == (scale == math.inf)
    assert all(p.isfinite().all() for p in layer.parameters())


def test_hooks_run_once_and_closures_are_called() -> None:
    layer = DenseCaps(5, 3, 4, 6)
    torch.optim.Adam(layer.parameters())  # with whose step nothing is shared
    optimizer, seen = Muon(groups(layer)), list[str]()
    optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
    optimizer.register_step_post_hook(lambda *_: seen.append("after"))

    def closure() -> str:
        assert torch.is_grad_enabled()
        filled(layer)
        return "loss"

    assert optimizer.step(closure) == "loss"
    assert seen == ["before", "after"]


def test_what_has_no_gradient_stays() -> None:
    layer = DenseCaps(5, 3, 4, 6)
    before = copy.deepcopy(layer)
    Muon(groups(layer)).step()
    assert same(layer, before)


def test_an_unknown_optimizer_is_refused() -> None:
    with pytest.raises(ValueError, match=r"optim.name must be one of adam, muon; got 'sgd'"):
        Experiment("x", optim=Optim(name="sgd"))  # type: ignore[arg-type]


def test_a_model_without_such_layers_is_refused() -> None:
    with pytest.raises(
        ValueError, match="model must have convolutions or capsules that are trained, for Muon to train"
    ):
        groups(nn.Linear(3, 4))
    with pytest.raises(ValueError, match=r"params must have groups with rows, as torchcaps.optim.groups\(model\) has"):
        Muon(nn.Linear(3, 4).parameters())
    assert not layouts(nn.Conv2d(4, 4, 3, groups=2))
    with pytest.raises(ValueError, match="convolutions or capsules that are trained"):
        groups(DenseCaps(5, 3, 4, 6).requires_grad_(False))
    with pytest.raises(ValueError, match="model must be a torch.nn.Module, got a list"):
        groups([nn.Linear(3, 4)])  # type: ignore[arg-type]


def test_weights_of_another_shape_are_stepped_by_adam() -> None:
    """As a routing of one's own may have."""
    layer = DenseCaps(5, 3, 4, 6)
    layer.weight = nn.Parameter(layer.weight.detach().flatten(1))
    assert not layouts(layer)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": 0.0}, "lr must be positive, got 0.0"),
        ({"eps": 0.0}, "eps must be positive, got 0.0"),
        ({"weight_decay": -1.0}, "weight_decay must be a number of at least 0, got -1.0"),
        ({"betas": (0.9, 1.0)}, "betas must be two numbers from 0 up to, but not, 1; got "),
        ({"betas": (0.9,)}, "betas must be two numbers, got "),
        ({"betas": 0.9}, "betas must be two numbers, got 0.9"),
    ],
)
def test_numbers_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Muon(groups(DenseCaps(5, 3, 4, 6)), **options)


@pytest.mark.parametrize("weight_decay", [-1.0, math.nan])
def test_a_groups_weight_decay_out_of_range_is_refused(weight_decay: float) -> None:
    layer, message = DenseCaps(5, 3, 4, 6), "weight_decay must be a number of at least 0, got "
    with pytest.raises(ValueError, match=message):
        groups(layer, weight_decay)
    with pytest.raises(ValueError, match=message):
        Muon([{"params": list(layer.parameters()), "rows": 2, "weight_decay": weight_decay}])


def test_weight_decay_is_the_groups_own_or_the_optimizers() -> None:
    torch.manual_seed(0)
    new = capsnet(channels=4, n_types=2, decoder=[8])
    new.conv.bias.data.fill_(0.5)
    stepped = []
    for own, given in ((None, 0.0), (None, 0.1), (0.1, 0.0), (0.1, 0.3)):
        model = copy.deepcopy(new)
        filled(model)
        Muon(groups(model, own), weight_decay=given).step()
        stepped.append(model)
    without, *alike = (dict(model.named_parameters()) for model in stepped)
    for name, kept in without.items():
        assert all(torch.equal(alike[0][name], other[name]) for other in alike)
        assert torch.equal(kept, alike[0][name]) == name.endswith("bias"), name


def test_steps_that_are_counted_on_the_device_are_the_same(tmp_path: Path) -> None:
    """With a learning rate that is a tensor and changes in place, as a captured step reads it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3), nn.Linear(5, 2))
    other = copy.deepcopy(model)
    usual, rate = Muon(groups(model, 0.1), lr=0.1), torch.tensor(0.1)
    counted = Muon(groups(other, 0.1), lr=rate, capturable=True)
    schedules = [torch.optim.lr_scheduler.LambdaLR(each, lambda step: 1 - step / 4) for each in (usual, counted)]
    for step in range(5):  # of which the last one's rate is 0
        for each, optimizer, schedule in zip((model, other), (usual, counted), schedules, strict=True):
            filled(each, step)
            optimizer.step()
            schedule.step()
        for a, b in zip(model.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    assert all(group["lr"] is rate for group in counted.param_groups)
    assert counted.state[other[3].bias]["step"].equal(torch.tensor(5.0))
    # Either goes on from what the other saved, and from what was saved before there was a choice.
    for optimizer, name in ((usual, "usual"), (counted, "counted")):
        saved = optimizer.state_dict()
        for group in saved["param_groups"]:
            del group["capturable"]
        torch.save(saved, tmp_path / name)
    for each, optimizer, name in ((model, usual, "counted"), (other, counted, "usual")):
        optimizer.load_state_dict(torch.load(tmp_path / name, weights_only=True))
        for group in optimizer.param_groups:
            group["lr"] = torch.tensor(0.1)
        filled(each, 9)
        optimizer.step()
        assert optimizer.state[each[3].bias]["step"] == 6
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_matrices_of_one_shape_are_stepped_as_each_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = (6, 20), (20, 6), (6, 20), (4, 4), (6, 20)
    matrices = [torch.randn(shape, generator=generator) * 10**k for k, shape in enumerate(shapes)]
    for found, matrix in zip(orthogonalized_each(matrices), matrices, strict=True):
        torch.testing.assert_close(found, orthogonalized(matrix), rtol=1e-5, atol=1e-6)
