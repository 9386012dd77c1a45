"""A residual network with self-routing capsules on top (Hahn, Pyeon, Kim 2019)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from torchcaps.checks import check_at_least, check_choice
from torchcaps.layers import ConvCaps, DenseCaps, SelfRouting
from torchcaps.layers.convolution import ReLUConv2d
from torchcaps.layers.init import reset_layers
from torchcaps.layers.shapes import as_image_shape, conv_size, image_too_small, require_images
from torchcaps.models.resnet import residual_trunk
from torchcaps.types import Capsules, ModelOutput

DEPTHS = (0, 1, 2)


class SelfRoutingResNet(nn.Module):
    """ResNet-20 → primary capsules → (convolutional capsules) → class capsules without poses.

    Args:
        image_shape: (channels, height, width).
        n_classes: class capsules.
        depth: layers of routed capsules: 1 for classes alone, 2 for convolutional capsules below them, 0 for the
            baseline that averages the trunk's map over all places, with a linear layer.
        n_types: types of primary and convolutional capsules.
        d_pose: their pose size.
        width: channels of the first group of residual blocks; the next have twice and four times as many.

    Raises:
        ValueError: an unknown depth, sizes below 1, images that are too small.

    Example:
        >>> import torch
        >>> model = SelfRoutingResNet((3, 32, 32), 10)
        >>> sum(p.numel() for p in model.parameters())
        931664
        >>> scores = model.eval()(torch.rand(2, 3, 32, 32)).scores  # logarithms of probabilities
        >>> bool((scores.exp().sum(dim=1) - 1).abs().max() < 1e-5)
        True

    Source: Hahn, Pyeon, Kim 2019, Self-Routing Capsule Networks, NeurIPS, section 4, and its code.
    """

    bounded_scores = False  #: logarithms, of probabilities as they are

    def __init__(
        self,
        image_shape: tuple[int, int, int] = (3, 32, 32),
        n_classes: int = 10,
        *,
        depth: int = 1,
        n_types: int = 32,
        d_pose: int = 16,
        width: int = 16,
    ) -> None:
        super().__init__()
        for name, value in {"n_classes": n_classes, "n_types": n_types, "d_pose": d_pose, "width": width}.items():
            check_at_least(name, value, 1)
        check_choice("depth", depth, DEPTHS)
        self.image_shape, self.n_classes = as_image_shape(image_shape), n_classes
        self.depth, self.n_types, self.d_pose = depth, n_types, d_pose
        widths = (width, 2 * width, 4 * width)
        self.trunk = residual_trunk(self.image_shape[0], widths, (3, 3, 3), (1, 2, 2), shortcut="pad")
        self.decoder = None
        if not depth:
            self.logits = nn.Linear(widths[-1], n_classes)
            return
        self.activation = nn.Sequential(
            ReLUConv2d(widths[-1], n_types, 3, padding=1, bias=False), nn.BatchNorm2d(n_types), nn.Sigmoid()
        )
        self.pose = nn.Sequential(
            ReLUConv2d(widths[-1], n_types * d_pose, 3, padding=1, bias=False), nn.BatchNorm2d(n_types * d_pose)
        )
        with image_too_small(self.image_shape):
            size = conv_size(conv_size(self.image_shape[1:], 3, 2, 1), 3, 2, 1)
            if depth == 2:
                self.hidden = ConvCaps(n_types, n_types, d_pose, d_pose, 3, stride=2, padding=1, routing="self_routing")
                self.norm = nn.BatchNorm2d(n_types * d_pose)
                size = self.hidden.output_size(*size)
        self.map_shape = (n_types, *size)  #: (T, H, W) of the capsules below the class capsules
        self.classes = DenseCaps(math.prod(self.map_shape), n_classes, d_pose, 1, routing=SelfRouting(poses=False))

    def reset_parameters(self) -> None:
        """Draw the initial values anew, in place: to train again, or after :meth:`torch.nn.Module.to_empty`."""
        reset_layers(self)

    def forward(self, x: Tensor, *, return_coupling: bool = False) -> ModelOutput:
        """Find the classes in images.

        Args:
            x: ``[B, C, H, W]``.
            return_coupling: keep the couplings of every layer.

        Returns:
            Scores: logarithms of the class capsules' activations ``[B, J]``, for cross-entropy; logits at depth 0.

        Raises:
            ValueError: images of another shape than the model was made for, or no floats.
        """
        require_images(x, self.image_shape)
        features = self.trunk(x)
        if not self.depth:
            return ModelOutput(self.logits(features.mean(dim=(2, 3))))
        capsules = [Capsules(self._as_poses(self.pose(features)), self.activation(features))]
        if self.depth == 2:
            pose, activation, coupling = self.hidden(capsules[0], return_coupling=return_coupling)
            maps = pose.permute(0, 1, 4, 2, 3).flatten(1, 2)  # [B, T·D, H', W']
            capsules.append(Capsules(self._as_poses(self.norm(maps)), activation, coupling))
        capsules.append(self.classes(capsules[-1], return_coupling=return_coupling))
        probability = capsules[-1].activation
        # Of a probability that rounding made 0 the logarithm would be infinite, and so would the loss.
        return ModelOutput(probability.clamp_min(torch.finfo(probability.dtype).tiny).log(), tuple(capsules))

    def _as_poses(self, maps: Tensor) -> Tensor:
        """Return channels ``[B, T·D, H, W]`` as poses ``[B, T, H, W, D]``."""
        return maps.unflatten(1, (self.n_types, self.d_pose)).permute(0, 1, 3, 4, 2)


def self_routing_resnet(
    image_shape: tuple[int, int, int] = (3, 32, 32), n_classes: int = 10, **options: Any
) -> SelfRoutingResNet:
    """Build ResNet-20 with self-routing classes: 931,664 parameters for CIFAR-10; with ``depth=2`` 3,187,536."""
    return SelfRoutingResNet(image_shape, n_classes, **options)
