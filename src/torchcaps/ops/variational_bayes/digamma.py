"""The digamma function, with a gradient that is as exact as itself."""

from __future__ import annotations

import torch
from torch import Tensor

#: How far numbers are moved up.
_STEPS = 16


def digamma(x: Tensor) -> Tensor:
    """Compute ψ(x) of positive numbers.

    In float64 the gradient of :func:`torch.digamma` is 5e-10 off near 1 (torch 2.13), but exact further up. So ψ is
    taken there, by ψ(x) = ψ(x + n) - Σ_k 1/(x + k) over k < n. In float32 rounding is more than that.
    """
    if x.dtype != torch.float64:
        return torch.digamma(x)
    steps = torch.arange(_STEPS, dtype=x.dtype, device=x.device)
    return torch.digamma(x + _STEPS) - (1 / (x[..., None] + steps)).sum(dim=-1)
