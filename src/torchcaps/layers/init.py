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

Initial values of EM routing, such that about half of the capsules of a layer are active.

That is what the paper's authors asked for (on OpenReview); an activation being a probability, it is the mean that is
to be a half. A capsule is active where its votes' variances lie below a threshold that β_u sets: the logit of its
activation is 0 where the mean of log σ² is −2 β_u · beta_u_scale / cost_scale, with β_a = 0. So β_u is derived from
the variance that votes have at first.

Poses of deviation p, times independent weights of deviation w, make votes of deviation v = w √d p, d = 4 for
matrices. Routing draws each capsule to votes that lie close together, which lessens log σ²; and the mean of n
effective votes has a deviation of v / √n. How far depends on the data; the numbers below are to be judged by what
comes of them on small NORB: in nets of two sizes, three seeds each, with the released
constants every layer's mean activation lies between 0.38 and 0.65, where the released values give the routed layers
0.03 to 0.27 with their own settings. To all that the settings add their variance floor. Far from there fewer are active
at first: with the paper's settings in the layer of classes, whose undamped mass makes much of how far routing narrows
the votes (a quarter and less, in the same nets), with classes of whole maps of 96×96 images, or with one or two
classes. ``beta_u_init`` sets that.

The scale of the weights is free, then: v = 0.6 p comes of the width 0.3 that the released code names, for matrices
(whose normals, cut at two widths, have a deviation of 0.26).

Poses shrink from layer to layer, as a mean of n votes spreads less than they do: on small NORB eight- to twelve-fold in
the paper's small network, and up to twenty-two-fold in its large one. So the variance floor of settings that go by
their name, and the pixels that count as 1 in class capsules, follow the poses below: where they stayed, a stack of
three layers misclassified 18 to 21 % of digits, of which it misclassifies 7 to 8 % now.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchcaps.checks import as_number, check_at_least, check_positive
from torchcaps.ops import EMSettings


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

    Raises:
        ValueError: inputs that come to nothing, or no size.
    """
    check_positive("reach", reach)
    check_at_least("d_out", d_out, 1)
    return 2.0 ** min(0, round(math.log2(_MOVE / (_RATE * reach * math.sqrt(d_out)))))


def votes_reach(n_in: int, n_out: int, d_in: int) -> float:
    """Σ|x_n| of the votes for one of ``n_out`` capsules, under even couplings and lower lengths of ½."""
    return n_in / n_out * math.sqrt(d_in / (2 * math.pi))


class Scaled(nn.Module):
    """A layer whose weighted sum has a fixed factor, which is kept with its weights.

    The factor is a buffer: what was trained with another one computes what it did, wherever it is loaded. Files of
    versions that kept none were made with a factor of 1, unless the layer is given another.
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
        """Return the factor for ``extra_repr``, as it is now."""
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
    std = as_number(name, std)
    if math.isinf(std):
        raise ValueError(f"{name} must be finite, got {std}")
    nn.init.trunc_normal_(weight, std=std / LEFT, a=-2 * std / LEFT, b=2 * std / LEFT)


#: v / p; n as a share of the children; how far routing takes log σ² below that of all votes.
_VOTES = 0.6
_EFFECTIVE = 0.22
_NARROWED = {"convolution": 0.9, "classes": 0.7}


class EMInit(NamedTuple):
    """Initial values of a layer.

    Attributes:
        weight_std: standard deviation of the transformation matrices.
        beta_u: β_u; β_a is 0.
        pose_scale: deviation of the poses that come out, for the next layer.
    """

    weight_std: float
    beta_u: float
    pose_scale: float


def em_init(n_children: int, inner: int, pose_scale: float, settings: EMSettings) -> EMInit:
    """Initial values, as found above.

    Args:
        n_children: lower capsules that an upper one sees, at all places.
        inner: d, terms in each component of a vote: 4 for matrices, d_in for vectors.
        pose_scale: deviation of the lower capsules' poses.
        settings: of the routing.

    Raises:
        ValueError: ``pose_scale`` is not positive.
    """
    check_positive("pose_scale", pose_scale)
    weight_std = _VOTES / math.sqrt(inner)
    votes = _VOTES * pose_scale
    narrowed = _NARROWED["classes" if settings.compete == "all" else "convolution"]
    log_variance = math.log(votes**2 * math.exp(-narrowed) + settings.variance_floor)
    scale = settings.beta_u_scale  # of 0 there is nothing to choose
    beta_u = 0.0 if scale == 0 else -settings.cost_scale * log_variance / (2 * scale)
    return EMInit(weight_std, beta_u, votes * (1 - settings.damping) / math.sqrt(_EFFECTIVE * n_children))
