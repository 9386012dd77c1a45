"""Muon: held to torch's own, to singular values, and to the definition of its steps."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from torchcaps.experiments import Experiment, Optim
from torchcaps.layers import ConvCaps, DenseCaps, MatrixPrimaryCaps, PrimaryCaps
from torchcaps.layers.local import Local
from torchcaps.models import capsnet, matched_cnn, matrix_capsnet_small
from torchcaps.optim import Layout, Muon, layouts, orthogonalized


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


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_steps_are_those_of_torch(weight_decay: float) -> None:
    """Of torch's own Muon, which takes matrices alone and rounds to bfloat16 in between; of Adam for the bias."""
    torch.manual_seed(0)
    layer = nn.Conv2d(3, 8, 3)
    weight, bias = (nn.Parameter(p.detach().clone()) for p in (layer.weight.flatten(1), layer.bias))
    before = weight.detach().clone()
    groups = [{"params": [layer.weight], "weight_decay": weight_decay}, {"params": [layer.bias]}]
    ours = Muon(groups, layouts=layouts(layer), lr=0.02, fused=True)
    muon = torch.optim.Muon([weight], lr=0.02, weight_decay=0, adjust_lr_fn="match_rms_adamw")
    adam = torch.optim.Adam([bias], lr=0.02)
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
    Muon([{"params": [*layer.parameters()]}], layouts=layouts(layer), lr=0.1).step()
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
    caps.conv.weight.requires_grad = False
    assert caps.conv.weight not in layouts(caps)
    assert not layouts(Local(2, 3, 4))


def test_its_state_is_saved_and_loaded() -> None:
    torch.manual_seed(0)
    layer = DenseCaps(5, 3, 4, 6)
    other = copy.deepcopy(layer)

    def of(model: nn.Module) -> Muon:
        return Muon([{"params": [*model.parameters()]}], layouts=layouts(model), lr=0.1, fused=True)

    def step(model: nn.Module, optimizer: Muon) -> None:
        for seed, p in enumerate(model.parameters()):
            p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(seed))
        optimizer.step()

    first = of(layer)
    step(layer, first)
    other.load_state_dict(layer.state_dict())
    second = of(other)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for model, optimizer in ((layer, first), (other, second)):
        step(model, optimizer)
    for a, b in zip(layer.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)


def test_an_unknown_optimizer_is_refused() -> None:
    with pytest.raises(ValueError, match=r"optim.name must be one of adam, muon; got 'sgd'"):
        Experiment("x", optim=Optim(name="sgd"))  # type: ignore[arg-type]


def test_a_model_without_such_layers_is_refused() -> None:
    linear = nn.Linear(3, 4)
    with pytest.raises(ValueError, match="layouts must name a weight to step by Muon"):
        Muon(linear.parameters(), layouts=layouts(linear), lr=0.1)
