"""Convolution at frequencies, against the library's in float64."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from torchcaps.layers import Conv2d
from torchcaps.ops import conv2d, spectral
from torchcaps.ops.spectral import is_faster, spectral_conv2d

BIG = (64, 64, 20, 20), (128, 64, 9, 9)  # large enough to go by frequencies


def gradients(function, x: Tensor, weight: Tensor, upstream: Tensor) -> list[Tensor]:
    x, weight = x.clone().requires_grad_(), weight.clone().requires_grad_()
    y = function(x, weight)
    return [y, *torch.autograd.grad(y, (x, weight), upstream.to(y.dtype))]


def by_frequencies(y: Tensor) -> bool:
    """Whether a product of frequencies stands behind a result."""
    seen, todo = set(), [y.grad_fn]
    while todo:
        node = todo.pop()
        if node is not None and node not in seen:
            seen.add(node)
            todo += [parent for parent, _ in node.next_functions]
    return any("Bmm" in type(node).__name__ or type(node).__name__ == "_InPartsBackward" for node in seen)


@pytest.mark.parametrize(
    ("size", "kernel", "stride"),
    [
        ((20, 20), (9, 9), 2),  # one tile: CapsNet's
        ((21, 17), (9, 8), 2),  # inputs to spare
        ((9, 9), (9, 9), 2),  # a single output
        ((47, 29), (9, 9), 2),  # several tiles, more in one direction
        ((30, 31), (7, 5), 3),
        ((40, 20), (13, 3), 1),  # outputs fewer than the kernel's taps would have in a tile
        ((6, 5), (1, 1), 1),
        ((8, 7), (2, 3), 4),  # a stride beyond the kernel
    ],
)
@pytest.mark.parametrize("padding", [0, 3])
def test_is_convolution(size: tuple[int, int], kernel: tuple[int, int], stride: int, padding: int) -> None:
    x, weight = torch.randn(3, 4, *size, dtype=torch.float64), torch.randn(5, 4, *kernel, dtype=torch.float64)
    library = lambda x, weight: F.conv2d(x, weight, stride=stride, padding=padding)  # noqa: E731
    upstream = torch.randn_like(library(x, weight))
    ours = gradients(lambda x, weight: spectral_conv2d(x, weight, stride, padding), x, weight, upstream)
    torch.testing.assert_close(ours, gradients(library, x, weight, upstream), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("change", [lambda w: w.mul_(2), lambda w: w.data.mul_(2), lambda w: w.copy_(2 * w)])
def test_nothing_is_kept_of_a_weight(change: Callable[[Tensor], object]) -> None:
    x, weight = torch.randn(1, 6, 9, 9), torch.randn(3, 3, 6, 5).permute(3, 2, 0, 1)
    with torch.inference_mode(False), torch.no_grad():
        before = conv2d(x, weight, stride=2)
        change(weight)
        torch.testing.assert_close(conv2d(x, weight, stride=2), 2 * before)


@pytest.mark.parametrize("shape", [(2, 1, 7, 8), (2, 3, 1, 5), (2, 9, 6, 6)])
@pytest.mark.parametrize("stride", [2, 3])
def test_strided_kernels_of_one_pixel(shape: tuple[int, ...], stride: int) -> None:
    x = torch.rand(shape, dtype=torch.float64).permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)  # channels last
    weight = torch.rand(4, shape[1], 1, 1, dtype=torch.float64)
    wanted = torch.einsum("bchw,oc->bohw", x, weight[:, :, 0, 0])[:, :, ::stride, ::stride]
    torch.testing.assert_close(conv2d(x, weight, stride=stride), wanted)


def test_a_tap_by_hand() -> None:
    """A kernel of one tap picks the pixels under it."""
    x, weight = torch.arange(49.0).view(1, 1, 7, 7), torch.zeros(1, 1, 3, 3)
    weight[0, 0, 2, 1] = 1
    torch.testing.assert_close(spectral_conv2d(x, weight, 2)[0, 0], x[0, 0, 2::2, 1:6:2], rtol=0, atol=1e-4)


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float32, 2e-6), (torch.bfloat16, 8e-3)])
def test_error_is_that_of_the_dtype(dtype: torch.dtype, rtol: float) -> None:
    """In norm, on what a network sends: features that are not negative."""
    x, weight = torch.rand(BIG[0]).to(dtype), (torch.randn(BIG[1]) / 72).to(dtype)
    upstream = torch.randn(64, 128, 6, 6).to(dtype)
    exact = gradients(lambda x, w: F.conv2d(x, w, stride=2), x.double(), weight.double(), upstream)
    for truth, one in zip(exact, gradients(lambda x, w: conv2d(x, w, stride=2), x, weight, upstream), strict=True):
        assert one.dtype == dtype
        assert (one - truth).norm() <= rtol * truth.norm()


@pytest.mark.parametrize("padding", [0, 2])
def test_large_convolutions_go_by_frequencies(padding: int) -> None:
    x, weight = torch.randn(BIG[0]), torch.randn(BIG[1], requires_grad=True)
    y = conv2d(x, weight, stride=2, padding=padding)
    assert by_frequencies(y)
    torch.testing.assert_close(y, F.conv2d(x, weight, stride=2, padding=padding), rtol=1e-3, atol=1e-3)


def test_layer_is_torchs() -> None:
    layer, x = Conv2d(64, 128, 9, stride=2, padding=1), torch.randn(BIG[0])
    upstream, found = torch.randn(64, 128, 7, 7), []
    for forward in (layer, lambda x: nn.Conv2d.forward(layer, x)):
        y = forward(x)
        found.append((y, *torch.autograd.grad(y, tuple(layer.parameters()), upstream)))
    assert by_frequencies(found[0][0]) and not by_frequencies(found[1][0])
    for one, two in zip(*found, strict=True):
        assert (one - two).norm() <= 2e-6 * two.norm()
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16


@pytest.mark.parametrize(("kernel", "stride", "padding"), [((3, 5), (1, 2), (0, 2)), (1, (2, 1), 0), (9, 2, (1, 1))])
def test_rows_and_columns_may_differ(kernel: int | tuple[int, int], stride: Any, padding: Any) -> None:
    layer, x = Conv2d(64, 128, kernel, stride, padding), torch.randn(BIG[0])
    torch.testing.assert_close(layer(x), nn.Conv2d.forward(layer, x), rtol=1e-4, atol=1e-4)
    assert by_frequencies(layer(x)) == (kernel == 9)


@pytest.mark.parametrize("two", [np.int64(2), (2, 2), [2, 2], torch.Size((2, 2))])
def test_two_that_are_the_same_are_one(two: Any) -> None:
    """Fast where one number is, whatever holds them."""
    x, weight = torch.randn(BIG[0]), torch.randn(BIG[1], requires_grad=True)
    assert by_frequencies(conv2d(x, weight, stride=two, padding=np.int64(0)))


@pytest.mark.parametrize(("name", "value"), [("kernel_size", (3, 5, 7)), ("stride", (1, 0)), ("padding", "same")])
def test_layer_refuses_sizes(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name} must be"):
        Conv2d(3, 4, **{"kernel_size": 3, name: value})


def test_others_are_the_librarys() -> None:
    x, weight = torch.randn(BIG[0]), torch.randn(BIG[1], requires_grad=True)
    assert by_frequencies(conv2d(x, weight, stride=2))
    assert not by_frequencies(conv2d(x[:, :, :12, :12], weight, stride=2))  # 4 outputs: nothing to save
    assert not by_frequencies(conv2d(x.double(), weight.double(), stride=2))
    assert not by_frequencies(conv2d(x, weight[:, :, :2, :2], stride=2))
    assert conv2d(x[0], weight, stride=2).shape == (128, 6, 6)


def test_what_the_library_refuses_is_refused() -> None:
    x, weight = torch.randn(BIG[0]), torch.randn(BIG[1], requires_grad=True)
    for other, bias, stride, message in (
        (weight.double(), None, 2, "weight must be torch.float32 as x is, got torch.float64"),
        (weight.bfloat16(), None, 2, "weight must be torch.float32 as x is, got torch.bfloat16"),
        (weight[:, :63], None, 2, r"weight must be \[C', C, K_h, K_w\] with C=64 as in x"),
        (weight, torch.zeros(1), 2, r"bias must be \[C'\] with C'=128 as in weight, got shape \[1\]"),
        (weight, None, 0, "stride must be an integer of at least 1, got 0"),
        (weight.to("meta"), None, 1, "weight must be on cpu as x is, got a tensor on meta"),
        (weight.to(torch.complex64), None, 1, "weight must be real, got torch.complex64"),
    ):
        with pytest.raises(ValueError, match=message):
            conv2d(x, other, bias, stride=stride)
    with pytest.raises(
        ValueError, match=r"weight must have a kernel that fits into x, got \[9, 9\] for maps of \[8, 20\]"
    ):
        conv2d(x[:, :, :8], weight)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64])
def test_a_bias_of_another_dtype_is_refused_whatever_the_size(dtype: torch.dtype) -> None:
    for shape in ((64, 64, 20, 20), (1, 1, 9, 9)):
        x, weight = torch.rand(shape), torch.rand(128, shape[1], 9, 9)
        with pytest.raises(ValueError, match="bias must be "):
            conv2d(x, weight, torch.zeros(128, dtype=dtype))


def test_how_it_was_called_first_does_not_matter() -> None:
    """What is kept from one call to the next must not belong to the mode of the first."""
    shape = (64, 64, 22, 20)  # of no other test
    x, weight = torch.randn(shape), torch.randn(BIG[1], requires_grad=True)

    def total(weight: Tensor) -> Tensor:
        return conv2d(x, weight, stride=2).square().sum()

    with torch.inference_mode(), torch.enable_grad():
        conv2d(x, weight, stride=2)
    torch.func.grad(lambda w: torch.func.grad(total)(w).sum())(weight.detach())
    (wanted,) = torch.autograd.grad(total(weight), weight)
    found = torch.func.grad(total)(weight.detach())  # by another library, maybe, see ops/product.py
    assert (found - wanted).norm() <= 2e-6 * wanted.norm()
    with torch.device("meta"):
        assert by_frequencies(conv2d(x, weight, stride=2))


@pytest.mark.parametrize("of", ["x", "weight", "both"])
def test_gradients_of_what_is_asked_for(of: str) -> None:
    """Of second order, of many outputs at once, and of a backward pass under autocast, too."""
    x, weight = torch.randn(2, 3, 11, 9).double(), torch.randn(4, 3, 3, 3).double()
    leaves = [each.requires_grad_() for name, each in (("x", x), ("weight", weight)) if of in (name, "both")]
    upstream = torch.randn(3, 2, 4, 9, 7).double()

    def outcome(function: Callable[..., Tensor]) -> list[Tensor]:
        y = function(x, weight)
        assert all(leaf.grad is None for leaf in leaves)
        first = torch.autograd.grad(y, leaves, upstream[0], retain_graph=True)
        many = torch.autograd.grad(y, leaves, upstream, retain_graph=True, is_grads_batched=True)
        given = upstream[0].clone().requires_grad_()
        again = torch.autograd.grad(y, leaves, given, create_graph=True)
        second = torch.autograd.grad(sum(each.square().sum() for each in again), [given])  # type: ignore[arg-type]
        return [*first, *many, *second]

    for found, wanted in zip(outcome(spectral_conv2d), outcome(F.conv2d), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)


def test_a_backward_pass_under_autocast() -> None:
    """Which torch does not recommend: its own parts round to bfloat16 there."""
    x, weight = torch.randn(BIG[0]), torch.randn(BIG[1], requires_grad=True)
    y = conv2d(x, weight, stride=2)
    assert by_frequencies(y)
    (wanted,) = torch.autograd.grad(y.sum(), weight, retain_graph=True)
    with torch.autocast("cpu", torch.bfloat16):
        (found,) = torch.autograd.grad(y.sum(), weight)
    assert found.dtype == torch.float32 and (found - wanted).norm() <= 0.01 * wanted.norm()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_autograd(mode: Callable[[], AbstractContextManager[None]]) -> None:
    """Larger batches go by frequencies, smaller ones are the library's: its own bits."""
    x, weight = torch.rand(96, 128, 20, 20), torch.randn(128, 128, 9, 9) / 72
    with mode():
        library = F.conv2d(x, weight, stride=2)
        ours = conv2d(x, weight, stride=2)
        assert not ours.equal(library)
        assert (ours - library).norm() <= 2e-6 * library.norm()
        assert conv2d(x[:2], weight, stride=2).equal(F.conv2d(x[:2], weight, stride=2))


