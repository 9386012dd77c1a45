"""Part capsules of stacked auto-encoders: templates that a network finds in an image, and the image they make."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchcaps.layers.convolution import ReLUConv2d
from torchcaps.layers.shapes import conv_size
from torchcaps.models.object_capsules import geometric_transform, noisy_sigmoid
from torchcaps.ops import affine_inverse, mixture_likelihood
from torchcaps.ops.affine import resample
from torchcaps.types import Capsules

#: Strides of the four convolutions, of 3×3 without padding.
_STRIDES = (2, 2, 1, 1)
#: Width of the layer that colours templates.
_HIDDEN = 32


class Parts(NamedTuple):
    """Parts of images: capsules with poses ``[B, M, 3, 3]``, and features ``[B, M, F]`` that colour templates."""

    capsules: Capsules
    features: Tensor


class PartEncoder(nn.Module):
    """Find the pose, presence and features of each part.

    Four convolutions → for each part, a map of its numbers and one of attention: the numbers are their mean over the
    places, weighted by a softmax over them.

    Args:
        image_shape: (channels, height, width).
        n_parts: M.
        n_features: F.
        channels: of the convolutions.
        noise: while training, presences' logits get uniform noise of ± this.
    """

    def __init__(
        self, image_shape: tuple[int, int, int], n_parts: int, n_features: int, *, channels: int, noise: float
    ) -> None:
        super().__init__()
        self.n_parts, self.noise = n_parts, noise
        depth, *extents = image_shape
        size, self.convs = (extents[0], extents[1]), nn.ModuleList()
        for stride in _STRIDES:
            self.convs.append(ReLUConv2d(depth, channels, 3, stride))
            depth, size = channels, conv_size(size, 3, stride, 0)
        self.numbers = nn.Conv2d(channels, n_parts * (7 + n_features), 1)
        self.attention = nn.Conv2d(channels, n_parts, 1)

    def forward(self, x: Tensor) -> Parts:
        """Find parts in images ``[B, C, H, W]``."""
        for conv in self.convs:
            x = conv(x).relu()
        attention = self.attention(x).flatten(2).softmax(dim=2)  # [B, M, places]
        numbers = self.numbers(x).flatten(2).unflatten(1, (self.n_parts, -1))
        numbers = torch.einsum("bmfp,bmp->bmf", numbers, attention)
        pose, presence, features = numbers.split((6, 1, numbers.shape[2] - 7), dim=2)
        presence = noisy_sigmoid(presence.squeeze(2), self.noise if self.training else 0.0)
        return Parts(Capsules(geometric_transform(pose), presence), features)


class TemplateDecoder(nn.Module):
    """Make images of parts: each pixel is a mixture of warped templates and a constant background.

    A template has an alpha channel. A part's weight at a pixel is its presence times e to the alpha there, and 0 beyond
    the template's edges; the mixture is normalized over parts and background.

    Args:
        image_shape: (channels, height, width).
        n_parts: M, a template each.
        n_features: numbers that give a template its colour in this image.
        template: side of the templates in pixels.
        scale: standard deviation of a pixel.

    Source: Kosiorek et al. 2019, section 2.2 and its code; that a weight is 0 beyond the edges is ours.
    """

    def __init__(
        self, image_shape: tuple[int, int, int], n_parts: int, n_features: int, *, template: int, scale: float
    ) -> None:
        super().__init__()
        self.image_shape, self.scale = image_shape, scale
        depth = image_shape[0]
        self.templates = nn.Parameter(torch.empty(n_parts, depth, template, template))
        self.alpha = nn.Parameter(torch.empty(n_parts, 1, template, template))
        self.colour_hidden, self.colour = nn.Linear(n_features, _HIDDEN), nn.Linear(_HIDDEN, depth)
        self.background = nn.Parameter(torch.empty(depth))
        self.background_alpha = nn.Parameter(torch.empty(()))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the initial values anew, in place: templates start orthogonal, in 0 … 1."""
        for layer in (self.colour_hidden, self.colour):
            layer.reset_parameters()
        flat = self.templates.flatten(1)
        drawn = nn.init.orthogonal_(torch.empty_like(flat))
        low, high = drawn.aminmax()
        self.templates.copy_(((drawn - low) / (high - low).clamp_min(1e-6)).view_as(self.templates))
        for zero in (self.alpha, self.colour_hidden.bias, self.colour.bias, self.background, self.background_alpha):
            zero.zero_()

    def forward(self, parts: Parts, x: Tensor) -> tuple[Tensor, Tensor]:
        """Make images, and measure how likely the given ones are.

        Returns:
            The mean of the mixture ``[B, C, H, W]``, and the log-likelihood of each image, summed over its pixels
            ``[B]``.
        """
        pose, presence = parts.capsules.pose, parts.capsules.activation
        colour = self.colour(self.colour_hidden(parts.features).relu()).sigmoid()  # [B, M, C]
        weight = self.alpha.exp()  # within the template
        coloured = self.templates.sigmoid() * colour[..., None, None]  # [B, M, C, h, w]
        layers = torch.cat((coloured, weight.expand(colour.shape[0], -1, -1, -1, -1)), dim=2).flatten(0, 1)
        size = self.image_shape[1], self.image_shape[2]
        drawn = resample(layers, affine_inverse(pose.flatten(0, 1))[:, :2], size)
        drawn = drawn.unflatten(0, presence.shape).flatten(3)  # [B, M, C + 1, P]
        means, weight = drawn[:, :, :-1].permute(0, 3, 1, 2), drawn[:, :, -1].mT * presence.unsqueeze(1)
        means = torch.cat((means, self.background.sigmoid().expand(*means.shape[:2], 1, -1)), dim=2)
        weight = torch.cat((weight, self.background_alpha.exp().expand(*weight.shape[:2], 1)), dim=2)
        pixels = x.flatten(2).mT  # [B, P, C]
        found = mixture_likelihood(pixels, means, weight, torch.full_like(weight, self.scale), dummy=None)
        image = torch.einsum("bpm,bpmc->bcp", weight / weight.sum(dim=2, keepdim=True), means)
        return image.unflatten(2, size), found.log_likelihood.sum(dim=1)
