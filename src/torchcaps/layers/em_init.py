"""Initial values of EM routing, such that about half of the capsules of a layer are active.

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
three layers misread 18 to 21 % of digits, of which it misreads 7 to 8 % now (study/results/checks/em-stacking.json).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from torchcaps.checks import check_positive
from torchcaps.ops import EMSettings

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
