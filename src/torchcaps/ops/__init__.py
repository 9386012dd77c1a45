"""The mathematics: functions on tensors. No modules, no parameters, no files.

One legend of axes holds everywhere: B batch, I lower capsules, J upper capsules, D (d_in, d_out)
pose size, H W height and width, T types of capsule in a map.
"""

from torchcaps.ops.affine import AffineParts, affine_inverse, affine_matrix, affine_parts, transform_pose, warp
from torchcaps.ops.attention.routing import attention_routing
from torchcaps.ops.backends.dispatch import which_backend
from torchcaps.ops.conv import conv2d
from torchcaps.ops.degree.routing import degree_routing
from torchcaps.ops.dynamic.locally_constrained import locally_constrained_routing
from torchcaps.ops.dynamic.over_map import dynamic_routing_3d
from torchcaps.ops.dynamic.routing import dynamic_routing, dynamic_routing_from_votes
from torchcaps.ops.em.routing import conv_em_routing, em_routing, em_routing_from_votes
from torchcaps.ops.em.settings import EM_SETTINGS, EMSettings
from torchcaps.ops.fixed.elementwise import elementwise_sum
from torchcaps.ops.fixed.routing import fixed_routing
from torchcaps.ops.heinsen_matrix.routing import heinsen_matrix_routing
from torchcaps.ops.heinsen_vector.routing import heinsen_vector_routing
from torchcaps.ops.inverted_attention.routing import inverted_attention_routing
from torchcaps.ops.losses import margin_loss, mask_capsules, pose_loss, reconstruction_loss, spread_loss, spread_margin
from torchcaps.ops.mixture import MixtureLikelihood, mixture_likelihood
from torchcaps.ops.segmentation import dice_loss, dice_score, pixel_margin_loss, weighted_cross_entropy
from torchcaps.ops.self_attention.routing import self_attention_routing
from torchcaps.ops.self_routing.routing import self_routing
from torchcaps.ops.squash import exponential_squash, safe_norm, squash
from torchcaps.ops.variational_bayes.routing import (
    conv_variational_bayes_routing,
    variational_bayes_routing,
    variational_bayes_routing_from_votes,
)
from torchcaps.ops.votes import coordinate_offset, dense_votes, matrix_votes, receptive_fields
from torchcaps.types import Capsules

__all__ = [
    "EM_SETTINGS",
    "AffineParts",
    "Capsules",
    "EMSettings",
    "MixtureLikelihood",
    "affine_inverse",
    "affine_matrix",
    "affine_parts",
    "attention_routing",
    "conv2d",
    "conv_em_routing",
    "conv_variational_bayes_routing",
    "coordinate_offset",
    "degree_routing",
    "dense_votes",
    "dice_loss",
    "dice_score",
    "dynamic_routing",
    "dynamic_routing_3d",
    "dynamic_routing_from_votes",
    "elementwise_sum",
    "em_routing",
    "em_routing_from_votes",
    "exponential_squash",
    "fixed_routing",
    "heinsen_matrix_routing",
    "heinsen_vector_routing",
    "inverted_attention_routing",
    "locally_constrained_routing",
    "margin_loss",
    "mask_capsules",
    "matrix_votes",
    "mixture_likelihood",
    "pixel_margin_loss",
    "pose_loss",
    "receptive_fields",
    "reconstruction_loss",
    "safe_norm",
    "self_attention_routing",
    "self_routing",
    "spread_loss",
    "spread_margin",
    "squash",
    "transform_pose",
    "variational_bayes_routing",
    "variational_bayes_routing_from_votes",
    "warp",
    "weighted_cross_entropy",
    "which_backend",
]
