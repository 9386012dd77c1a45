"""Capsules behind any backbone: a network that turns images into a feature map."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from importlib import import_module
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from torchcaps.checks import as_number, check_at_least, check_choice, check_flag
from torchcaps.layers import DenseCaps, PrimaryCaps
from torchcaps.layers.modes import eval_mode
from torchcaps.layers.routing import Routing
from torchcaps.layers.routings import as_routing
from torchcaps.layers.shapes import as_image_shape, image_too_small, require_images
from torchcaps.types import ModelOutput

LAYOUTS = ("NCHW", "NHWC")
#: In front of the name of a backbone of the library timm.
TIMM = "timm:"


class BackboneCapsNet(nn.Module):
    """Backbone → primary capsules → class capsules.

    The features of each image are brought to zero mean and unit variance, so that capsules start neither dead nor
    saturated, whatever the backbone's scale is.

    Args:
        backbone: a module that takes images ``[B, C, H, W]`` and returns a feature map ``[B, F, h, w]``, or several of
            which the last is taken; "plain" for five convolutions of stride 2 with group normalization, 1.0 M
            parameters; or "timm:NAME" for one of timm's, with ``pip install timm``.
        image_shape: (channels, height, width).
        n_classes: class capsules.
        pretrained: take timm's trained weights, which it downloads.
        frozen: train the capsules alone: the backbone stays as it is, in evaluation mode.
        mean, std: of each channel, which the backbone was trained with: it sees (image − mean) / std. By default those
            of timm's weights, and 0 and 1 for a module of your own.
        layout: "NHWC" for a backbone whose maps have their channels last; timm's say so themselves.
        n_types: types of primary capsules.
        d_primary: their pose size.
        kernel_size: of the primary capsules.
        stride: of the primary capsules.
        d_class: pose size of the class capsules.
        routing: of the class capsules, as :class:`~torchcaps.layers.DenseCaps` has it.

    Raises:
        ValueError: the backbone returns no feature map, images are too small for it, or timm is not there.

    Example:
        >>> import torch
        >>> backbone = nn.Sequential(nn.Conv2d(3, 16, 5, stride=4), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2))
        >>> model = BackboneCapsNet(backbone, (3, 64, 64), 5, n_types=4)
        >>> model(torch.rand(2, 3, 64, 64)).scores.shape
        torch.Size([2, 5])
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        backbone: nn.Module | str,
        image_shape: tuple[int, int, int],
        n_classes: int,
        *,
        pretrained: bool = False,
        frozen: bool = False,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        layout: str = "NCHW",
        n_types: int = 32,
        d_primary: int = 8,
        kernel_size: int = 1,
        stride: int = 1,
        d_class: int = 16,
        routing: Routing | str = "dynamic",
    ) -> None:
        super().__init__()
        self.image_shape, self.n_classes = as_image_shape(image_shape), n_classes
        for name, value in {
            "n_classes": n_classes,
            "n_types": n_types,
            "d_primary": d_primary,
            "d_class": d_class,
        }.items():
            check_at_least(name, value, 1)
        check_flag("pretrained", pretrained)
        check_flag("frozen", frozen)
        check_choice("layout", layout, LAYOUTS)
        if backbone == "plain":
            backbone = _plain(self.image_shape[0])
        if isinstance(backbone, str):
            backbone, layout, statistics = _of_timm(backbone, self.image_shape[0], pretrained)
            mean, std = mean or statistics[0], std or statistics[1]
        elif pretrained:
            raise ValueError("pretrained must be False for a backbone of your own, which has its weights; got True")
        if not isinstance(backbone, nn.Module):
            raise ValueError(f"backbone must be a module, 'plain' or 'timm:NAME', got a {type(backbone).__name__}")
        self.backbone, self.frozen, self.layout = backbone, frozen, layout
        if frozen:
            backbone.requires_grad_(False).eval()
        self._statistics = dict[str, list[float]]()
        for name, values, default in (("mean", mean, 0.0), ("std", std, 1.0)):
            numbers = [default] * self.image_shape[0] if values is None else values
            if not isinstance(numbers, Sequence) or len(numbers) != self.image_shape[0]:
                raise ValueError(f"{name} must have a number for each of {self.image_shape[0]} channels, got {values}")
            numbers = self._statistics[name] = [as_number(f"each of {name}", number) for number in numbers]
            self.register_buffer(name, torch.tensor(numbers).view(-1, 1, 1))
        n_features, height, width = self._map_shape()
        self.normalize = nn.GroupNorm(1, n_features, eps=1e-12, affine=False)
        self.primary = PrimaryCaps(n_features, n_types, d_primary, kernel_size, stride=stride, mean_square=1.0)
        with image_too_small(self.image_shape):
            height, width = self.primary.output_size(height, width)
        self.map_shape = (n_types, height, width)  #: of the primary capsules
        routing = as_routing(routing).above(self.primary.pose_scale)
        self.classes = DenseCaps(n_types * height * width, n_classes, d_primary, d_class, routing=routing)

    def forward(self, x: Tensor, *, n_iters: int | None = None, return_coupling: bool = False) -> ModelOutput:
        """Find the classes in images.

        Args:
            x: ``[B, C, H, W]``, values 0 … 1.
            n_iters: another number of iterations of the routing.
            return_coupling: keep the couplings of the class capsules.

        Returns:
            Scores: the class capsules' lengths ``[B, J]``.

        Raises:
            ValueError: images of another shape than the model was made for, or no floats.
        """
        require_images(x, self.image_shape)
        lower = self.primary(self.normalize(self.features(x)))
        upper = self.classes(lower, n_iters=n_iters, return_coupling=return_coupling)
        return ModelOutput(upper.activation, (lower, upper))

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the initial values anew, in place; those of a backbone too, unless it is frozen."""
        for name, numbers in self._statistics.items():
            getattr(self, name).copy_(torch.tensor(numbers).view(-1, 1, 1))
        for part in (self.primary, self.classes, *(() if self.frozen else self.backbone.modules())):
            if callable(reset := getattr(part, "reset_parameters", None)):
                reset()

    def features(self, x: Tensor) -> Tensor:
        """Return the backbone's feature map ``[B, F, h, w]`` of images ``[B, C, H, W]``.

        Raises:
            ValueError: it returns none.
        """
        with torch.no_grad() if self.frozen and not x.requires_grad else nullcontext():
            found = self.backbone((x - self.mean) / self.std)
        if isinstance(found, Sequence) and found:
            found = found[-1]
        if not isinstance(found, Tensor) or found.dim() != 4:
            got = f"shape {list(found.shape)}" if isinstance(found, Tensor) else f"a {type(found).__name__}"
            raise ValueError(
                f"backbone must return a feature map [B, F, h, w], got {got}: leave its pooling and its classifier out"
            )
        return found.permute(0, 3, 1, 2) if self.layout == "NHWC" else found

    def train(self, mode: bool = True) -> BackboneCapsNet:
        """Switch to training; a frozen backbone stays in evaluation mode."""
        super().train(mode)
        if self.frozen:
            self.backbone.eval()
        return self

    @torch.no_grad()
    def _map_shape(self) -> tuple[int, int, int]:
        with eval_mode(self), image_too_small(self.image_shape):
            _, channels, height, width = self.features(torch.zeros(1, *self.image_shape)).shape
        return channels, height, width


def capsnet_backbone(
    image_shape: tuple[int, int, int] = (3, 224, 224),
    n_classes: int = 10,
    backbone: nn.Module | str = "plain",
    **options: Any,
) -> BackboneCapsNet:
    """Build capsules behind a backbone for photographs, such as ``backbone="timm:resnet18", pretrained=True``."""
    return BackboneCapsNet(backbone, image_shape, n_classes, **options)


def _plain(channels: int) -> nn.Module:
    """Make five convolutions of 3×3 and stride 2, each with group normalization and a ReLU."""
    widths = (channels, 32, 64, 128, 256, 256)
    blocks = [
        nn.Sequential(nn.Conv2d(a, b, 3, stride=2, padding=1, bias=False), nn.GroupNorm(8, b), nn.ReLU())
        for a, b in pairwise(widths)
    ]
    return nn.Sequential(*blocks)


def _of_timm(name: str, channels: int, pretrained: bool) -> tuple[nn.Module, str, tuple[Any, Any]]:
    """Return a backbone of timm, the layout of its maps, and mean and standard deviation of its images."""
    if not name.startswith(TIMM):
        raise ValueError(f"backbone must be a module, 'plain' or 'timm:NAME', got {name!r}")
    try:
        timm: Any = import_module("timm")
    except ModuleNotFoundError as error:
        raise ValueError(f"backbone {name} needs timm, which is not there ({error}): pip install timm") from error
    try:
        made = timm.create_model(
            name.removeprefix(TIMM), pretrained=pretrained, features_only=True, out_indices=(-1,), in_chans=channels
        )
    except Exception as error:  # timm raises whatever its models do
        raise ValueError(f"timm makes no backbone {name.removeprefix(TIMM)}: {error}") from error
    settings = timm.get_pretrained_cfg(name.removeprefix(TIMM))
    layout = "NHWC" if str(getattr(made, "output_fmt", "")).endswith("NHWC") else "NCHW"
    if not pretrained or settings is None or len(settings.mean) != channels:
        return made, layout, (None, None)
    return made, layout, (settings.mean, settings.std)
