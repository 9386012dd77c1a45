"""The convolutional network that segmenting capsules are compared with."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchcaps.checks import check_at_least
from torchcaps.layers import Conv2d
from torchcaps.layers.init import reset_layers
from torchcaps.layers.shapes import as_image_shape, check_feature_map
from torchcaps.models.baselines import count_parameters
from torchcaps.types import SegmentationOutput

#: Two poolings halve the map each.
_FACTOR = 4


class UNet(nn.Module):
    """A U-Net of three levels: two 3×3 convolutions a level, and a skip connection at each but the lowest.

    Each convolution keeps the size, and has batch normalization and a ReLU behind it. The paper has five levels, and
    neither padding nor normalization.

    Args:
        image_shape: (channels, height, width). The network takes images of any other height and width, too; each must
            be a multiple of 4.
        n_classes: classes J, each with a mask of its own; background needs none.
        width: channels of the uppermost level; each lower one has twice as many.

    Raises:
        ValueError: a height or width that is no multiple of 4, or sizes below 1.

    Example:
        >>> import torch
        >>> model = UNet((1, 32, 24), 3, width=8)
        >>> model(torch.rand(2, 1, 32, 24)).scores.shape
        torch.Size([2, 3, 32, 24])

    Source: Ronneberger, Fischer, Brox 2015, U-Net, arXiv 1505.04597.
    """

    def __init__(self, image_shape: tuple[int, int, int], n_classes: int, width: int = 16) -> None:
        super().__init__()
        for name, value in {"n_classes": n_classes, "width": width}.items():
            check_at_least(name, value, 1)
        self.image_shape, self.n_classes = as_image_shape(image_shape), n_classes
        _check_size("image_shape", self.image_shape)
        w1, w2, w3 = width, 2 * width, 4 * width
        self.down = nn.ModuleList((_pair(self.image_shape[0], w1), _pair(w1, w2), _pair(w2, w3)))
        self.grow = nn.ModuleList((nn.ConvTranspose2d(w3, w2, 2, 2), nn.ConvTranspose2d(w2, w1, 2, 2)))
        self.up = nn.ModuleList((_pair(2 * w2, w2), _pair(2 * w1, w1)))
        self.classes = Conv2d(w1, n_classes, 1)

    def reset_parameters(self) -> None:
        """Draw the initial values anew, in place: to train again, or after :meth:`torch.nn.Module.to_empty`."""
        reset_layers(self)

    def forward(self, x: Tensor) -> SegmentationOutput:
        """Find the classes of every pixel.

        Args:
            x: ``[B, C, H, W]``, values 0 … 1, with H and W multiples of 4.

        Returns:
            Scores: the probability of each class ``[B, J, H, W]``, a sigmoid; no capsules.

        Raises:
            ValueError: images of another number of channels, of another size, or no floats.
        """
        check_feature_map(x, self.image_shape[0])
        _check_size("x", (x.shape[1], x.shape[2], x.shape[3]))
        skipped = [self.down[0](x)]
        for layer in self.down[1:]:
            skipped.append(layer(F.max_pool2d(skipped[-1], 2)))
        x = skipped.pop()
        for grow, layer in zip(self.grow, self.up, strict=True):
            x = layer(torch.cat((grow(x), skipped.pop()), dim=1))
        return SegmentationOutput(self.classes(x).sigmoid())


def _pair(below: int, width: int) -> nn.Sequential:
    """Build two convolutions."""
    layers = list[nn.Module]()
    for channels in (below, width):
        layers += [Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*layers)


def _check_size(name: str, shape: tuple[int, int, int]) -> None:
    if shape[1] % _FACTOR or shape[2] % _FACTOR:
        raise ValueError(f"{name} must have a height and width that are multiples of {_FACTOR}, got {shape[1:]}")


def matched_unet(
    image_shape: tuple[int, int, int] = (1, 32, 32), n_classes: int = 1, n_parameters: int = 1_416_112
) -> UNet:
    """Build the U-Net whose width comes nearest to ``n_parameters``.

    Args:
        image_shape: (channels, height, width).
        n_classes: classes, each with a mask.
        n_parameters: to come near to, such as those of a capsule network. The default is that of SegCaps without its
            reconstruction.

    Raises:
        ValueError: fewer parameters than the narrowest has.
    """
    check_at_least("n_parameters", n_parameters, 1)
    with torch.device("meta"):  # widths are tried without a draw
        width, smallest = 1, count_parameters(UNet(image_shape, n_classes, 1))
        if n_parameters < smallest:
            raise ValueError(f"n_parameters must be at least {smallest} for {image_shape} images, got {n_parameters}")
        sizes = {1: smallest}
        while sizes[width] < n_parameters:
            width += 1
            sizes[width] = count_parameters(UNet(image_shape, n_classes, width))
    nearest = min(sizes, key=lambda each: abs(sizes[each] - n_parameters))
    return UNet(image_shape, n_classes, nearest)
