"""What a network does with an image on the way to its classes, as one function of tensors that can be exported."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchcaps import explain
from torchcaps.layers.base import RoutedLayer
from torchcaps.ops import Capsules

#: Lower capsules of the parse tree.
N_IN_TREE = 28


class Agreement(NamedTuple):
    """How the capsules of one image agree, in iterations 1 … r.

    Attributes:
        scores: activations of the class capsules, ``[J]``.
        poses: their poses, ``[J, D]``.
        lengths: activations of the class capsules by iteration, ``[r, J]``.
        share: part of each place's activity that goes to each class, ``[r, J, H, W]``.
        activity: activity of each place, beside that of the most active, ``[r, H, W]``.
        capsules: number of each of the N most active lower capsules, ``[N]``: type, row, column.
        activation: their activations, ``[N]``.
        coupling: their couplings, ``[r, N, J]``.
    """

    scores: Tensor
    poses: Tensor
    lengths: Tensor
    share: Tensor
    activity: Tensor
    capsules: Tensor
    activation: Tensor
    coupling: Tensor


class Inside(nn.Module):
    """Run a network once, and route to its classes with each number of iterations.

    What it returns is that of :func:`torchcaps.explain.coupling_maps` and :func:`torchcaps.explain.parse_tree`.

    Args:
        model: a network of capsules, in evaluation mode.
        image_shape: (channels, height, width).
        as_probabilities: turns scores ``[B, J]`` into probabilities; None where they are such.

    Raises:
        ValueError: the network routes no map of capsules to its classes.
    """

    def __init__(
        self,
        model: nn.Module,
        image_shape: tuple[int, int, int],
        as_probabilities: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__()
        self._said = as_probabilities or _as_they_are
        images = torch.zeros(1, *image_shape)
        call = explain.trace_routing(model, images)
        self.model, self.map_shape = model, call.map_shape()
        self.extent = explain.coupling_maps(model, images, 1).extent
        self.n_iters = call.classes.layer.n_iters
        (self._name,) = (name for name, layer in model.named_modules() if layer is call.classes.layer)

    def forward(self, images: Tensor) -> Agreement:
        """Look into one image ``[1, C, H, W]``."""
        layer = self.model.get_submodule(self._name)
        assert isinstance(layer, RoutedLayer)
        given: list[Capsules | Tensor] = []
        with layer.register_forward_pre_hook(lambda _layer, arguments: given.append(arguments[0])):
            scores, poses = explain.class_capsules(self.model, images)
        lower = given[-1]
        if not isinstance(lower, Capsules):
            lower = Capsules(lower, lower.norm(dim=-1))
        return self._agreement(layer, lower, scores, poses)

    def _agreement(self, layer: RoutedLayer, lower: Capsules, scores: Tensor, poses: Tensor) -> Agreement:
        numbers = (None,) if self.n_iters == 1 else range(1, self.n_iters + 1)
        routed = [layer(lower, n_iters=t, return_coupling=True) for t in numbers]
        coupling = torch.cat([each.coupling for each in routed])  # [r, I, J]
        activation = lower.activation.flatten(1)[0]  # [I]
        maps = (activation[:, None] * coupling).unflatten(1, self.map_shape).mean(dim=1)  # [r, H, W, J]
        activity = maps.sum(dim=3)
        strongest = activation.topk(min(N_IN_TREE, len(activation)))
        return Agreement(
            self._said(scores)[0],
            poses[0],
            self._said(torch.cat([each.activation for each in routed])),
            (maps / activity.clamp_min(1e-9)[..., None]).permute(0, 3, 1, 2),
            activity / activity.max().clamp_min(1e-9),
            strongest.indices,
            strongest.values,
            coupling[:, strongest.indices],
        )


def _as_they_are(scores: Tensor) -> Tensor:
    return scores
