"""Initial scales of capsule layers.

A capsule of length ½ can still become longer and shorter, and passes gradient best: squash maps
‖s‖ = 1 to ½. So every layer starts with weights that make such capsules out of such capsules, however
many are stacked.

For votes û = u W with independent weights of variance σ², E‖û_ij‖² = D σ² ‖u_i‖² = D σ² / 4; with even
couplings c_ij = 1/J, E‖s_j‖² = I · D σ² / (4 J²), which is 1 for σ = 2 J / √(I D). Routing then lengthens
what agrees. Measured on MNIST with three iterations, through one, two and three routed layers, the factor
that keeps mean lengths between 0.3 and 0.6 in every layer is 1.25 instead of 2 (at 1 they die out: 0.05
after three layers; at 2 they saturate: 0.97). For CapsNet's 1152×8 → 10×16 that is σ = 0.092; its authors
took 0.088.

The more upper capsules, the less of that they can have: routing may then give one of them J times as much as even
couplings would. Random capsules of length ½ (I = 288 and 1152, D = 16) become capsules of mean length 0.45 at factors
of 1.25, 1.02, 0.86 and 0.72 for J = 20, 50, 100 and 200: it falls as (16 / J)^0.2 above 16.
"""

from __future__ import annotations

import math

from torch import Tensor, nn

from torchcaps.checks import check_positive


def routing_std(n_in: int, n_out: int, d_out: int, n_places: int | None = None) -> float:
    """Standard deviation σ of transformation matrices, as found above.

    Args:
        n_in: I, the lower capsules that one upper capsule sees.
        n_out: J, the upper capsules among which a lower one chooses.
        d_out: D.
        n_places: places of the softmax where that is not J (J + 1 with leaky routing).
    """
    places = n_places or n_out
    return 1.25 * min(1, (16 / places) ** 0.2) * places / math.sqrt(n_in * d_out)


def reset_layers(model: nn.Module) -> None:
    """Let all that a module consists of draw its initial values anew, inner modules first."""
    for child in model.children():
        child.apply(_reset)


def _reset(module: nn.Module) -> None:
    if callable(reset := getattr(module, "reset_parameters", None)):
        reset()


#: Standard deviation of what is left of a standard normal cut off at ±2.
LEFT = 0.87962566103423978


def truncated_normal_(weight: Tensor, std: float, name: str = "weight_std") -> None:
    """Fill in place with a normal distribution cut off at its doubled width, of standard deviation ``std``.

    (TensorFlow's truncated normal, which the papers' authors used, names the width before the cut: their
    0.1 is 0.088 here.)

    Raises:
        ValueError: ``std``, which users know by this ``name``, is not positive and finite.
    """
    check_positive(name, std)
    if math.isinf(std):
        raise ValueError(f"{name} must be finite, got {std}")
    nn.init.trunc_normal_(weight, std=std / LEFT, a=-2 * std / LEFT, b=2 * std / LEFT)
