"""CapsNet: dynamic routing between capsules (Sabour, Frosst, Hinton 2017)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from torchcaps.checks import check_at_least, check_flag, check_positive
from torchcaps.layers import ConvCaps, Decoder, DenseCaps, PrimaryCaps, Standardize
from torchcaps.layers.convolution import ReLUConv2d, channels_last
from torchcaps.layers.init import reset_layers
from torchcaps.layers.routing import Routing
from torchcaps.layers.routings import as_routing
from torchcaps.layers.shapes import as_image_shape, conv_size, image_too_small, require_images
from torchcaps.models.specs import HiddenCaps, HiddenConv, build_stem, read_layers
from torchcaps.ops import Capsules
from torchcaps.types import ModelOutput


class CapsNet(nn.Module):
    """Convolution (or several) → primary capsules → (convolutional capsules) → class capsules → decoder.

    Args:
        image_shape: (channels, height, width).
        n_classes: class capsules.
        channels: filters of the first convolution.
        kernel_size: of the first convolution and the primary capsules.
        padding: of both; the paper has 0, for CIFAR-10 its authors keep the size.
        stem: further ones before the primary capsules, each a :class:`HiddenConv` or a dict of its fields;
            the paper has none.
        n_types: types of primary capsules.
        d_primary: their pose size.
        primary_scale: factor on the primary capsules; None leaves it to :class:`~torchcaps.layers.PrimaryCaps`. The
            paper has none, which is 1; recipes whose results were recorded with 1 say so.
        hidden: layers of convolutional capsules between primary and class capsules, each a
            :class:`HiddenCaps` or a dict of its fields.
        d_class: pose size of the class capsules.
        routing: of every routed layer, as :class:`~torchcaps.layers.DenseCaps` has it: such as
            ``DynamicRouting(n_iters=2, leaky=True)``. (``bias`` is True by default, as in the authors' code; the paper
            has none.) Leave ``pose_scale`` of EM routing alone, each layer has its own.
        decoder: widths of the decoder's hidden layers; None for no decoder.
        standardize: bring each image to zero mean and unit variance first; the decoder still gives 0 … 1.

    Attributes:
        decoder: a :class:`~torchcaps.layers.Decoder`, or None. It is for you to call, with ``output.capsules[-1]`` and
            the true classes: ``forward`` does not reconstruct.

    Example:
        >>> import torch
        >>> output = CapsNet((1, 28, 28), 10, channels=32, n_types=4)(torch.rand(2, 1, 28, 28))
        >>> output.scores.shape, output.capsules[-1].pose.shape
        (torch.Size([2, 10]), torch.Size([2, 10, 16]))

    Source: Sabour, Frosst, Hinton 2017, section 4, figures 1 and 2.
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int] = (1, 28, 28),
        n_classes: int = 10,
        *,
        channels: int = 256,
        kernel_size: int = 9,
        padding: int = 0,
        stem: Sequence[HiddenConv | Mapping[str, Any]] = (),
        n_types: int = 32,
        d_primary: int = 8,
        primary_scale: float | None = None,
        hidden: Sequence[HiddenCaps | Mapping[str, Any]] = (),
        d_class: int = 16,
        routing: Routing | str = "dynamic",
        decoder: Sequence[int] | None = (512, 1024),
        standardize: bool = False,
    ) -> None:
        super().__init__()
        sizes = {"n_classes": n_classes, "channels": channels, "kernel_size": kernel_size}
        for name, value in (sizes | {"n_types": n_types, "d_primary": d_primary, "d_class": d_class}).items():
            check_at_least(name, value, 1)
        n_types, d_primary, d_class = int(n_types), int(d_primary), int(d_class)  # numpy's may be of 8 bits
        check_at_least("padding", padding, 0)
        check_flag("standardize", standardize)
        if primary_scale is not None:
            check_positive("primary_scale", primary_scale)
        between, below = (
            read_layers("stem", stem, HiddenConv),
            read_layers("hidden", hidden, HiddenCaps),
        )
        if not isinstance(decoder, Sequence | None):
            raise ValueError(f"decoder must list layers, got {decoder!r}")
        for width in decoder or ():
            check_at_least("each width of decoder", width, 1)
        routing = as_routing(routing)
        if routing.pose_scale != 1.0:
            raise ValueError(f"pose_scale must be left to the layers, each has its own; got {routing.pose_scale}")
        image_shape = as_image_shape(image_shape)
        self.image_shape, self.n_classes = image_shape, n_classes
        self.standardize = Standardize() if standardize else nn.Identity()
        self.conv = ReLUConv2d(image_shape[0], channels, kernel_size, padding=padding)
        with image_too_small(image_shape):
            size = conv_size(image_shape[1:], kernel_size, 1, padding)
            self.stem, channels, size = build_stem(between, channels, size)
        # As a convolution makes of MNIST. Behind several it is less, and where the image is black there is next to
        # nothing: with a quarter capsules are nearly as long as without them.
        mean_square = (1.0 if standardize else 0.2) / (4 if between else 1)
        self.primary = PrimaryCaps(
            channels,
            n_types,
            d_primary,
            kernel_size,
            stride=2,
            padding=padding,
            scale=primary_scale,
            mean_square=mean_square,
        )
        with image_too_small(image_shape):
            size = self.primary.output_size(*size)
        types, d_in = n_types, d_primary
        routing = routing.above(self.primary.pose_scale)
        self.hidden = nn.ModuleList()
        for spec in below:
            layer = ConvCaps(
                types, spec.n_types, d_in, spec.d_out, spec.kernel_size, stride=spec.stride, routing=routing
            )
            self.hidden.append(layer)
            routing = routing.above(layer.pose_scale)
            with image_too_small(image_shape):
                size, types, d_in = layer.output_size(*size), spec.n_types, spec.d_out
        self.classes = DenseCaps(types * size[0] * size[1], n_classes, d_in, d_class, routing=routing)
        self.map_shape = (types, *size)  #: (T, H, W) of the capsules below the class capsules
        self.decoder = None
        if decoder is not None:
            pose_scale = 1.0 if self.classes.routing.squashes else self.classes.pose_scale
            self.decoder = Decoder(n_classes, d_class, image_shape, tuple(decoder), pose_scale=pose_scale)

    def reset_parameters(self) -> None:
        """Draw the initial values anew, in place: to train again, or after :meth:`torch.nn.Module.to_empty`."""
        reset_layers(self)

    def forward(self, x: Tensor, *, n_iters: int | None = None, return_coupling: bool = False) -> ModelOutput:
        """Find the classes in images.

        Args:
            x: ``[B, C, H, W]``, values 0 … 1.
            n_iters: overrides the number of iterations of every routing.
            return_coupling: keep the couplings of every routing.

        Returns:
            Scores: the class capsules' lengths ``[B, J]``.

        Raises:
            ValueError: images of another shape than the model was made for, or no floats.
        """
        require_images(x, self.image_shape)
        x = channels_last(self.standardize(x))  # as PrimaryCaps' convolution reads the map
        for convolution in (self.conv, *self.stem):
            x = F.relu(convolution(x))  # not in place: hooks keep or return what a convolution made
        capsules: list[Capsules] = [self.primary(x)]
        for layer in (*self.hidden, self.classes):
            capsules.append(layer(capsules[-1], n_iters=n_iters, return_coupling=return_coupling))
        return ModelOutput(capsules[-1].activation, tuple(capsules))


