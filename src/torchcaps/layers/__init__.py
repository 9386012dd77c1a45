"""Modules that own parameters and call one operation. Capsules go in, capsules come out.

Every capsule layer takes the :class:`~torchcaps.ops.Capsules` of the layer before it (or a tensor of
poses) and returns a ``Capsules``, so that layers stack in a ``torch.nn.Sequential``.
"""

from torchcaps.layers.class_caps import ClassCaps
from torchcaps.layers.concurrent import route_concurrently
from torchcaps.layers.conv import ConvCaps
from torchcaps.layers.conv_votes import ConvVoteCaps, DeconvVoteCaps
from torchcaps.layers.convolution import Conv2d, Standardize
from torchcaps.layers.decoder import Decoder
from torchcaps.layers.dense import DenseCaps
from torchcaps.layers.depthwise import DepthwisePrimaryCaps
from torchcaps.layers.pixel_decoder import PixelDecoder
from torchcaps.layers.primary import MatrixPrimaryCaps, PrimaryCaps
from torchcaps.layers.routing import Init, Part, Routing, Sizes
from torchcaps.layers.routings import (
    ROUTINGS,
    AttentionRouting,
    DegreeRouting,
    DynamicRouting,
    ElementwiseRouting,
    EMRouting,
    HeinsenMatrixRouting,
    HeinsenVectorRouting,
    InvertedAttentionRouting,
    RandomRouting,
    SelfAttentionRouting,
    SelfRouting,
    UniformRouting,
    VariationalBayesRouting,
)

__all__ = [
    "ROUTINGS",
    "AttentionRouting",
    "ClassCaps",
    "Conv2d",
    "ConvCaps",
    "ConvVoteCaps",
    "Decoder",
    "DeconvVoteCaps",
    "DegreeRouting",
    "DenseCaps",
    "DepthwisePrimaryCaps",
    "DynamicRouting",
    "EMRouting",
    "ElementwiseRouting",
    "HeinsenMatrixRouting",
    "HeinsenVectorRouting",
    "Init",
    "InvertedAttentionRouting",
    "MatrixPrimaryCaps",
    "Part",
    "PixelDecoder",
    "PrimaryCaps",
    "RandomRouting",
    "Routing",
    "SelfAttentionRouting",
    "SelfRouting",
    "Sizes",
    "Standardize",
    "UniformRouting",
    "VariationalBayesRouting",
    "route_concurrently",
]
