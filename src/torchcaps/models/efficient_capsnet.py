"""Efficient-CapsNet: few capsules behind four convolutions (Mazzia, Salvetti, Chiaberge 2021)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from torchcaps.checks import check_at_least, check_choice, check_flag, check_list
from torchcaps.layers import Decoder, DenseCaps, DepthwisePrimaryCaps, Standardize
from torchcaps.layers.convolution import ReLUConv2d
from torchcaps.layers.init import reset_layers
from torchcaps.layers.routing import Routing
from torchcaps.layers.routings import as_routing
from torchcaps.layers.shapes import as_image_shape, conv_size, image_too_small, require_images
from torchcaps.types import ModelOutput

_CHANNELS = (32, 64, 64, 128)
#: Keras' ε of both normalizations, and how much of its moving averages a batch replaces.
_EPS, _MOMENTUM = 1e-3, 0.01


@dataclass(frozen=True)
class Trunk:
    """Describe what stands before the class capsules, which the authors chose for each data set.

    Attributes:
        kernels: of the four convolutions.
        strides: of the four convolutions.
        normalize: "batch" or "instance".
        slope: of the ReLU below 0.
        primary: kernel and stride of the primary capsules; None for one kernel of the whole map.
    """

    kernels: tuple[int, int, int, int]
    strides: tuple[int, int, int, int]
    normalize: str = "batch"
    slope: float = 0.0
    primary: tuple[int, int] | None = None


TRUNKS = {
    "mnist": Trunk((5, 3, 3, 3), (1, 1, 1, 2)),
    "multimnist": Trunk((5, 3, 3, 3), (1, 1, 2, 2), primary=(5, 2)),
    "smallnorb": Trunk((7, 3, 3, 3), (2, 1, 1, 2), normalize="instance", slope=0.3),
}


class _InstanceNorm(nn.GroupNorm):
    """Instance normalization whose scale and shift start near 0, as the authors have it (Keras' random uniform).

    Groups of one channel are the same thing, and torch normalizes no empty batch by ``InstanceNorm2d``.
    """

    def __init__(self, channels: int) -> None:
        super().__init__(channels, channels, _EPS)

    def reset_parameters(self) -> None:
        """Draw scale and shift anew, in place."""
        nn.init.uniform_(self.weight, -0.05, 0.05)
        nn.init.uniform_(self.bias, -0.05, 0.05)


class EfficientCapsNet(nn.Module):
    """Four convolutions → 16 primary capsules → class capsules → decoder.

    Each number of a primary capsule is a weighted sum over one channel of the last map. Behind each
    convolution stands a ReLU, then a normalization.

    Args:
        image_shape: (channels, height, width). The authors have (1, 28, 28), (2, 48, 48) of small NORB and (1, 36, 36)
            of overlapping digits.
        n_classes: class capsules.
        trunk: whose sizes and normalization, "mnist", "smallnorb" or "multimnist".
        d_primary: pose size of the primary capsules; 128 / d_primary of them stand at each place.
        d_class: pose size of the class capsules.
        routing: of the class capsules, as :class:`~torchcaps.layers.DenseCaps` has it.
        decoder: widths of the decoder's hidden layers, or None. (For small NORB the authors have one of convolutions,
            which is not here.)
        standardize: bring each image to zero mean and unit variance first.

    Attributes:
        decoder: a :class:`~torchcaps.layers.Decoder`, or None. It is for you to call: ``forward`` does not reconstruct.

    Raises:
        ValueError: an unknown trunk, sizes that do not fit, images that are too small.

    Example:
        >>> import torch
        >>> model = EfficientCapsNet((1, 28, 28), 10, decoder=None)
        >>> sum(p.numel() for p in model.parameters())
        161824
        >>> model(torch.rand(2, 1, 28, 28)).scores.shape
        torch.Size([2, 10])

    Source: Mazzia, Salvetti, Chiaberge 2021, Scientific Reports 11, arXiv 2101.12491, and its code.
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int] = (1, 28, 28),
        n_classes: int = 10,
        *,
        trunk: str = "mnist",
        d_primary: int = 8,
        d_class: int = 16,
        routing: Routing | str = "self_attention",
        decoder: Sequence[int] | None = (512, 1024),
        standardize: bool = False,
    ) -> None:
        super().__init__()
        for name, value in {"n_classes": n_classes, "d_primary": d_primary, "d_class": d_class}.items():
            check_at_least(name, value, 1)
        if decoder is not None:
            check_list("decoder", decoder)
        check_choice("trunk", trunk, TRUNKS)
        check_flag("standardize", standardize)
        routing = as_routing(routing)
        if routing.pose_scale != 1.0:
            raise ValueError(f"pose_scale must be left to the layers, each has its own; got {routing.pose_scale}")
        self.image_shape, self.n_classes = as_image_shape(image_shape), n_classes
        self.standardize = Standardize() if standardize else nn.Identity()
        chosen = TRUNKS[trunk]
        self.slope = chosen.slope
        self.convs, self.norms, size = self._build_trunk(chosen)
        kernel, stride = chosen.primary or (size, 1)
        self.primary = DepthwisePrimaryCaps(_CHANNELS[-1], d_primary, kernel, stride=stride)
        with image_too_small(self.image_shape):
            size = self.primary.output_size(*size)
        self.map_shape = (self.primary.n_types, *size)  #: (T, H, W) of the capsules below the class capsules
        n_lower = self.primary.n_types * size[0] * size[1]
        routing = routing.above(self.primary.pose_scale)
        self.classes = DenseCaps(n_lower, n_classes, d_primary, d_class, routing=routing)
        self.decoder = None
        if decoder is not None:
            pose_scale = 1.0 if self.classes.routing.squashes else self.classes.pose_scale
            self.decoder = Decoder(n_classes, d_class, self.image_shape, tuple(decoder), pose_scale=pose_scale)

    def _build_trunk(self, trunk: Trunk) -> tuple[nn.ModuleList, nn.ModuleList, tuple[int, int]]:
        """Build convolutions and normalizations; return the size of the last map, too."""
        convs, norms = nn.ModuleList(), nn.ModuleList()
        below, size = self.image_shape[0], self.image_shape[1:]
        for channels, kernel, stride in zip(_CHANNELS, trunk.kernels, trunk.strides, strict=True):
            convs.append(ReLUConv2d(below, channels, kernel, stride))
            batch = trunk.normalize == "batch"
            norms.append(nn.BatchNorm2d(channels, _EPS, _MOMENTUM) if batch else _InstanceNorm(channels))
            with image_too_small(self.image_shape):
                size = conv_size(size, kernel, stride)
                if not batch and size == (1, 1):
                    raise ValueError("instance normalization needs maps of more than one place")
            below = channels
        return convs, norms, size

    def reset_parameters(self) -> None:
        """Draw the initial values anew, in place: to train again, or after :meth:`torch.nn.Module.to_empty`."""
        reset_layers(self)

    def forward(self, x: Tensor, *, n_iters: int | None = None, return_coupling: bool = False) -> ModelOutput:
        """Find the classes in images.

        Args:
            x: ``[B, C, H, W]``, values 0 … 1.
            n_iters: another number of iterations, for routings that iterate.
            return_coupling: keep the couplings of the class capsules.

        Returns:
            Scores: the class capsules' activations ``[B, J]``.

        Raises:
            ValueError: images of another shape than the model was made for, or no floats.
        """
        require_images(x, self.image_shape)
        x = self.standardize(x)
        for convolution, norm in zip(self.convs, self.norms, strict=True):
            x = norm(F.leaky_relu(convolution(x), self.slope))
        lower = self.primary(x)
        upper = self.classes(lower, n_iters=n_iters, return_coupling=return_coupling)
        return ModelOutput(upper.activation, (lower, upper))


def efficient_capsnet(
    image_shape: tuple[int, int, int] = (1, 28, 28), n_classes: int = 10, **options: Any
) -> EfficientCapsNet:
    """Build Efficient-CapsNet: 161,824 parameters on MNIST without the decoder, which has 1.4 M."""
    return EfficientCapsNet(image_shape, n_classes, **options)
