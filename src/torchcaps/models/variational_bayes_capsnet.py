"""Matrix capsules with variational-Bayes routing (De Sousa Ribeiro, Leontidis, Kollias 2020)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from torchcaps.checks import check_at_least, check_flag
from torchcaps.layers import ClassCaps, ConvCaps, Standardize, VariationalBayesRouting
from torchcaps.layers.convolution import ReLUConv2d
from torchcaps.layers.init import reset_layers
from torchcaps.layers.shapes import as_image_shape, conv_size, image_too_small, require_images
from torchcaps.types import Capsules, ModelOutput


class VariationalBayesCapsNet(nn.Module):
    """Convolution → primary capsules → two layers of convolutional capsules → class capsules, all normalized.

    The network of matrix capsules with EM routing, with another routing and batch normalizations. Those of poses
    have one mean and one variance for each type of capsule, over images, places and all numbers of a pose. In training
    an image's capsules depend on its batch, which must be of two images at least.

    Args:
        image_shape: (channels, height, width).
        n_classes: class capsules.
        A: channels of the first convolution, 5×5, stride 2.
        B: types of primary capsules.
        C: types of the first convolutional capsules, 3×3, stride 2.
        D: types of the second, 3×3, stride 1.
        d_pose: numbers of every pose, a square: matrices of √d_pose × √d_pose.
        n_iters: passes of every routing.
        coordinates: add (k + 1)/(10 F) for the k-th of F rows and columns to the votes for the classes, as the authors
            do.
        standardize: bring each image to zero mean and unit variance first.
        backend: what computes every routing, see :func:`torchcaps.ops.which_backend`.

    Raises:
        ValueError: sizes below 1, a pose that is no square, images that are too small.

    Example:
        >>> import torch
        >>> model = VariationalBayesCapsNet((2, 32, 32), 5)
        >>> sum(p.numel() for p in model.parameters())
        68714
        >>> model.eval()(torch.rand(2, 2, 32, 32)).scores.shape  # probabilities
        torch.Size([2, 5])

    Source: De Sousa Ribeiro, Leontidis, Kollias 2020, Capsule Routing via Variational Bayes, AAAI, and its code.
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int] = (2, 32, 32),
        n_classes: int = 5,
        *,
        A: int = 64,  # noqa: N803
        B: int = 8,  # noqa: N803
        C: int = 16,  # noqa: N803
        D: int = 16,  # noqa: N803
        d_pose: int = 16,
        n_iters: int = 3,
        coordinates: bool = True,
        standardize: bool = True,
        backend: str = "auto",
    ) -> None:
        super().__init__()
        for name, value in {"n_classes": n_classes, "A": A, "B": B, "C": C, "D": D, "d_pose": d_pose}.items():
            check_at_least(name, value, 1)
        n_classes, d_pose = int(n_classes), int(d_pose)  # numpy's of 8 bits overflow
        A, B, C, D = int(A), int(B), int(C), int(D)  # noqa: N806
        for name, flag in {"coordinates": coordinates, "standardize": standardize}.items():
            check_flag(name, flag)
        if math.isqrt(d_pose) ** 2 != d_pose:
            raise ValueError(f"d_pose must be a square number, got {d_pose}")
        self.image_shape, self.n_classes = as_image_shape(image_shape), n_classes
        self.n_types, self.d_pose = B, d_pose
        self.standardize = Standardize() if standardize else nn.Identity()
        self.conv = ReLUConv2d(self.image_shape[0], A, 5, stride=2, bias=False)
        self.norm = nn.BatchNorm2d(A)
        self.primary = ReLUConv2d(A, B * (d_pose + 1), 1, bias=False)
        self.norm_pose, self.norm_logit = nn.BatchNorm1d(B), nn.BatchNorm1d(B)
        routing = VariationalBayesRouting(n_iters, backend=backend)
        self.hidden = nn.ModuleList()
        with image_too_small(self.image_shape):
            types, size = B, conv_size(self.image_shape[1:], 5, 2)
            for n_types, stride in ((C, 2), (D, 1)):
                std = _weight_std(types * 9, n_types * 9, d_pose)
                layer = ConvCaps(
                    types, n_types, d_pose, d_pose, 3, stride=stride, routing=replace(routing, weight_std=std)
                )
                self.hidden.append(layer)
                size, types = layer.output_size(*size), n_types
        self.map_shape = (D, *size)  #: (T, H, W) of the capsules below the class capsules
        self.classes = ClassCaps(
            D,
            n_classes,
            d_pose,
            d_pose,
            routing=replace(routing, weight_std=_weight_std(D, n_classes, d_pose)),
            map_size=size,
            coordinates="column" if coordinates else None,
            spacing=(1 / size[0], 1 / size[1]),
            centre=((size[0] + 1) / (2 * size[0]), (size[1] + 1) / (2 * size[1])),
            coordinate_scale=10.0,
        )
        self.decoder = None

    def reset_parameters(self) -> None:
        """Draw the initial values anew, in place: to train again, or after :meth:`torch.nn.Module.to_empty`."""
        reset_layers(self)

    def forward(self, x: Tensor, *, n_iters: int | None = None, return_coupling: bool = False) -> ModelOutput:
        """Find the classes in images.

        Args:
            x: ``[B, C, H, W]``.
            n_iters: another number of passes of every routing.
            return_coupling: keep the couplings of every routing.

        Returns:
            Scores: the class capsules' activations ``[B, J]``, whose cross-entropy is the authors' loss.

        Raises:
            ValueError: images of another shape than the model was made for, or no floats.
        """
        require_images(x, self.image_shape)
        capsules = [self._primary(F.relu(self.norm(self.conv(self.standardize(x)))))]
        for layer in (*self.hidden, self.classes):
            capsules.append(layer(capsules[-1], n_iters=n_iters, return_coupling=return_coupling))
        return ModelOutput(capsules[-1].activation, tuple(capsules))

    def _primary(self, features: Tensor) -> Capsules:
        """Make the primary capsules, ``[B, T, H, W, n, n]``, of a feature map."""
        made = self.primary(features)
        poses, logits = made.split((self.n_types * self.d_pose, self.n_types), dim=1)
        normed = self.norm_pose(poses.flatten(2).unflatten(1, (self.n_types, self.d_pose)).flatten(2))
        normed = normed.reshape(poses.shape).unflatten(1, (self.n_types, self.d_pose)).permute(0, 1, 3, 4, 2)
        side = math.isqrt(self.d_pose)
        activation = self.norm_logit(logits.flatten(2)).reshape(logits.shape).sigmoid()
        return Capsules(normed.unflatten(-1, (side, side)), activation)


def _weight_std(fan_in: int, fan_out: int, d_pose: int) -> float:
    """Return the authors' deviation, Xavier's with these numbers of capsules times the numbers of a pose."""
    return math.sqrt(2 / ((fan_in + fan_out) * d_pose))


def variational_bayes_capsnet(
    image_shape: tuple[int, int, int] = (2, 32, 32), n_classes: int = 5, **options: Any
) -> VariationalBayesCapsNet:
    """Build the small network of the paper, {64, 8, 16, 16}: 68,714 parameters for 2×32×32 images and 5 classes."""
    return VariationalBayesCapsNet(image_shape, n_classes, **options)
