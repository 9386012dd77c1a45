"""The mathematics: functions on tensors. No modules, no parameters, no files.

One legend of axes holds everywhere: B batch, I lower capsules, J upper capsules, D (d_in, d_out)
pose size, H W height and width, T types of capsule in a map.
"""

from torchcaps.ops.conv import conv2d
from torchcaps.ops.dynamic import dynamic_routing, dynamic_routing_from_votes
from torchcaps.ops.fused import which_impl
from torchcaps.ops.losses import margin_loss, reconstruction_loss
from torchcaps.ops.mask import mask_capsules
from torchcaps.ops.routed import Routed
from torchcaps.ops.squash import safe_norm, squash
from torchcaps.ops.votes import dense_votes, receptive_fields

#: Every routing, by the name under which layers take it.
ROUTINGS = {"dynamic": dynamic_routing}

__all__ = [
    "ROUTINGS",
    "Routed",
    "conv2d",
    "dense_votes",
    "dynamic_routing",
    "dynamic_routing_from_votes",
    "margin_loss",
    "mask_capsules",
    "receptive_fields",
    "reconstruction_loss",
    "safe_norm",
    "squash",
    "which_impl",
]
