"""The digamma function, with a gradient that is as exact as itself, and in a form that ONNX has."""

from __future__ import annotations

import torch
from torch import Tensor

from torchcaps.ops.backends.dispatch import is_read_elsewhere

#: How far numbers are moved up before the series.
_STEPS = 8
#: B_2k / 2k of Bernoulli's numbers, k = 1 … 7.
_SERIES = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)


def digamma(x: Tensor) -> Tensor:
    """Compute ψ(x) of positive numbers.

    In float64 the gradient of :func:`torch.digamma` is 5e-10 off near 1 (torch 2.13), and ONNX has no digamma. There it
    is ψ(x) = ψ(x + n) - Σ_k 1/(x + k) over k < n, with the asymptotic series of ψ(x + n). In float32 rounding is more
    than these 5e-10.

    Source: Abramowitz, Stegun 1964, 6.3.6 and 6.3.18.
    """
    if x.dtype != torch.float64 and not is_read_elsewhere():
        return torch.digamma(x)
    steps = torch.arange(_STEPS, dtype=x.dtype, device=x.device)
    up = x + _STEPS
    square, series = up**-2, torch.zeros_like(up)
    for coefficient in reversed(_SERIES):
        series = (series + coefficient) * square
    return up.log() - 0.5 / up - series - (1 / (x[..., None] + steps)).sum(dim=-1)
