"""Muon: momentum whose every direction is made equally strong, for convolutions and capsules; Adam for the rest.

Adam scales every number of a gradient by itself. The gradient of a wide layer has a few strong directions, which all of
its numbers share, and Adam's steps are mostly along those. Muon brings all singular values of the momentum near 1, so
that the weak directions are learned as fast as the strong ones.

Source: Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks"; the scale of its steps is that of
Liu et al. 2025, "Muon is scalable for LLM training", section 2.2, with which Adam's learning rates carry over.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchcaps.layers import MatrixPrimaryCaps, PrimaryCaps
from torchcaps.layers.routed_layer import RoutedLayer

_MOMENTUM = 0.95
#: Root mean square of a step at a learning rate of 1: about that of Adam's (Liu et al. 2025).
_RMS = 0.2
#: Of the polynomial that brings singular values near 1, and how often it is applied (Jordan et al. 2024).
_QUINTIC, _TIMES = (3.4445, -4.7750, 2.0315), 5


class Layout(NamedTuple):
    """How a weight is a matrix.

    Attributes:
        rows: its first so many axes are the matrix's rows, the others its columns …
        swapped: … after its second and third have changed places.
    """

    rows: int
    swapped: bool = False

    def view(self, weight: Tensor) -> Tensor:
        """The weight with its axes in this order, in the same memory."""
        return weight.transpose(1, 2) if self.swapped else weight


_LAYOUTS: tuple[tuple[type[nn.Module], Layout], ...] = (
    (nn.Conv2d, Layout(1)),  # [C', C, K, K]
    (MatrixPrimaryCaps, Layout(1)),  # the same
    (PrimaryCaps, Layout(3)),  # [K, K, C, T·D]
    (RoutedLayer, Layout(2, swapped=True)),  # [I, J, d_in, d_out]
)


def layouts(model: nn.Module) -> dict[nn.Parameter, Layout]:
    """The weights that Muon steps: those of convolutions and of layers of capsules.

    Not those of linear layers: a decoder's only regularises, and on a CPU orthogonal steps of matrices as large as its
    would take longer than all else.
    """
    found: dict[nn.Parameter, Layout] = {}
    for layer in model.modules():
        layout = next((layout for kind, layout in _LAYOUTS if isinstance(layer, kind)), None)
        weight = dict(layer.named_parameters(recurse=False)).get("weight")
        if layout is not None and weight is not None and weight.requires_grad:
            found[weight] = layout
    return found


class Muon(torch.optim.Adam):
    """Steps some weights by Muon, all others by Adam.

    Args:
        groups: parameters, or groups of such, with a learning rate and a weight decay that are those of both.
        layouts: of those parameters that are stepped by Muon.
        options: Adam's.

    Raises:
        ValueError: no weight to step by Muon, or options that Adam refuses.

    Example:
        >>> from torchcaps.models import CapsNet
        >>> model = CapsNet()
        >>> optimizer = Muon(model.parameters(), layouts=layouts(model), lr=3e-3)
    """

    def __init__(
        self,
        groups: Iterable[nn.Parameter] | Iterable[dict[str, Any]],
        *,
        layouts: dict[nn.Parameter, Layout],
        **options: Any,
    ) -> None:
        if not layouts:
            raise ValueError("layouts must name a weight to step by Muon, of a convolution or of capsules; got none")
        super().__init__(groups, **options)
        self._layouts = layouts

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        gradients = {weight: weight.grad for weight in self._layouts if weight.grad is not None}
        for group in self.param_groups:
            for weight in group["params"]:
                if weight in gradients:
                    self._turn(weight, gradients[weight], group)
                    weight.grad = None  # Adam passes it by
        super().step()
        for weight, gradient in gradients.items():
            weight.grad = gradient
        return loss

    def _turn(self, weight: nn.Parameter, gradient: Tensor, group: dict[str, Any]) -> None:
        layout, state = self._layouts[weight], self.state[weight]
        if not state:  # Adam's loading asks every state for its step
            state |= {"step": torch.zeros(()), "momentum": torch.zeros_like(weight)}
        state["step"] += 1
        gradient = gradient.add(weight, alpha=group["weight_decay"]) if group["weight_decay"] else gradient
        momentum = state["momentum"].lerp_(gradient, 1 - _MOMENTUM)
        view = layout.view(gradient.lerp(momentum, _MOMENTUM))
        matrix = view.reshape(math.prod(view.shape[: layout.rows]), -1)
        step = orthogonalized(matrix).reshape(view.shape)
        layout.view(weight).add_(step, alpha=-group["lr"] * _RMS * math.sqrt(max(matrix.shape)))


def orthogonalized(matrix: Tensor) -> Tensor:
    """The matrix with all of its singular values near 1, between about 0.7 and 1.2 where they were not minute.

    Every pass of the quintic is ``X ← X·P(XᵀX)``; here the passes are put together on the small side, ``X·ΠP``, so that
    the long one is gone through twice, not ten times.

    Args:
        matrix: ``[n, m]``, float32.
    """
    if matrix.shape[0] < matrix.shape[1]:
        return orthogonalized(matrix.T).T
    gram = matrix.T @ matrix
    norm = gram.trace().sqrt().clamp_min(1e-15)  # no singular value is larger
    gram = gram / norm**2
    total = identity = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    a, b, c = _QUINTIC
    for _ in range(_TIMES):
        once = a * identity + gram @ (b * identity + c * gram)
        total = total @ once
        gram = once @ gram @ once
    return matrix @ (total / norm)
