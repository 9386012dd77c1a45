"""Capsules whose parts share one matrix, by Heinsen's routing (Heinsen 2019)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from torchcaps.checks import check_at_least
from torchcaps.layers import DenseCaps, HeinsenMatrixRouting
from torchcaps.layers.convolution import ReLUConv2d
from torchcaps.layers.init import reset_layers
from torchcaps.layers.shapes import as_image_shape, conv_size, image_too_small, require_images
from torchcaps.types import Capsules, ModelOutput

_STRIDES = (1, 2, 1, 2, 1, 2)
_SMALLEST = 29  # of which these convolutions leave one place


class HeinsenCapsNet(nn.Module):
    """Six convolutions → a map of primary capsules → parts → class capsules.

    Every primary capsule of the map, whatever its type and place, votes for the parts with the same matrices: where it
    stands must be in its pose, so the images get two further channels, of rows and columns from −1 to 1. There is a
    batch normalization before each convolution, and SiLU behind it.

    Args:
        image_shape: (channels, height, width).
        n_classes: class capsules, at least 2.
        channels: of the convolutions, 3×3, strides 1, 2, 1, 2, 1, 2.
        n_parts: parts, and types of primary capsules.
        n_iters: passes of both routings.
        padding: zeros around what each convolution sees. By default 0, as in the paper; and 1 for images below 29
            pixels, of which six convolutions would leave nothing.

    Raises:
        ValueError: sizes below 1, fewer than two classes, images that are too small.

    Example:
        >>> import torch
        >>> model = HeinsenCapsNet((2, 96, 96), 5)
        >>> sum(p.numel() for p in model.parameters())
        271688
        >>> small = HeinsenCapsNet((2, 32, 32), 5, channels=8, n_parts=4).eval()
        >>> small(torch.rand(2, 2, 32, 32)).scores.shape  # logits
        torch.Size([2, 5])

    Source: Heinsen 2019, An Algorithm for Routing Capsules in All Domains, arXiv 1911.00792, section 4, and its code.
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int] = (2, 96, 96),
        n_classes: int = 5,
        *,
        channels: int = 64,
        n_parts: int = 64,
        n_iters: int = 3,
        padding: int | None = None,
    ) -> None:
        super().__init__()
        check_at_least("n_classes", n_classes, 2)
        for name, value in {"channels": channels, "n_parts": n_parts}.items():
            check_at_least(name, value, 1)
        self.image_shape, self.n_classes, self.n_parts = as_image_shape(image_shape), n_classes, n_parts
        size = self.image_shape[1:]
        if padding is None:
            padding = 0 if min(size) >= _SMALLEST else 1
        check_at_least("padding", padding, 0)
        with image_too_small(self.image_shape):
            for stride in _STRIDES:
                size = conv_size(size, 3, stride, padding)
        self.primary_shape = (n_parts, *size)  #: (T, H, W) of the primary capsules
        self.convs = nn.Sequential(*_convolutions(self.image_shape[0] + 2, channels, padding))
        self.activation = nn.Sequential(nn.BatchNorm2d(channels), nn.Conv2d(channels, n_parts, 1))
        self.pose = nn.Sequential(nn.BatchNorm2d(channels), nn.Conv2d(channels, 16 * n_parts, 1))
        shared = HeinsenMatrixRouting(n_iters, shared=True, logits=False)
        self.parts = DenseCaps(None, n_parts, 16, 16, routing=shared)
        self.classes = DenseCaps(n_parts, n_classes, 16, 16, routing=HeinsenMatrixRouting(n_iters))
        self.decoder = None

    def reset_parameters(self) -> None:
        """Draw the initial values anew, in place: to train again, or after :meth:`torch.nn.Module.to_empty`."""
        reset_layers(self)

    def forward(self, x: Tensor, *, n_iters: int | None = None, return_coupling: bool = False) -> ModelOutput:
        """Find the classes in images.

        Args:
            x: ``[B, C, H, W]``.
            n_iters: another number of passes of both routings.
            return_coupling: keep the couplings of both routings.

        Returns:
            Scores: logits ``[B, J]``, for cross-entropy.

        Raises:
            ValueError: images of another shape than the model was made for, or no floats.
        """
        require_images(x, self.image_shape)
        features = self.convs(torch.cat((x, _coordinates(x)), dim=1))
        poses = self.pose(features).unflatten(1, (self.n_parts, 16)).permute(0, 1, 3, 4, 2)  # [B, T, H, W, 16]
        capsules = [Capsules(poses.unflatten(-1, (4, 4)), self.activation(features).sigmoid())]
        for layer in (self.parts, self.classes):
            capsules.append(layer(capsules[-1], n_iters=n_iters, return_coupling=return_coupling))
        return ModelOutput(capsules[-1].activation, tuple(capsules))


def _convolutions(below: int, channels: int, padding: int) -> list[nn.Module]:
    """List the layers before the capsules."""
    layers: list[nn.Module] = []
    for stride in _STRIDES:
        layers += [nn.BatchNorm2d(below), ReLUConv2d(below, channels, 3, stride, padding), nn.SiLU()]
        below = channels
    return layers


def _coordinates(x: Tensor) -> Tensor:
    """Make two channels of rows and columns, ``[B, 2, H, W]``, each from −1 to 1."""
    rows, columns = (torch.linspace(-1, 1, n, device=x.device).to(x.dtype) for n in x.shape[2:])
    grid = torch.stack((rows[:, None].expand(*x.shape[2:]), columns.expand(*x.shape[2:])))
    return grid.expand(x.shape[0], -1, -1, -1)


def heinsen_capsnet(
    image_shape: tuple[int, int, int] = (2, 96, 96), n_classes: int = 5, **options: Any
) -> HeinsenCapsNet:
    """Build the paper's network for small NORB: 271,688 parameters for images of any size and 5 classes."""
    return HeinsenCapsNet(image_shape, n_classes, **options)
