"""DeepCaps: sixteen layers of capsules with skip connections (Rajasegaran et al. 2019)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torchcaps.checks import check_at_least, check_flag, check_list
from torchcaps.layers import ConvVoteCaps, Decoder, DenseCaps, DynamicRouting, Standardize
from torchcaps.layers.convolution import ReLUConv2d
from torchcaps.layers.init import reset_layers
from torchcaps.layers.routing import Routing
from torchcaps.layers.routings import as_routing
from torchcaps.layers.shapes import as_image_shape, require_images
from torchcaps.ops import Capsules, safe_norm
from torchcaps.types import ModelOutput

#: Keras' ε of the normalization, and how much of its moving averages a batch replaces.
_EPS, _MOMENTUM = 1e-3, 0.01
_KERNEL = 3


class Cell(nn.Module):
    """Four layers of convolutional capsules: one halves the map, two follow, and one skips these two.

    With a = first(x), the cell makes last(second(a)) + skip(a). Its capsules are sums of two, so their lengths reach 2.

    Args:
        n_in: types of capsule below.
        n_out: types of capsule in all four layers.
        d_in: pose size of those below.
        d_out: pose size in all four layers.
        map_iters: passes of 3-D routing in the layer that skips. None for convolutional capsules there, too.
        n_places: places of the cell's map, for initial values.
    """

    def __init__(
        self, n_in: int, n_out: int, d_in: int, d_out: int, *, map_iters: int | None = None, n_places: int = 1
    ) -> None:
        super().__init__()
        unrouted = DynamicRouting(1, bias=False)

        def conv(n_in: int, d_in: int, stride: int = 1) -> ConvVoteCaps:
            options = {"stride": stride, "padding": "same", "shared": False, "routing": unrouted}
            return ConvVoteCaps(n_in, n_out, d_in, d_out, _KERNEL, **options)

        self.first = conv(n_in, d_in, 2)
        self.second, self.last = conv(n_out, d_out), conv(n_out, d_out)
        self.routed = map_iters is not None
        self.skip = conv(n_out, d_out)
        if map_iters is not None:
            routing = DynamicRouting(map_iters)
            options = {"padding": "same", "compete": "map", "n_places": n_places, "routing": routing}
            self.skip = ConvVoteCaps(n_out, n_out, d_out, d_out, _KERNEL, **options)

    def forward(
        self, capsules: Capsules | Tensor, *, n_iters: int | None = None, return_coupling: bool = False
    ) -> Capsules:
        """Make capsules ``[B, J, ⌈H/2⌉, ⌈W/2⌉, d_out]`` of ``[B, T, H, W, d_in]``; only 3-D routing takes options."""
        first = self.first(capsules)
        skip = self.skip(first, n_iters=n_iters, return_coupling=return_coupling) if self.routed else self.skip(first)
        pose = self.last(self.second(first)).pose + skip.pose
        return Capsules(pose, safe_norm(pose), skip.coupling)


class DeepCaps(nn.Module):
    """A convolution → four cells of convolutional capsules → class capsules that see the last two cells.

    Convolutional capsules are squashed sums: nothing is routed in them. Two layers route: the one that skips in the
    last cell, over types and places together (:func:`~torchcaps.ops.dynamic_routing_3d`), and the class capsules.

    Args:
        image_shape: (channels, height, width).
        n_classes: class capsules.
        channels: of the first convolution, which a batch normalization follows.
        n_types: types of capsule in all cells.
        d_pose: pose size of each of the four cells.
        d_class: pose size of the class capsules.
        map_iters: passes of the 3-D routing; 1 for even couplings.
        routing: of the class capsules, as :class:`~torchcaps.layers.DenseCaps` has it.
        decoder: widths of the hidden layers of a decoder that all classes share, or None. The paper's has transposed
            convolutions, which are not here.
        standardize: bring each image to zero mean and unit variance first.

    Attributes:
        decoder: a :class:`~torchcaps.layers.Decoder` with ``shared=True``, or None. It is for you to call: ``forward``
            does not reconstruct.

    Raises:
        ValueError: sizes below 1, other than four pose sizes, of which the last two are equal; images of another shape.

    Example:
        >>> import torch
        >>> model = DeepCaps((1, 28, 28), 10, decoder=None)
        >>> sum(p.numel() for p in model.parameters())
        8441920
        >>> model(torch.rand(2, 1, 28, 28)).scores.shape
        torch.Size([2, 10])

    Source: Rajasegaran, Jayasundara, Jayasekara, Jayasekara, Seneviratne, Rodrigo 2019, DeepCaps: Going Deeper with
    Capsule Networks, arXiv 1904.09546, and its code.
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int] = (3, 64, 64),
        n_classes: int = 10,
        *,
        channels: int = 128,
        n_types: int = 32,
        d_pose: Sequence[int] = (4, 8, 8, 8),
        d_class: int = 32,
        map_iters: int = 3,
        routing: Routing | str = "dynamic",
        decoder: Sequence[int] | None = (512, 1024),
        standardize: bool = False,
    ) -> None:
        super().__init__()
        sizes = {"n_classes": n_classes, "channels": channels, "n_types": n_types, "d_class": d_class}
        for name, value in {**sizes, "map_iters": map_iters}.items():
            check_at_least(name, value, 1)
        check_list("d_pose", d_pose)
        if len(d_pose) != 4:
            raise ValueError(f"d_pose must list four sizes, got {d_pose!r}")
        if d_pose[-1] != d_pose[-2]:
            raise ValueError(f"d_pose must end in two equal sizes, which the classes see together; got {d_pose!r}")
        check_flag("standardize", standardize)
        if decoder is not None:
            check_list("decoder", decoder)
        routing = as_routing(routing)
        if routing.pose_scale != 1.0:
            raise ValueError(f"pose_scale must be left to the layers, each has its own; got {routing.pose_scale}")
        self.image_shape, self.n_classes = as_image_shape(image_shape), n_classes
        self.standardize = Standardize() if standardize else nn.Identity()
        self.conv = ReLUConv2d(self.image_shape[0], channels, _KERNEL, padding=1)
        self.norm = nn.BatchNorm2d(channels, _EPS, _MOMENTUM)
        height, width = self.image_shape[1:]
        cells, places = [], []
        n_in, d_in = channels, 1  # a channel is a capsule of one number
        for place, d_out in enumerate(d_pose):
            height, width = -(-height // 2), -(-width // 2)
            places.append(height * width)
            iters = map_iters if place == len(d_pose) - 1 else None
            cells.append(Cell(n_in, n_types, d_in, d_out, map_iters=iters, n_places=places[-1]))
            n_in, d_in = n_types, d_out
        self.cells = nn.ModuleList(cells)
        n_lower = n_types * (places[-1] + places[-2])
        routing = routing.above(cells[-1].last.pose_scale)
        self.classes = DenseCaps(n_lower, n_classes, d_in, d_class, routing=routing)
        self.decoder = None
        if decoder is not None:
            pose_scale = 1.0 if self.classes.routing.squashes else self.classes.pose_scale
            options = {"pose_scale": pose_scale, "shared": True}
            self.decoder = Decoder(n_classes, d_class, self.image_shape, tuple(decoder), **options)

    def reset_parameters(self) -> None:
        """Draw the initial values anew, in place: to train again, or after :meth:`torch.nn.Module.to_empty`."""
        reset_layers(self)

    def forward(self, x: Tensor, *, n_iters: int | None = None, return_coupling: bool = False) -> ModelOutput:
        """Find the classes in images.

        Args:
            x: ``[B, C, H, W]``, values 0 … 1.
            n_iters: another number of iterations in both routed layers.
            return_coupling: keep the couplings of both.

        Returns:
            Scores: the class capsules' activations ``[B, J]``; capsules of the four cells and of the classes.

        Raises:
            ValueError: images of another shape than the model was made for, or no floats.
        """
        require_images(x, self.image_shape)
        options: dict[str, Any] = {"n_iters": n_iters, "return_coupling": return_coupling}
        features = self.norm(self.conv(self.standardize(x)).relu())
        pose, maps = features[..., None], []  # [B, C, H, W, 1]
        for cell in self.cells:
            maps.append(cell(pose, **options))
            pose = maps[-1].pose
        lower = torch.cat([each.pose.flatten(1, 3) for each in (maps[-1], maps[-2])], dim=1)
        activation = torch.cat([each.activation.flatten(1) for each in (maps[-1], maps[-2])], dim=1)
        classes = self.classes(Capsules(lower, activation), **options)
        return ModelOutput(classes.activation, (*maps, classes))


def deepcaps(image_shape: tuple[int, int, int] = (3, 64, 64), n_classes: int = 10, **options: Any) -> DeepCaps:
    """Build DeepCaps of the paper: 13,359,424 parameters on 64×64 colour images, without the decoder."""
    return DeepCaps(image_shape, n_classes, **options)


def deepcaps_small(image_shape: tuple[int, int, int] = (1, 28, 28), n_classes: int = 10, **options: Any) -> DeepCaps:
    """Build a DeepCaps for CPUs, with a quarter of the types and narrower classes."""
    small = {"channels": 32, "n_types": 8, "d_class": 16, "decoder": (128, 256)}
    return DeepCaps(image_shape, n_classes, **{**small, **options})
