"""Matrix capsules with EM routing (Hinton, Sabour, Frosst 2018)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchcaps.checks import check_at_least, check_choice, check_flag
from torchcaps.layers import ClassCaps, ConvCaps, MatrixPrimaryCaps, PrimaryCaps, Standardize
from torchcaps.layers.convolution import ReLUConv2d
from torchcaps.layers.init import LEFT, reset_layers, truncated_normal_
from torchcaps.layers.routing import Routing, understood
from torchcaps.layers.routings import EMRouting, as_routing
from torchcaps.layers.shapes import as_image_shape, conv_size, image_too_small, receptive_field, require_images
from torchcaps.models.specs import HiddenConv, build_stem, read_layers
from torchcaps.ops import Capsules
from torchcaps.ops.em.settings import em_settings
from torchcaps.ops.votes import PLACEMENTS
from torchcaps.types import ModelOutput

INITIAL = ("half-active", "released")


class MatrixCapsNet(nn.Module):
    """Convolution → primary capsules → two layers of convolutional capsules → class capsules.

    Args:
        image_shape: (channels, height, width).
        n_classes: class capsules; the paper's E.
        A: channels of the first convolution, 5×5, stride 2.
        B: types of primary capsules.
        C: types of the first convolutional capsules, K=3, stride 2.
        D: types of the second, K=3, stride 1.
        routing: of every routed layer, as :class:`~torchcaps.layers.DenseCaps` has it. With
            ``EMRouting(pose="vector")`` poses are vectors (the paper's ablation). A routing that needs no activations,
            such as "dynamic", gets squashed vectors of 16 numbers; not in the paper. Leave ``pose_scale`` alone, each
            layer has its own.
        coordinates: coordinate addition, "column" (the paper), "row" (the released code) or None; only for
            routings that know an offset, as EM.
        standardize: bring each image to zero mean and unit variance first.
        stem: between the first one and the primary capsules, each with a ReLU behind it:
            :class:`~torchcaps.models.HiddenConv`, or dicts of its fields. The paper has none.
        normalize: batch normalization behind every convolution, of poses and logits too; the paper has none. In
            training an image's capsules depend on its batch then.
        initial: initial values, "half-active" (:mod:`torchcaps.layers.init`) or "released" (those of the
            authors' released code, of whose capsules few are active; of half the width for vectors). With these the
            variance floor and the scale of the coordinates are the same in every layer, as in that code; with others
            they follow the poses, which shrink from layer to layer: weights are for networks of the same ``initial``.
            The recipes of small NORB have it "released", with ``EMRouting(settings="released")``.

    Example:
        >>> import torch
        >>> output = MatrixCapsNet((2, 32, 32), 5, A=8, B=4, C=4, D=4)(torch.rand(1, 2, 32, 32))
        >>> output.scores.shape, output.capsules[-1].pose.shape
        (torch.Size([1, 5]), torch.Size([1, 5, 4, 4]))

    Source: Hinton, Sabour, Frosst 2018, section 4, figure 1.
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int] = (2, 32, 32),
        n_classes: int = 5,
        *,
        A: int = 32,  # noqa: N803
        B: int = 32,  # noqa: N803
        C: int = 32,  # noqa: N803
        D: int = 32,  # noqa: N803
        routing: Routing | str = "em",
        coordinates: str | None = "column",
        standardize: bool = True,
        stem: Sequence[HiddenConv | Mapping[str, Any]] = (),
        normalize: bool = False,
        initial: str = "half-active",
    ) -> None:
        super().__init__()
        check_choice("initial", initial, INITIAL)
        routing = as_routing(routing)
        if coordinates is not None:
            check_choice("coordinates", coordinates, PLACEMENTS)
        check_flag("standardize", standardize)
        check_flag("normalize", normalize)
        if normalize and not routing.needs_activations:
            raise ValueError(f"normalize must be False with {routing.name} routing, got True")
        between = read_layers("stem", stem, HiddenConv)
        if initial == "released":
            routing = _as_released(routing)
        for name, value in {"n_classes": n_classes, "A": A, "B": B, "C": C, "D": D}.items():
            check_at_least(name, value, 1)
        if routing.pose_scale != 1.0:
            raise ValueError(f"pose_scale must be left to the layers, each has its own; got {routing.pose_scale}")
        image_shape = as_image_shape(image_shape)
        self.image_shape, self.n_classes, self.normalize = image_shape, n_classes, normalize
        self.standardize = Standardize() if standardize else nn.Identity()
        self.conv = ReLUConv2d(image_shape[0], A, 5, stride=2)
        with image_too_small(image_shape):
            self.stem, channels, size = build_stem(between, A, conv_size(image_shape[1:], 5, 2))
        self.norms = nn.ModuleList(
            nn.BatchNorm2d(width) if normalize else nn.Identity() for width in (A, *(spec.channels for spec in between))
        )
        mean_square = 1.0 if standardize or normalize else 0.2  # of its features, as in CapsNet
        bias = -1.0 if initial == "released" else 0.0
        self.primary = (
            MatrixPrimaryCaps(channels, B, pose=routing.pose, activation_bias=bias, normalize=normalize)
            if routing.needs_activations
            else PrimaryCaps(channels, B, 16, 1, mean_square=mean_square)
        )
        self.hidden = nn.ModuleList()
        with image_too_small(image_shape):
            size, types = self.primary.output_size(*size), B
        scale = math.sqrt(mean_square)
        for n_types, stride in ((C, 2), (D, 1)):
            layer = ConvCaps(types, n_types, 16, 16, 3, stride=stride, routing=routing.above(scale))
            self.hidden.append(layer)
            with image_too_small(image_shape):
                layer.routing.check_map(size, layer.kernel_size, layer.stride)
                size, types, scale = layer.output_size(*size), n_types, layer.pose_scale
        self.map_shape = (D, *size)  #: (T, H, W) of the capsules below the class capsules
        spacing, centre = self._grid(size)
        self.classes = ClassCaps(
            D,
            n_classes,
            16,
            16,
            routing=routing.above(scale).for_classes(),
            map_size=size,
            coordinates=coordinates if "offset" in understood(type(routing)) else None,
            spacing=spacing,
            centre=centre,
            coordinate_scale=100.0 if initial == "released" else None,
        )
        self.decoder = None
        self.initial = initial
        if initial == "released":
            _start_as_released(self)

    def _grid(self, map_size: tuple[int, int]) -> tuple[tuple[float, float], tuple[float, float]]:
        """Return the spacing of the last map's places, and its centre in pixels from the image's."""
        fields = [receptive_field(axis, (self.conv, *self.stem, *self.hidden)) for axis in (0, 1)]
        (rows, columns) = (
            first + step * (n - 1) / 2 - (extent - 1) / 2
            for (first, step, _), n, extent in zip(fields, map_size, self.image_shape[1:], strict=True)
        )
        return (float(fields[0][1]), float(fields[1][1])), (rows, columns)

    def reset_parameters(self) -> None:
        """Draw the initial values anew, in place: to train again, or after :meth:`torch.nn.Module.to_empty`."""
        reset_layers(self)
        if self.initial == "released":
            _start_as_released(self)

    def forward(self, x: Tensor, *, n_iters: int | None = None, return_coupling: bool = False) -> ModelOutput:
        """Find the classes in images.

        Args:
            x: ``[B, C, H, W]``.
            n_iters: overrides the number of iterations of every routing.
            return_coupling: keep the couplings of every routing.

        Returns:
            Scores: the class capsules' activations ``[B, J]``.

        Raises:
            ValueError: images of another shape than the model was made for, or no floats.
        """
        require_images(x, self.image_shape)
        x = self.standardize(x)
        for convolution, norm in zip((self.conv, *self.stem), self.norms, strict=True):
            x = F.relu(norm(convolution(x)))
        capsules: list[Capsules] = [self.primary(x)]
        for layer in (*self.hidden, self.classes):
            capsules.append(layer(capsules[-1], n_iters=n_iters, return_coupling=return_coupling))
        return ModelOutput(capsules[-1].activation, tuple(capsules))