def capsnet(image_shape: tuple[int, int, int] = (1, 28, 28), n_classes: int = 10, **options: Any) -> CapsNet:
    """Build the paper's network: 8.2 M parameters with decoder, 6.8 M without, on 28×28 (figure 1)."""
    return CapsNet(image_shape, n_classes, **options)


def capsnet_small(image_shape: tuple[int, int, int] = (1, 28, 28), n_classes: int = 10, **options: Any) -> CapsNet:
    """Build a small CapsNet: 64 filters, 8 types of primary capsules. Trains in two minutes on a CPU."""
    return CapsNet(image_shape, n_classes, **{"channels": 64, "n_types": 8, **options})


def capsnet_stacked(image_shape: tuple[int, int, int] = (1, 28, 28), n_classes: int = 10, **options: Any) -> CapsNet:
    """Build a small CapsNet with one layer of convolutional capsules in between: three layers of capsules."""
    return capsnet_small(image_shape, n_classes, **{"hidden": (HiddenCaps(),), **options})


def capsnet_deep(image_shape: tuple[int, int, int] = (1, 28, 28), n_classes: int = 10, **options: Any) -> CapsNet:
    """Build a deep CapsNet: five convolutions of 3×3, the second of stride 2, instead of one of 9×9; 4.1 M parameters.

    Of as many overlapping digits it learns more than the paper's network, in about half the time (recipe
    ``multimnist-deep``).
    """
    deep = {"channels": 64, "kernel_size": 3, "padding": 1}
    stem = (HiddenConv(64, stride=2), HiddenConv(), HiddenConv(), HiddenConv())
    return capsnet(image_shape, n_classes, **{**deep, "stem": stem, **options})
