"""Products of matrices by oneDNN, against float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils.flop_counter import FlopCounterMode

from torchcaps.ops import product as module
from torchcaps.ops.product import product

pytestmark = pytest.mark.skipif(
    not (torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")),
    reason="this torch has no oneDNN",
)

SHAPES = [((65, 300), (300, 70)), ((3, 64, 200), (3, 200, 90))]


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Take oneDNN on any processor, and note how often."""
    found: list[int] = []
    one = module._by_onednn
    monkeypatch.setattr(module, "_is_zen_5", lambda: True)
    monkeypatch.setattr(module, "_by_onednn", lambda *given: found.append(1) or one(*given))
    return found


def pair(shapes: tuple[tuple[int, ...], tuple[int, ...]], layout: str) -> list[Tensor]:
    """Two matrices, as they are or as they lie after a transposition."""
    made = [torch.randn(shape) for shape in shapes]
    return [x.mT.contiguous().mT if kind == "t" else x for x, kind in zip(made, layout, strict=True)]


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_is_the_product(shapes: tuple[tuple[int, ...], tuple[int, ...]], layout: str, asked: list[int]) -> None:
    a, b = pair(shapes, layout)
    exact = a.double() @ b.double()
    torch.testing.assert_close(product(a, b).double(), exact, rtol=1e-5, atol=1e-4)
    assert len(asked) == (1 if a.dim() == 2 else len(a))


@pytest.mark.parametrize("layout", ["nn", "tn"])
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_gradients(shapes: tuple[tuple[int, ...], tuple[int, ...]], layout: str) -> None:
    """Of first and second order, as those of float64, which torch's own product makes."""

    def gradients(*given: Tensor) -> list[Tensor]:
        a, b, upstream = (x.detach().requires_grad_() for x in given)
        first = torch.autograd.grad(product(a, b), (a, b), upstream, create_graph=True)
        second = torch.autograd.grad(sum(x.square().sum() for x in first), (a, b, upstream))  # type: ignore[arg-type]
        return [*first, *second]

    a, b = pair(shapes, layout)
    upstream = torch.randn_like(a @ b)
    found, exact = gradients(a, b, upstream), gradients(a.double(), b.double(), upstream.double())
    for x, y in zip(found, exact, strict=True):
        torch.testing.assert_close(x.double(), y, rtol=1e-4, atol=1e-5 * y.abs().max().item())


def test_gradients_of_many_outputs_come_at_once() -> None:
    a, b = pair(SHAPES[0], "nn")
    upstream = torch.randn(2, *(a @ b).shape)
    a.requires_grad_(), b.requires_grad_()
    found, wanted = (torch.autograd.grad(y, (a, b), upstream, is_grads_batched=True) for y in (product(a, b), a @ b))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-3)


def test_only_what_is_asked_for_has_a_gradient(asked: list[int]) -> None:
    a, b = pair(SHAPES[0], "nn")
    product(a.requires_grad_(), b).sum().backward()
    assert a.grad is not None and b.grad is None and len(asked) == 2


@pytest.mark.parametrize(
    "spoil",
    [
        lambda a, b: (a[:10, :10], b[:10, :10]),  # small
        lambda a, b: (a.double(), b.double()),
        lambda a, b: (a.bfloat16(), b.bfloat16()),
        lambda a, b: (a[:0], b),
        lambda a, b: (a.expand(2, 2, *a.shape), b.expand(2, 2, *b.shape)),
        lambda a, b: (a.expand(2, *a.shape), b),
    ],
    ids=["small", "float64", "bfloat16", "empty", "more axes", "one of many"],
)
def test_others_are_torchs_own(spoil: Callable[..., tuple[Tensor, Tensor]], asked: list[int]) -> None:
    a, b = spoil(*pair(SHAPES[0], "nn"))
    assert torch.equal(product(a, b), a @ b)
    assert not asked


def test_what_looks_at_operations_sees_torchs_own(asked: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = pair(SHAPES[0], "nn")
    with FlopCounterMode(display=False) as counter:
        product(a, b)
    assert counter.get_total_flops() == 2 * 65 * 300 * 70
    _, tangent = torch.func.jvp(product, (a, b), (a, b))
    torch.testing.assert_close(tangent, 2 * (a @ b))
    with forward_ad.dual_level():
        assert forward_ad.unpack_dual(product(forward_ad.make_dual(a, a), b)).tangent is not None
    torch.func.vmap(product)(a.expand(2, *a.shape), b.expand(2, *b.shape))
    with torch.autocast("cpu", torch.bfloat16):
        assert product(a, b).dtype == torch.bfloat16
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    assert torch.equal(product(a, b), a @ b)
    assert not asked


def test_shapes_that_do_not_fit_are_refused_as_torch_does() -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        product(torch.ones(200, 100), torch.ones(101, 100))