@torch.no_grad()
def _start_as_released(model: MatrixCapsNet) -> None:
    """Initial values of the authors' code, whose truncated normals name the width before the cut.

    They are for matrices, where a number of a vote has four terms. Of a vector it has 16: with half the width votes
    spread as far as those of matrices, and as many capsules are active.
    """
    truncated_normal_(model.conv.weight, 0.05 * LEFT)
    nn.init.constant_(model.conv.bias, 0.1)  # type: ignore[arg-type]
    assert isinstance(model.primary, MatrixPrimaryCaps)  # the initial values are for EM routing alone
    n_types = model.primary.n_types
    poses, activations = model.primary.weight.split((n_types * model.primary.d_out, n_types))
    truncated_normal_(poses, 0.5 * LEFT)
    truncated_normal_(activations, 3.0 * LEFT)
    model.primary.weight.copy_(torch.cat((poses, activations)))  # of a sharded weight the parts are copies
    if model.normalize:  # about as far as these weights let them spread without it
        model.primary.set_spreads(1.0, 3.0)
    for layer, std, *betas in (*((h, 0.3, 0.5, 0.5) for h in model.hidden), (model.classes, 0.01, 2.0, 1.0)):
        # By name: of a pruned or a parametrised layer they are not among its parameters.
        weight, *prices = (getattr(layer, name) for name in ("weight", "beta_u", "beta_a"))
        truncated_normal_(weight, std * LEFT * math.sqrt(4 / weight.shape[-2]))
        for price, beta in zip(prices, betas, strict=True):
            price.fill_(beta)


