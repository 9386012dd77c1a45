"""The strided convolution with its own gradient, against float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from torchcaps.ops import conv2d


def gradients(function, x: Tensor, weight: Tensor, upstream: Tensor) -> list[Tensor]:
    x, weight = x.clone().requires_grad_(), weight.clone().requires_grad_()
    y = function(x, weight)
    return [y, *torch.autograd.grad(y, (x, weight), upstream.to(y.dtype))]


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


def test_autocast_takes_the_fast_gradient_and_gives_float32_weights_theirs() -> None:
    weight = torch.randn(4, 3, 3, 3, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        y = conv2d(torch.randn(2, 3, 9, 9), weight, 2)
    y.sum().backward()
    assert y.dtype == torch.bfloat16 and type(y.grad_fn).__name__ == "_StridedConvBackward"
    assert weight.grad is not None and weight.grad.dtype == torch.float32
