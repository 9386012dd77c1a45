"""The likelihood of parts under a mixture of votes: how stacked capsule auto-encoders let objects explain parts."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from torchcaps.checks import check_beside, check_floating, check_positive, check_shapes, check_tensor
from torchcaps.ops.backends.tracing import has_values
from torchcaps.ops.precision import at_least_float32, without_autocast

#: A smaller weight counts as this: its logarithm stays finite, and so does its gradient in float32.
_LEAST_WEIGHT = 1e-30


class MixtureLikelihood(NamedTuple):
    """What a mixture says of the parts of each image.

    Attributes:
        log_likelihood: of each part, ``[B, M]``.
        responsibility: the share of each component in each part, ``[B, M, C]``. The dummy component, where there is
            one, has what is missing to 1.
    """

    log_likelihood: Tensor
    responsibility: Tensor


def mixture_likelihood(
    x: Tensor, votes: Tensor, weight: Tensor, scale: Tensor, *, dummy: float | None = 0.01
) -> MixtureLikelihood:
    """Measure how likely parts are where votes of objects predict them.

    p(x_m) = (Σ_c w_mc N(x_m | v_mc, s_mc² 1) + δ·δ) / (Σ_c w_mc + δ)

    The dummy component has weight and density δ. It explains parts that no vote predicts, so log p(x_m) cannot fall
    without bound, however far x_m is. Time and memory grow as B·M·C·D.

    Args:
        x: parts, such as numbers of their poses, ``[B, M, D]``.
        votes: v, means of C components for each part, ``[B, M, C, D]``; or ``[B, 1, C, D]`` where all parts have the
            same ones.
        weight: w of the components, not negative, ``[B, M, C]`` or ``[B, 1, C]`` as the votes. It need not sum to 1;
            a weight below 1e-30 counts as 1e-30, and gets no gradient.
        scale: s, positive, ``[B, M, C]`` or ``[B, 1, C]``.
        dummy: δ, or None for no dummy component.

    Returns:
        Log-likelihoods ``[B, M]`` and responsibilities ``[B, M, C]``, computed in float32 at least.

    Raises:
        ValueError: shapes that do not fit, no component, negative weights, scales or a dummy that are not positive
            (numbers of tensors are looked at on the CPU only, and not in compiled code).

    Example:
        >>> import torch
        >>> x, votes = torch.zeros(1, 1, 2), torch.zeros(1, 1, 1, 2)
        >>> one = torch.ones(1, 1, 1)
        >>> got = mixture_likelihood(x, votes, one, one)
        >>> got.log_likelihood  # ln (1 / 2π + 0.0001) − ln 1.01
        tensor([[-1.8472]])
        >>> got.responsibility
        tensor([[[0.9994]]])

    Source: Kosiorek, Sabour, Teh, Hinton 2019, Stacked Capsule Autoencoders, arXiv 1906.06818; the dummy component is
    that of their code.
    """
    if dummy is not None:
        check_positive("dummy", dummy)
    x, votes, weight, scale = _checked(x, votes, weight, scale)
    with without_autocast(x):
        log_weight = weight.clamp_min(_LEAST_WEIGHT).log()
        distance = (((x.unsqueeze(2) - votes) / scale.unsqueeze(3)) ** 2).sum(dim=3)  # [B, M, C]
        density = -0.5 * distance - x.shape[2] * (scale.log() + 0.5 * math.log(2 * math.pi))
        joint, log_weight = log_weight + density, log_weight.expand_as(density)
        if dummy is not None:
            extra = joint.new_full((*joint.shape[:2], 1), math.log(dummy))
            joint, log_weight = torch.cat((joint, 2 * extra), dim=2), torch.cat((log_weight, extra), dim=2)
        log_likelihood = joint.logsumexp(dim=2) - log_weight.logsumexp(dim=2)
        return MixtureLikelihood(log_likelihood, joint.softmax(dim=2)[..., : votes.shape[2]])


def _checked(x: Tensor, votes: Tensor, weight: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    check_tensor("votes", votes)
    shared = "1" if votes.dim() == 4 and votes.shape[1] == 1 else "M"
    sizes = check_shapes(
        x=(x, "B M D"),
        votes=(votes, f"B {shared} C D"),
        weight=(weight, f"B {shared} C"),
        scale=(scale, f"B {shared} C"),
    )
    if not (sizes["C"] and sizes["D"]):
        raise ValueError(f"votes must have a component and a dimension at least, got shape {list(votes.shape)}")
    for name, each in {"x": x, "votes": votes, "weight": weight, "scale": scale}.items():
        check_floating(name, each)
        check_beside(name, each, "x", x)
    for name, each, wrong, wanted in (
        ("weight", weight, weight < 0, "0 or more"),
        ("scale", scale, scale <= 0, "positive"),
    ):
        if has_values(each) and bool(wrong.any()):
            raise ValueError(f"{name} must be {wanted}, got {each.min().item():.3g}")
    return at_least_float32(x), at_least_float32(votes), at_least_float32(weight), at_least_float32(scale)
