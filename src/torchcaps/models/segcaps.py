"""SegCaps: capsules that segment images (LaLonde, Bagci 2018)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchcaps.checks import check_at_least, check_flag, check_list
from torchcaps.layers import ConvVoteCaps, DeconvVoteCaps, PrimaryCaps, Standardize
from torchcaps.layers.convolution import ReLUConv2d
from torchcaps.layers.init import reset_layers
from torchcaps.layers.pixel_decoder import PixelDecoder
from torchcaps.layers.routing import Routing
from torchcaps.layers.shapes import as_image_shape, check_feature_map, same_padding
from torchcaps.types import SegmentationOutput

#: Three layers halve the map, and three double it.
_FACTOR = 8


class SegCaps(nn.Module):
    """Capsules in the form of a U-Net: down to an eighth of the size, and up again, with three skip connections.

    A convolution → primary capsules → five layers of :class:`~torchcaps.layers.ConvVoteCaps`, two of which halve the
    map → three of :class:`~torchcaps.layers.DeconvVoteCaps`, with one more of the former behind each of the first two →
    class capsules of every pixel. Skip connections put the types of two maps side by side. The last one takes the
    features of the first convolution as one type.

    Args:
        image_shape: (channels, height, width). The network takes images of any other height and width, too. Zeros fill
            them up, right and below, to multiples of 8.
        n_classes: class types J, each with a mask of its own. Background needs none: 1 for foreground against
            background, as in the paper.
        n_types: types of capsule at half, a quarter and an eighth of the size.
        d_pose: pose sizes of the upper, the middle and the lowest part; the first is also the channels of the first
            convolution.
        d_class: pose size of the class capsules.
        kernel_size: of all convolutions but the transposed ones, which have 4, and that of the classes, which has 1.
        routing: of all layers behind the primary capsules, "dynamic" or a :class:`~torchcaps.layers.DynamicRouting`.
        decoder: widths of the hidden layers of the reconstruction, or None.
        standardize: bring each image to zero mean and unit variance first.

    Attributes:
        decoder: a :class:`~torchcaps.layers.PixelDecoder`, or None. It is for you to call, with ``output.capsules[-1]``
            and the true masks: ``forward`` does not reconstruct.

    Raises:
        ValueError: sizes below 1, another routing.

    Example:
        >>> import torch
        >>> model = SegCaps((1, 32, 24), decoder=None)
        >>> sum(p.numel() for p in model.parameters())
        1416112
        >>> model(torch.rand(2, 1, 32, 24)).scores.shape
        torch.Size([2, 1, 32, 24])

    Source: LaLonde, Bagci 2018, Capsules for Object Segmentation, arXiv 1804.04241, and its code (SegCaps R3).
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int] = (1, 512, 512),
        n_classes: int = 1,
        *,
        n_types: Sequence[int] = (2, 4, 8),
        d_pose: Sequence[int] = (16, 32, 64),
        d_class: int = 16,
        kernel_size: int = 5,
        routing: Routing | str = "dynamic",
        decoder: Sequence[int] | None = (64, 128),
        standardize: bool = False,
    ) -> None:
        super().__init__()
        for name, value in {"n_classes": n_classes, "d_class": d_class, "kernel_size": kernel_size}.items():
            check_at_least(name, value, 1)
        for name, values in {"n_types": n_types, "d_pose": d_pose}.items():
            check_list(name, values)
            if len(values) != 3:
                raise ValueError(f"{name} must list three sizes, got {values!r}")
        check_flag("standardize", standardize)
        if decoder is not None:
            check_list("decoder", decoder)
        self.image_shape, self.n_classes = as_image_shape(image_shape), n_classes
        self.standardize = Standardize() if standardize else nn.Identity()
        self.kernel_size = kernel_size
        (t1, t2, t3), (d1, d2, d3) = n_types, d_pose
        channels = self.image_shape[0]
        self.conv = ReLUConv2d(channels, d1, kernel_size)
        mean_square = 1.0 if standardize else 0.2  # as a convolution makes of MNIST
        self.primary = PrimaryCaps(d1, t1, d1, kernel_size, stride=2, mean_square=mean_square)

        def conv(n_in: int, n_out: int, d_in: int, d_out: int, kernel: int, stride: int = 1) -> ConvVoteCaps:
            return ConvVoteCaps(n_in, n_out, d_in, d_out, kernel, stride=stride, padding="same", routing=routing)

        def deconv(n_in: int, n_out: int, d_in: int, d_out: int) -> DeconvVoteCaps:
            return DeconvVoteCaps(n_in, n_out, d_in, d_out, 4, routing=routing)

        self.down = nn.ModuleList(
            (
                conv(t1, t2, d1, d1, kernel_size),
                conv(t2, t2, d1, d2, kernel_size, 2),
                conv(t2, t3, d2, d2, kernel_size),
                conv(t3, t3, d2, d3, kernel_size, 2),
                conv(t3, t3, d3, d2, kernel_size),
            )
        )
        self.up = nn.ModuleList((deconv(t3, t3, d2, d2), deconv(t2, t2, d2, d1), deconv(t2, t1, d1, d1)))
        self.joined = nn.ModuleList((conv(2 * t3, t2, d2, d2, kernel_size), conv(2 * t2, t2, d1, d1, kernel_size)))
        self.classes = conv(t1 + 1, n_classes, d1, d_class, 1)
        self.decoder = None if decoder is None else PixelDecoder(n_classes, d_class, channels, decoder)

    def reset_parameters(self) -> None:
        """Draw the initial values anew, in place: to train again, or after :meth:`torch.nn.Module.to_empty`."""
        reset_layers(self)

    def forward(self, x: Tensor, *, n_iters: int | None = None, return_coupling: bool = False) -> SegmentationOutput:
        """Find the classes of every pixel.

        Args:
            x: ``[B, C, H, W]``, values 0 … 1.
            n_iters: another number of iterations in all routed layers.
            return_coupling: keep the couplings of all routed layers.

        Returns:
            Scores: the class capsules' lengths ``[B, J, H, W]``.

        Raises:
            ValueError: images of another number of channels, or no floats.
        """
        check_feature_map(x, self.image_shape[0])
        height, width = x.shape[2:]
        options: dict[str, Any] = {"n_iters": n_iters, "return_coupling": return_coupling}
        filled = F.pad(self.standardize(x), (0, -width % _FACTOR, 0, -height % _FACTOR))
        features = self.conv(self._pad(filled, 1)).relu()
        down = [self.primary(self._pad(features, 2))]
        for layer in self.down:
            down.append(layer(down[-1], **options))
        up = [self.up[0](down[5], **options)]
        up.append(self.joined[0](_side_by_side(up[-1].pose, down[3].pose), **options))
        up.append(self.up[1](up[-1], **options))
        up.append(self.joined[1](_side_by_side(up[-1].pose, down[1].pose), **options))
        up.append(self.up[2](up[-1], **options))
        one_type = features.movedim(1, 3).unsqueeze(1)  # [B, 1, H, W, d]
        of_pixels = _side_by_side(up[-1].pose, one_type)[:, :, :height, :width]
        classes = self.classes(of_pixels, **options)
        return SegmentationOutput(classes.activation, (*down, *up, classes))

    def _pad(self, x: Tensor, stride: int) -> Tensor:
        edges = [same_padding(extent, self.kernel_size, stride) for extent in (x.shape[3], x.shape[2])]
        return F.pad(x, (*edges[0], *edges[1]))


def _side_by_side(upper: Tensor, skipped: Tensor) -> Tensor:
    """Join the types of two maps of poses."""
    return torch.cat((upper, skipped.to(upper.dtype)), dim=1)


def segcaps(image_shape: tuple[int, int, int] = (1, 512, 512), n_classes: int = 1, **options: Any) -> SegCaps:
    """Build SegCaps R3 of the paper: 1,416,112 parameters for one channel, 1,425,649 with the reconstruction."""
    return SegCaps(image_shape, n_classes, **options)


def segcaps_small(image_shape: tuple[int, int, int] = (1, 32, 32), n_classes: int = 1, **options: Any) -> SegCaps:
    """Build a SegCaps for small images and CPUs, with narrower layers, 3×3 kernels and no reconstruction."""
    small = {"n_types": (2, 4, 4), "d_pose": (8, 8, 16), "d_class": 8, "kernel_size": 3, "decoder": None}
    return SegCaps(image_shape, n_classes, **{**small, **options})
