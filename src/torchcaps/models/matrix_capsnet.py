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
from torchcaps.layers.init import LEFT, reset_layers, truncated_normal_
from torchcaps.layers.plain_conv import ReLUConv2d
from torchcaps.layers.routed_layer import check_options
from torchcaps.layers.routings import POSES
from torchcaps.layers.sizes import as_image_shape, conv_size, fitting, receptive_field, require_images
from torchcaps.models.hidden import HiddenConv, read_layers, stacked
from torchcaps.models.output import Output
from torchcaps.ops import EMSettings, Routed
from torchcaps.ops.em_settings import em_settings
from torchcaps.ops.votes import PLACEMENTS, check_overlap

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
        n_iters: iterations of every routing.
        routing: of every routed layer, "em", or "dynamic": of squashed vectors of 16 numbers then, for which ``pose``
            and ``coordinates`` mean nothing, and ``initial`` cannot be "released"; not in the paper.
        pose: "matrix", or "vector" (the paper's ablation).
        coordinates: coordinate addition, "column" (the paper), "row" (the released code) or None.
        standardize: bring each image to zero mean and unit variance first.
        convolutions: between the first one and the primary capsules, each with a ReLU behind it:
            :class:`~torchcaps.models.HiddenConv`, or dicts of its fields. The paper has none.
        normalize: batch normalization behind every convolution, of poses and logits too; the paper has none. In
            training an image's capsules depend on its batch then.
        initial: initial values, "half-active" (:mod:`torchcaps.layers.em_init`) or "released" (those of the
            authors' released code, of whose capsules few are active; of half the width for vectors). With these the
            variance floor and the scale of the coordinates are the same in every layer, as in that code; with others
            they follow the poses, which shrink from layer to layer: weights are for networks of the same ``initial``.
        options: of every routed layer: ``settings`` ("released" by default, or "paper"), ``gradient``, ``impl`` …;
            ``compete="positions"`` of the convolutional ones. The recipes of small NORB have ``settings="released",
            initial="released"``.

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
        n_iters: int = 3,
        routing: str = "em",
        pose: str = "matrix",
        coordinates: str | None = "column",
        standardize: bool = True,
        convolutions: Sequence[HiddenConv | Mapping[str, Any]] = (),
        normalize: bool = False,
        initial: str = "half-active",
        **options: Any,
    ) -> None:
        super().__init__()
        check_choice("initial", initial, INITIAL)
        check_choice("routing", routing, ("em", "dynamic"))  # a further one would want a first layer of its own
        check_choice("pose", pose, POSES)
        if coordinates is not None:
            check_choice("coordinates", coordinates, PLACEMENTS)
        check_flag("standardize", standardize)
        check_flag("normalize", normalize)
        if normalize and routing != "em":
            raise ValueError(f"normalize must be False with {routing} routing, got True")
        between = read_layers("convolutions", convolutions, HiddenConv)
        if initial == "released" and routing != "em":
            raise ValueError(f"initial must be half-active with {routing} routing, got released")
        for name, value in {"n_classes": n_classes, "A": A, "B": B, "C": C, "D": D}.items():
            check_at_least(name, value, 1)
        if "pose_scale" in options:
            raise ValueError(f"pose_scale must be left to the layers, each has its own; got {options['pose_scale']}")
        check_options(routing, options)
        for name in ("weight_std", "beta_u_init", "beta_a_init"):
            if initial == "released" and name in options:
                raise ValueError(f"{name} must be left to initial='released', got {options[name]}")
        image_shape = as_image_shape(image_shape)
        self.image_shape, self.n_classes, self.normalize = image_shape, n_classes, normalize
        self.standardize = Standardize() if standardize else nn.Identity()
        self.conv = ReLUConv2d(image_shape[0], A, 5, stride=2)
        with fitting(image_shape):
            self.convolutions, channels, size = stacked(between, A, conv_size(image_shape[1:], 5, 2))
        self.norms = nn.ModuleList(
            nn.BatchNorm2d(width) if normalize else nn.Identity() for width in (A, *(spec.channels for spec in between))
        )
        mean_square = 1.0 if standardize or normalize else 0.2  # of its features, as in CapsNet
        bias = -1.0 if initial == "released" else 0.0
        self.primary = (
            MatrixPrimaryCaps(channels, B, pose=pose, activation_bias=bias, normalize=normalize)
            if routing == "em"
            else PrimaryCaps(channels, B, 16, 1, mean_square=mean_square)
        )
        named = options.get("settings", "released")
        if initial == "released" and isinstance(named, str):  # the same in every layer, however far its poses spread
            options = {"variance_floor": em_settings(named, dense=False).variance_floor, **options}
        self.hidden = nn.ModuleList()
        with fitting(image_shape):
            size, types = self.primary.output_size(*size), B
        scale = math.sqrt(mean_square)
        for n_types, stride in ((C, 2), (D, 1)):
            options |= _em_options(routing, pose, scale)
            layer = ConvCaps(types, n_types, 16, 16, 3, n_iters, stride=stride, routing=routing, **options)
            self.hidden.append(layer)
            with fitting(image_shape):
                _require_routing(layer, size)
                size, types, scale = layer.output_size(*size), n_types, layer.pose_scale
        self.map_shape = (D, *size)  #: (T, H, W) of the capsules below the class capsules
        options |= _em_options(routing, pose, scale) | {"map_size": size}
        options = _for_classes(options)
        if routing == "em" and coordinates is not None:
            spacing, centre = self._grid(size)
            options |= {"coordinates": coordinates, "spacing": spacing, "centre": centre}
            options |= {"coordinate_scale": 100.0} if initial == "released" else {}
        self.classes = ClassCaps(D, n_classes, 16, 16, n_iters, routing=routing, **options)
        self.decoder = None
        self.initial = initial
        if initial == "released":
            _start_as_released(self)

    def _grid(self, map_size: tuple[int, int]) -> tuple[tuple[float, float], tuple[float, float]]:
        """How far apart the places of the last map are, and where its centre lies, in pixels from the image's."""
        fields = [receptive_field(axis, (self.conv, *self.convolutions, *self.hidden)) for axis in (0, 1)]
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

    def forward(self, x: Tensor, *, n_iters: int | None = None, return_coupling: bool = False) -> Output:
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
        for convolution, norm in zip((self.conv, *self.convolutions), self.norms, strict=True):
            x = F.relu(norm(convolution(x)))
        capsules: list[Routed] = [self.primary(x)]
        for layer in (*self.hidden, self.classes):
            capsules.append(layer(capsules[-1], n_iters=n_iters, return_coupling=return_coupling))
        return Output(capsules[-1].activation, tuple(capsules))


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


def _em_options(routing: str, pose: str, scale: float) -> dict[str, Any]:
    """What EM layers are told, and others do not know."""
    return {"pose": pose, "pose_scale": scale} if routing == "em" else {}


def _for_classes(options: dict[str, Any]) -> dict[str, Any]:
    """The options with competition among all: of positions class capsules have one."""
    settings = options.get("settings")
    if isinstance(settings, EMSettings) and settings.compete == "positions":
        options = options | {"settings": replace(settings, compete="all")}
    return options | {"compete": "all"} if options.get("compete") == "positions" else options


def _require_routing(layer: ConvCaps, size: tuple[int, int]) -> None:
    """Refuse images on which the layer would find one place, where its children have no choice."""
    settings = layer.options.get("settings")
    if settings is not None and settings.compete == "positions" and layer.n_iters > 1:
        check_overlap(size, layer.kernel_size, layer.stride)


def matrix_capsnet(
    image_shape: tuple[int, int, int] = (2, 32, 32), n_classes: int = 5, **options: Any
) -> MatrixCapsNet:
    """The paper's network, A=B=C=D=32: 317 K parameters (310 K as printed) for 2×32×32 images and 5 classes."""
    return MatrixCapsNet(image_shape, n_classes, **options)


def matrix_capsnet_small(
    image_shape: tuple[int, int, int] = (2, 32, 32), n_classes: int = 5, **options: Any
) -> MatrixCapsNet:
    """The paper's small network, A=64, B=8, C=D=16: 68 K parameters; 2.2 % on small NORB in the paper."""
    return MatrixCapsNet(image_shape, n_classes, **{"A": 64, "B": 8, "C": 16, "D": 16, **options})


def matrix_capsnet_deep(
    image_shape: tuple[int, int, int] = (2, 32, 32), n_classes: int = 5, **options: Any
) -> MatrixCapsNet:
    """The small network with a second convolution, and batch normalization of all that is before routing: 106 K
    parameters. Not in the paper; it learns small NORB's training toys in fewer epochs.
    """
    return matrix_capsnet_small(
        image_shape, n_classes, **{"convolutions": (HiddenConv(64),), "normalize": True, **options}
    )
