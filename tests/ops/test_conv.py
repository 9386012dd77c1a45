"""The strided convolution with its own gradient, against float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from torchcaps.ops import conv2d
from torchcaps.ops.fused import cpu

needs_compiler = pytest.mark.skipif(cpu.why_not("conv") is not None, reason=str(cpu.why_not("conv")))


def gradients(function, x: Tensor, weight: Tensor, upstream: Tensor) -> list[Tensor]:
    x, weight = x.clone().requires_grad_(), weight.clone().requires_grad_()
    y = function(x, weight)
    return [y, *torch.autograd.grad(y, (x, weight), upstream.to(y.dtype))]


@needs_compiler
@pytest.mark.parametrize(
    ("shape", "kernel", "stride", "padding"),
    [((3, 5, 13, 11), 4, 2, 0), ((17, 2, 9, 9), 3, 3, 1), ((1, 1, 7, 8), 7, 2, 0), ((9, 3, 10, 6), 5, 2, 2)],
)
def test_error_is_that_of_the_library_in_the_same_dtype(
    shape: tuple[int, ...], kernel: int, stride: int, padding: int
) -> None:
    x = torch.randn(shape).bfloat16()
    weight = torch.randn(6, shape[1], kernel, kernel).bfloat16()

    def library(x: Tensor, weight: Tensor) -> Tensor:
        return F.conv2d(x, weight, stride=stride, padding=padding)

    upstream = torch.randn_like(library(x, weight))
    exact = gradients(library, x.double(), weight.double(), upstream)
    theirs = gradients(library, x, weight, upstream)
    ours = gradients(lambda x, w: conv2d(x, w, stride, padding), x, weight, upstream)
    for name, truth, one, two in zip(("y", "x", "weight"), exact, theirs, ours, strict=True):
        assert two.dtype == torch.bfloat16 and two.shape == truth.shape
        floor = 2**-8 * truth.abs().max()  # one rounding of the largest element
        assert (two - truth).abs().max() <= 2 * (one - truth).abs().max() + floor, name


def test_float32_is_the_library() -> None:
    x, weight = torch.randn(2, 3, 9, 9), torch.randn(4, 3, 3, 3)
    torch.testing.assert_close(conv2d(x, weight, 2), F.conv2d(x, weight, stride=2), rtol=0, atol=0)


def test_autocast_leaves_float64_alone() -> None:
    x, weight = torch.randn(2, 3, 9, 9, dtype=torch.float64), torch.randn(4, 3, 3, 3, dtype=torch.float64)
    with torch.autocast("cpu", torch.bfloat16):
        y = conv2d(x, weight.requires_grad_(), 2)
    assert y.dtype == torch.float64


@needs_compiler
def test_autocast_takes_the_fast_gradient_and_gives_float32_weights_theirs() -> None:
    weight = torch.randn(4, 3, 3, 3, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        y = conv2d(torch.randn(2, 3, 9, 9), weight, 2)
    y.sum().backward()
    assert y.dtype == torch.bfloat16 and "torchcaps_strided_conv" in type(y.grad_fn).__name__
    assert weight.grad is not None and weight.grad.dtype == torch.float32


def test_without_a_compiler_it_is_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "why_not", lambda _: "no C++ compiler")
    x, weight = torch.randn(2, 3, 9, 9).bfloat16(), torch.randn(4, 3, 3, 3).bfloat16().requires_grad_()
    torch.testing.assert_close(conv2d(x, weight, 2), F.conv2d(x, weight, stride=2), rtol=0, atol=0)


@needs_compiler
def test_threads_change_nothing() -> None:
    x, weight = torch.randn(5, 3, 9, 9).bfloat16(), torch.randn(4, 3, 3, 3).bfloat16()
    upstream = torch.randn(5, 4, 4, 4)
    one = gradients(lambda x, w: conv2d(x, w, 2), x, weight, upstream)
    torch.set_num_threads(2)
    for a, b in zip(one, gradients(lambda x, w: conv2d(x, w, 2), x, weight, upstream), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


@needs_compiler
def test_the_operator_is_registered_as_torch_wants_it() -> None:
    x, weight = torch.randn(2, 3, 9, 9).bfloat16().requires_grad_(), torch.randn(4, 3, 3, 3).bfloat16().requires_grad_()
    torch.library.opcheck(torch.ops.torchcaps.strided_conv, (x, weight, 2))


@needs_compiler
def test_compiles_to_one_graph() -> None:
    weight = torch.randn(4, 3, 3, 3).bfloat16().requires_grad_()
    x = torch.randn(2, 3, 9, 9).bfloat16()
    compiled = torch.compile(conv2d, backend="aot_eager", fullgraph=True)
    (one,) = torch.autograd.grad(compiled(x, weight, 2).sum(), weight)
    (two,) = torch.autograd.grad(conv2d(x, weight, 2).sum(), weight)
    torch.testing.assert_close(one, two)
