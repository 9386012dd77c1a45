"""Capsules that route by inverted dot-product attention, layer by layer or all at once (Tsai et al. 2020)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from torchcaps.checks import check_at_least, check_choice, check_list
from torchcaps.layers import ConvCaps, DenseCaps, InvertedAttentionRouting, route_concurrently
from torchcaps.layers.base import RoutedLayer
from torchcaps.layers.convolution import ReLUConv2d
from torchcaps.layers.init import reset_layers
from torchcaps.layers.shapes import as_image_shape, conv_size, image_too_small, require_images
from torchcaps.models.resnet import residual_trunk
from torchcaps.types import Capsules, ModelOutput

TRUNKS = ("resnet", "simple")
SCHEDULES = ("concurrent", "sequential")


class AttentionCapsNet(nn.Module):
    """Trunk → normalized primary capsules → two layers of convolutional capsules → (dense ones) → class capsules.

    Args:
        image_shape: (channels, height, width).
        n_classes: class capsules.
        trunk: "resnet", a convolution and seven residual blocks of 64 and 128 channels; or "simple", one convolution of
            3×3 and stride 2 with a ReLU.
        channels: of the simple trunk.
        n_types: types of primary and convolutional capsules.
        d_pose: numbers of every pose, a square: matrices of √d_pose × √d_pose.
        dense: capsules of each dense layer below the classes; (20,) for CIFAR-100 in the paper.
        n_iters: passes.
        schedule: "concurrent" updates all layers at once from the second pass on, see
            :func:`~torchcaps.layers.route_concurrently`; "sequential" finishes the passes of a layer first.

    Raises:
        ValueError: an unknown trunk or schedule, a pose that is no square, images that are too small.

    Example:
        >>> import torch
        >>> model = AttentionCapsNet((3, 32, 32), 10)
        >>> sum(p.numel() for p in model.parameters())
        1828817
        >>> model.eval()(torch.rand(2, 3, 32, 32)).scores.shape  # logits
        torch.Size([2, 10])

    Source: Tsai, Srivastava, Goh, Salakhutdinov 2020, ICLR, arXiv 2002.04764, section 4, and its code.
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int] = (3, 32, 32),
        n_classes: int = 10,
        *,
        trunk: str = "resnet",
        channels: int = 128,
        n_types: int = 32,
        d_pose: int = 16,
        dense: Sequence[int] = (),
        n_iters: int = 2,
        schedule: str = "concurrent",
    ) -> None:
        super().__init__()
        sizes = {"n_classes": n_classes, "channels": channels, "n_types": n_types, "d_pose": d_pose, "n_iters": n_iters}
        for name, value in sizes.items():
            check_at_least(name, value, 1)
        check_list("dense", dense)
        check_choice("trunk", trunk, TRUNKS)
        check_choice("schedule", schedule, SCHEDULES)
        if math.isqrt(d_pose) ** 2 != d_pose:
            raise ValueError(f"d_pose must be a square number, got {d_pose}")
        self.image_shape, self.n_classes = as_image_shape(image_shape), n_classes
        self.n_iters, self.schedule = n_iters, schedule
        self.n_types, self.d_pose = n_types, d_pose
        features = 128 if trunk == "resnet" else channels
        if trunk == "resnet":
            self.trunk = residual_trunk(self.image_shape[0], (64, 128), (3, 4), (1, 2), shortcut="projection")
        else:
            self.trunk = nn.Sequential(ReLUConv2d(self.image_shape[0], channels, 3, 2, 1), nn.ReLU())
        self.primary = ReLUConv2d(features, n_types * d_pose, 1, bias=False)
        self.norm = nn.LayerNorm(d_pose)
        routing = InvertedAttentionRouting(scores=False)
        self.layers = nn.ModuleList()
        with image_too_small(self.image_shape):
            size = conv_size(self.image_shape[1:], 3, 2, 1)
            for stride in (2, 1):
                layer = ConvCaps(n_types, n_types, d_pose, d_pose, 3, stride=stride, routing=routing)
                size = layer.output_size(*size)
                self.layers.append(layer)
        self.map_shape = (n_types, *size)  #: (T, H, W) of the last convolutional capsules
        below = math.prod(self.map_shape)
        for width in dense:
            self.layers.append(DenseCaps(below, width, d_pose, d_pose, routing=routing))
            below = width
        self.classes = DenseCaps(below, n_classes, d_pose, d_pose, routing=InvertedAttentionRouting())
        self.decoder = None

    def reset_parameters(self) -> None:
        """Draw the initial values anew, in place: to train again, or after :meth:`torch.nn.Module.to_empty`."""
        reset_layers(self)

    def forward(self, x: Tensor, *, n_iters: int | None = None, return_coupling: bool = False) -> ModelOutput:
        """Find the classes in images.

        Args:
            x: ``[B, C, H, W]``.
            n_iters: another number of passes.
            return_coupling: keep the couplings of every layer's last pass.

        Returns:
            Scores: logits ``[B, J]``, for cross-entropy.

        Raises:
            ValueError: images of another shape than the model was made for, or no floats.
        """
        require_images(x, self.image_shape)
        n_passes = self.n_iters if n_iters is None else n_iters
        check_at_least("n_iters", n_passes, 1)
        poses = self.primary(self.trunk(x)).unflatten(1, (self.n_types, self.d_pose)).permute(0, 1, 3, 4, 2)
        poses = self.norm(poses)
        side = math.isqrt(self.d_pose)
        lower = Capsules(poses.unflatten(-1, (side, side)), poses.new_ones(poses.shape[:-1]))
        layers: list[Any] = [*self.layers, self.classes]
        if self.schedule == "concurrent":
            upper = route_concurrently(layers, lower, n_passes, return_coupling=return_coupling)
        else:
            upper = _route_in_turn(layers, lower, n_passes, return_coupling)
        return ModelOutput(upper[-1].activation, (lower, *upper))


def _route_in_turn(
    layers: Sequence[RoutedLayer], capsules: Capsules, n_passes: int, return_coupling: bool
) -> list[Capsules]:
    """Route layer by layer, each with all of its passes."""
    upper = [capsules]
    for layer in layers:
        upper.append(layer(upper[-1], n_iters=n_passes, return_coupling=return_coupling))
    return upper[1:]


def attention_capsnet(
    image_shape: tuple[int, int, int] = (3, 32, 32), n_classes: int = 10, **options: Any
) -> AttentionCapsNet:
    """Build the paper's network for CIFAR-10: 1.83 M parameters, 1.34 M of them in its residual trunk."""
    return AttentionCapsNet(image_shape, n_classes, **options)