def test_what_is_watched_is_the_librarys() -> None:
    """What writes graphs for other sizes, or counts, sees one convolution."""
    layer, x = Conv2d(64, 128, 9, stride=2), torch.randn(BIG[0])
    with FlopCounterMode(display=False) as counter:
        assert not by_frequencies(layer(x))
    assert counter.get_total_flops() == 2 * 64 * 128 * 64 * 9**2 * 6**2
    graph = make_fx(layer)(x)
    assert any("convolution" in str(node.target) for node in graph.graph.nodes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        traced = torch.jit.trace(layer, x, check_trace=False)
    assert traced(x[:3]).equal(layer(x[:3]))


def test_a_few_images_at_a_time_without_autograd(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of large maps; the rest of the batch makes a smaller part."""
    x, weight = torch.randn(5, 4, 20, 19, dtype=torch.float64), torch.randn(6, 4, 5, 5, dtype=torch.float64)
    whole, taken = spectral_conv2d(x, weight, 2, 1), []
    of_image = 4 * 4 * math.prod(x.tiles * x.tile for x in spectral.Cut.of((20, 19), weight.shape, 2, 1)[:2])
    monkeypatch.setattr(spectral, "_AT_ONCE", 2 * of_image)
    transforms = spectral.transforms
    monkeypatch.setattr(spectral, "transforms", lambda *given: taken.append(given[2].shape[0]) or transforms(*given))
    with torch.no_grad():
        parts = spectral_conv2d(x, weight, 2, 1)
    assert taken == [2, 2, 1]
    torch.testing.assert_close(parts, whole, rtol=1e-12, atol=1e-12)
    assert parts.stride() == whole.contiguous(memory_format=torch.channels_last).stride()


def test_memory_is_little_more_than_that_of_images_kernels_and_outputs() -> None:
    """Forward and backward, no tensor is larger than these and the coefficients of outputs."""
    x, weight = torch.randn(16, 64, 20, 20, requires_grad=True), torch.randn(128, 64, 9, 9, requires_grad=True)
    largest = [0]

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made = func(*args, **(kwargs or {}))
            if isinstance(made, Tensor) and made._base is None:
                largest.append(made.untyped_storage().nbytes() // made.itemsize)
            return made

    with Sizes():
        y = spectral_conv2d(x, weight, 2)
        y.sum().backward()
    assert max(largest) <= max(x.numel(), weight.numel(), 150 * 16 * 128)


def test_several_weights_at_once_a_few_images_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """As an ensemble is evaluated by torch.func: the images know nothing of how many there are."""
    x, weights = torch.randn(5, 4, 20, 19, dtype=torch.float64), torch.randn(2, 6, 4, 5, 5, dtype=torch.float64)
    monkeypatch.setattr(spectral, "_AT_ONCE", 1)
    with torch.no_grad():
        both = torch.func.vmap(lambda weight: spectral_conv2d(x, weight, 2, 1))(weights)
    for found, weight in zip(both, weights, strict=True):
        torch.testing.assert_close(found, F.conv2d(x, weight, stride=2, padding=1), rtol=1e-10, atol=1e-10)


def test_batch_of_nothing_and_strides_of_any_kind() -> None:
    weight = torch.randn(3, 4, 5, 5, dtype=torch.float64)
    assert spectral_conv2d(torch.zeros(0, 4, 9, 9, dtype=torch.float64), weight, 2).shape == (0, 3, 3, 3)
    x = torch.randn(9, 4, 2, 9, dtype=torch.float64).permute(2, 1, 0, 3)
    assert not x.is_contiguous()
    torch.testing.assert_close(spectral_conv2d(x, weight.mT, 2), F.conv2d(x, weight.mT, stride=2))


@pytest.mark.parametrize("shape", [(0, 64, 20, 20), (64, 64, 8, 20)])
def test_nothing_to_do_is_left_to_the_library(shape: tuple[int, ...]) -> None:
    assert not is_faster(shape, BIG[1], 2, gradients=True)


def test_autocast_takes_bfloat16_and_gives_float32_weights_theirs() -> None:
    weight = torch.randn(BIG[1], requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        y = conv2d(torch.randn(BIG[0]), weight, stride=2)
    y.sum().backward()
    assert y.dtype == torch.bfloat16 and by_frequencies(y)
    assert weight.grad is not None and weight.grad.dtype == torch.float32


def test_autocast_leaves_float64_alone() -> None:
    x, weight = torch.randn(2, 3, 9, 9, dtype=torch.float64), torch.randn(4, 3, 3, 3, dtype=torch.float64)
    with torch.autocast("cpu", torch.bfloat16):
        y = conv2d(x, weight.requires_grad_(), stride=2)
    assert y.dtype == torch.float64


def test_second_derivatives() -> None:
    x = torch.randn(1, 2, 9, 9, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(2, 2, 4, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x, weight: spectral_conv2d(x, weight, 2), (x, weight))


def test_compiles_to_one_graph_for_any_batch() -> None:
    weight = torch.randn(BIG[1], requires_grad=True)
    compiled = torch.compile(conv2d, backend="aot_eager", fullgraph=True, dynamic=True)
    for n in (64, 65):
        x = torch.randn(n, *BIG[0][1:])
        (one,) = torch.autograd.grad(compiled(x, weight, stride=2).square().sum(), weight)
        (two,) = torch.autograd.grad(conv2d(x, weight, stride=2).square().sum(), weight)
        assert (one - two).norm() <= 1e-5 * two.norm()


def test_exports_with_any_batch() -> None:
    layer = Conv2d(64, 128, 9, stride=2)
    exported = torch.export.export(layer, (torch.randn(BIG[0]),), dynamic_shapes=({0: torch.export.Dim("B")},))
    x = torch.randn(3, *BIG[0][1:])
    torch.testing.assert_close(exported.module()(x), layer(x))
