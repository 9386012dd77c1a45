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

With many upper capsules they start shorter. Routing may give one of them J times as much as even couplings would, and
does so suddenly: of lower capsules of length 1 instead of ½, 100 upper ones at a factor of 0.86 had a length of 0.96
instead of 0.44 before any training. And J classes of length ½ make a loss of J · 0.08, beside which the true class's
0.16 is nothing. The factor 1.25 · √(16 / J) above J = 16 keeps the mean length below 0.93 for lower capsules of any
length up to 1, and below 0.45 for ½ (I = 72, 288 and 1152, J from 2 to 1,000, D = 16).

**What a step does.** Adam moves every weight by about the learning rate η, however small its gradient. In the first
steps images agree on most signs: a weighted sum s_e = m Σ_n x_n w_ne then moves by m η Σ|x_n| in each of its D
components, all at once, so

    ‖Δs‖ = m η √D Σ|x_n|.

With the paper's m = 1 and η = 1e-3 that is 15 in the primary capsules of CapsNet, where Σ|x_n| runs over 81 places and
256 channels: squash maps it to 0.996, for all capsules and all images alike, and its gradient is gone. Smaller initial
weights do not help, as the step does not know them. A factor m does: with weights larger by 1/m the function is the
same at first, and steps are m times as large. :func:`step_scale` takes the m for which ‖Δs‖ is about a half, as a
power of two, so that multiplication rounds nothing. For primary capsules Σ|x_n| = n √(mean_square / π) of rectified
features. For routed ones with even couplings and lower lengths of ½ it is (I / J) · ½ √(2 d_in / π), which is too
large where many capsules vote for few: on large images, and with two classes.
"""

from __future__ import annotations

import math
from typing import Any

import torch
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
    return 1.25 * min(1, math.sqrt(16 / places)) * places / math.sqrt(n_in * d_out)


#: Learning rate that steps are foreseen for, and how far a weighted sum may move in one: squash maps 1 to ½.
_RATE, _MOVE = 1e-3, 0.5


def step_scale(reach: float, d_out: int) -> float:
    """Factor m on a weighted sum for which Adam's first steps do not saturate squash, as found above.

    Args:
        reach: Σ|x_n|, what the sum's inputs come to.
        d_out: D.

    Returns:
        A power of two, at most 1.
    """
    return 2.0 ** min(0, round(math.log2(_MOVE / (_RATE * reach * math.sqrt(d_out)))))


def votes_reach(n_in: int, n_out: int, d_in: int) -> float:
    """Σ|x_n| of the votes for one of ``n_out`` capsules, under even couplings and lower lengths of ½."""
    return n_in / n_out * math.sqrt(d_in / (2 * math.pi))


class Scaled(nn.Module):
    """A layer whose weighted sum has a fixed factor, which is kept with its weights.

    The factor is a buffer: what was trained with another one computes what it did, wherever it is loaded. Files of
    versions that kept none were made with a factor of 1, unless the layer is told another.
    """

    scale: Tensor

    def make_scale(self, scale: float, *, given: bool) -> None:
        """Have the factor ``scale``, which the user has ``given``, or which follows from the layer's sizes."""
        self._scale = float(scale)
        self._scale_of_old = self._scale if given else 1.0
        self.register_buffer("scale", torch.empty(()))

    def reset_scale(self) -> None:
        """Give the factor its first value again."""
        self.scale.fill_(self._scale)

    def scale_repr(self) -> str:
        """The factor for ``extra_repr``, as it is now."""
        return f"{self._scale if self.scale.is_meta else self.scale.item():.4g}"

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        if "scale" in self._buffers:
            state_dict.setdefault(f"{prefix}scale", torch.tensor(self._scale_of_old))
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


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
