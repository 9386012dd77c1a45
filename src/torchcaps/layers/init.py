"""Initial scales of capsule layers.

A capsule of length ½ can still become longer and shorter, and passes gradient best: squash maps
‖s‖ = 1 to ½. So every layer starts with weights for which E‖s‖² = 1, given lower capsules of length
½; then the next layer finds such capsules again, however many are stacked.

For votes û = u W with independent weights of variance σ², E‖û_ij‖² = D σ² ‖u_i‖² = D σ² / 4; before
routing has seen any agreement c_ij = 1/J, so E‖s_j‖² = I · D σ² / (4 J²), which is 1 for
σ = 2 J / √(I D). (For CapsNet's 1152×8 → 10×16 that is 0.147; its authors took 0.1.)
"""

from __future__ import annotations

import math

from torch import Tensor, nn


def routing_std(n_in: int, n_out: int, d_out: int, n_places: int | None = None) -> float:
    """Standard deviation σ of transformation matrices, as derived above.

    Args:
        n_in: I, the lower capsules that one upper capsule sees.
        n_out: J, the upper capsules among which a lower one chooses.
        d_out: D.
        n_places: places of the softmax where that is not J (J + 1 with leaky routing).
    """
    return 2 * (n_places or n_out) / math.sqrt(n_in * d_out)


def truncated_normal_(weight: Tensor, std: float) -> None:
    """Fill in place with a normal distribution of mean 0, cut off at two standard deviations."""
    nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std)
