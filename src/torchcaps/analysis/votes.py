"""The votes for one class capsule, and what each iteration of EM routing makes of them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchcaps.analysis.needs import capsnet, em_classes_of, observing
from torchcaps.analysis.plane import Plane, principal_plane
from torchcaps.checks import check_at_least, check_choice, check_shapes
from torchcaps.ops import matrix_votes


class Votes(NamedTuple):
    """I votes for one class in one image, routed for 1 … r iterations.

    Attributes:
        votes: V_i, as vectors, ``[I, D]``; they are the same in every iteration.
        activation: of the capsules that cast them, ``[I]``.
        coupling: R_i that each iteration's M-step takes, ``[r, I]``.
        mean: the class capsule's pose after each iteration, ``[r, D]``.
        variance: of the votes about it, weighted by R_i a_i (without the floor that routing adds), ``[r, D]``.
        scores: the class capsule's activation after each iteration, ``[r]``.
    """

    votes: Tensor
    activation: Tensor
    coupling: Tensor
    mean: Tensor
    variance: Tensor
    scores: Tensor

    def plane(self) -> Plane:
        """The plane in which the votes that the class took in the end differ most."""
        return principal_plane(self.votes, self.coupling[-1] * self.activation)


@observing
def class_votes(model: nn.Module, image: Tensor, label: int, n_iters: int | None = None) -> Votes:
    """Watch EM routing fit a class capsule to the votes for it.

    Args:
        model: a MatrixCapsNet whose class capsules are routed by EM.
        image: ``[C, H, W]``, values 0 … 1.
        label: the class.
        n_iters: iterations r of the class capsules to look at, by default as many as they have; the layers below keep
            their own.

    Returns:
        :class:`Votes`.

    Raises:
        ValueError: the model routes otherwise, the image does not fit it, there is no such class, or
            ``n_iters`` is below 1.

    Source: Hinton, Sabour, Frosst 2018, section 3.
    """
    classes = em_classes_of(model)
    n_iters = classes.n_iters if n_iters is None else n_iters
    check_at_least("n_iters", n_iters, 1)
    check_shapes(image=(image, "C H W"))
    check_choice("label", label, range(classes.n_out))
    lower = capsnet(model)(image.unsqueeze(0)).capsules[-2]
    votes = votes_for_classes(model, lower.pose)[0, :, label]  # [I, D]
    activation = lower.activation.flatten()
    steps = [classes(lower, n_iters=t, return_coupling=True) for t in range(1, n_iters + 1)]
    coupling = torch.stack([step.coupling[0, :, label] for step in steps])  # [r, I]
    mean = torch.stack([step.pose[0, label].flatten() for step in steps])  # [r, D]
    weight = coupling * activation
    weight = weight / weight.sum(dim=1, keepdim=True).clamp_min(1e-12)
    variance = torch.einsum("ri,rid->rd", weight, (votes - mean[:, None]).square())
    scores = torch.stack([step.activation[0, label] for step in steps])
    return Votes(votes, activation, coupling, mean, variance, scores)


def votes_for_classes(model: nn.Module, pose: Tensor) -> Tensor:
    """Votes of the map below the class capsules, with the coordinates that are added.

    Args:
        model: a MatrixCapsNet whose class capsules are routed by EM.
        pose: of the map, ``[B, T, H, W, 4, 4]`` or ``[B, T, H, W, D]``.

    Returns:
        V_ij as vectors, ``[B, I, J, D]`` with I = T·H·W.

    Raises:
        ValueError: the model routes otherwise.
    """
    classes = em_classes_of(model)
    assert isinstance(classes.weight, Tensor)
    height, width = pose.shape[2:4]
    weight = classes.weight.repeat_interleave(height * width, dim=0)  # [I, J, ...]
    matrices = pose.flatten(1, 3) if pose.dim() == 6 else pose.flatten(1, 3).unsqueeze(-2)
    votes = matrix_votes(matrices, weight).flatten(3)
    offset = classes.offset(height, width)
    return votes if offset is None else votes + offset.to(votes)[:, None]
