"""Modules that own parameters and call one operation. Capsules go in, capsules come out.

Every capsule layer takes the :class:`~torchcaps.ops.Routed` of the layer before it (or a tensor of
poses) and returns a ``Routed``, so that layers stack in a ``torch.nn.Sequential``.
"""

from torchcaps.layers.conv import ConvCaps
from torchcaps.layers.decoder import Decoder
from torchcaps.layers.dense import DenseCaps
from torchcaps.layers.primary import PrimaryCaps

__all__ = ["ConvCaps", "Decoder", "DenseCaps", "PrimaryCaps"]