def _as_released(routing: Routing) -> Routing:
    """Return the routing with one variance floor in every layer, however far its poses spread.

    Raises:
        ValueError: Another routing than EM, or one that has initial values of its own.
    """
    if not isinstance(routing, EMRouting):
        raise ValueError(f"initial must be half-active with {routing.name} routing, got released")
    for name in ("weight_std", "beta_u_init", "beta_a_init"):
        if getattr(routing, name) != getattr(EMRouting, name):
            raise ValueError(f"{name} must be left to initial='released', got {getattr(routing, name)}")
    if not isinstance(routing.settings, str) or routing.variance_floor is not None:
        return routing
    return replace(routing, variance_floor=em_settings(routing.settings, dense=False).variance_floor)


def matrix_capsnet(
    image_shape: tuple[int, int, int] = (2, 32, 32), n_classes: int = 5, **options: Any
) -> MatrixCapsNet:
    """Build the paper's network, A=B=C=D=32: 317 K parameters (310 K as printed) for 2×32×32 images and 5 classes."""
    return MatrixCapsNet(image_shape, n_classes, **options)


def matrix_capsnet_small(
    image_shape: tuple[int, int, int] = (2, 32, 32), n_classes: int = 5, **options: Any
) -> MatrixCapsNet:
    """Build the paper's small network, A=64, B=8, C=D=16: 68 K parameters; 2.2 % on small NORB in the paper."""
    return MatrixCapsNet(image_shape, n_classes, **{"A": 64, "B": 8, "C": 16, "D": 16, **options})


def matrix_capsnet_deep(
    image_shape: tuple[int, int, int] = (2, 32, 32), n_classes: int = 5, **options: Any
) -> MatrixCapsNet:
    """Build the small network with a second convolution and batch normalization before routing: 106 K parameters.

    Not in the paper; it learns small NORB's training toys in fewer epochs.
    """
    return matrix_capsnet_small(image_shape, n_classes, **{"stem": (HiddenConv(64),), "normalize": True, **options})
