"""EM routing (Hinton, Sabour, Frosst 2018), as an object that layers are given."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, fields, replace
from functools import partial
from typing import Any, ClassVar, Self

from torch import Tensor

from torchcaps.checks import check_choice, check_number, check_positive
from torchcaps.layers.init import EMInit, em_init, truncated_normal_
from torchcaps.layers.routing import Init, Part, Routing, Sizes
from torchcaps.layers.routings.options import check_iterated, check_weight_std, known_sizes, shaped
from torchcaps.ops import Capsules, conv_em_routing, em_routing
from torchcaps.ops.em.checks import check_dense_choice
from torchcaps.ops.em.settings import SMALLEST, EMSettings, em_settings
from torchcaps.ops.votes import check_overlap

POSES = ("matrix", "vector")


@dataclass(frozen=True)
class EMRouting(Routing):
    """EM routing of 4×4 matrices or of vectors, see :func:`torchcaps.ops.em_routing`.

    Attributes:
        n_iters: Iterations.
        pose: "matrix" for 4×4, or "vector" for any size.
        settings: "released", "paper", or an :class:`~torchcaps.ops.EMSettings`.
        pose_scale: Standard deviation of the poses below at first. Hand over the ``pose_scale`` of the layer below, as
            the networks do; else the poses of a stack drift.
        weight_std: Standard deviation of the initial transformation matrices; by default it follows from the sizes.
        beta_u_init: Initial β_u; by default it follows from ``pose_scale``.
        beta_a_init: Initial β_a.
        backprop: "full", or "last" for the gradient of the last iteration alone.
        backend: What computes it, see :func:`torchcaps.ops.which_backend`.

    Each of ``compete``, ``start``, ``final_lambda``, ``lambda_decay``, ``damping``, ``variance_floor``, ``mass_floor``,
    ``cost_scale``, ``beta_u_scale``, ``beta_a_scale`` and ``normalize`` replaces the field of this name in the
    settings; None keeps it.

    The variance floor of named settings is for poses of deviation 1. Unless ``variance_floor`` is given it is
    multiplied by ``pose_scale²``. Layers save the floor with their weights.

    Raises:
        ValueError: A value out of range.

    Example:
        >>> from torchcaps import DenseCaps
        >>> DenseCaps(6, 3, 16, 16, routing=EMRouting(n_iters=2, settings="paper")).routing.n_iters
        2

    Source: Hinton, Sabour, Frosst 2018, section 3.
    """

    name: ClassVar[str] = "em"
    needs_activations: ClassVar[bool] = True

    n_iters: int = 3
    _: KW_ONLY
    pose: str = "matrix"
    settings: str | EMSettings = "released"
    pose_scale: float = 1.0
    weight_std: float | None = None
    beta_u_init: float | None = None
    beta_a_init: float = 0.0
    backprop: str = "full"
    backend: str = "auto"
    compete: str | None = None
    start: str | None = None
    final_lambda: float | None = None
    lambda_decay: float | None = None
    damping: float | None = None
    variance_floor: float | None = None
    mass_floor: float | None = None
    cost_scale: float | None = None
    beta_u_scale: float | None = None
    beta_a_scale: float | None = None
    normalize: bool | None = None

    def __post_init__(self) -> None:
        check_iterated(n_iters=self.n_iters, backprop=self.backprop, backend=self.backend)
        check_weight_std(self.weight_std)
        check_choice("pose", self.pose, POSES)
        for name in ("beta_u_init", "beta_a_init"):
            if not (name == "beta_u_init" and self.beta_u_init is None):
                check_number(name, getattr(self, name))
        check_positive("pose_scale", self.pose_scale)
        self._changed(dense=True)

    def _changed(self, *, dense: bool) -> EMSettings:
        """Return the settings with the fields that are given besides."""
        changes = {field.name: getattr(self, field.name) for field in fields(EMSettings)}
        given = {name: value for name, value in changes.items() if value is not None}
        return em_settings(self.settings, dense=dense, **given)

    def resolve(self, sizes: Sizes) -> Self:
        """Return this routing with an :class:`~torchcaps.ops.EMSettings` whose floor fits the poses below."""
        if self.pose == "matrix" and (sizes.d_in, sizes.d_out) != (16, 16):
            raise ValueError(
                f"d_in and d_out must be 16 for 4×4 matrices, got {sizes.d_in} and {sizes.d_out}; or take pose='vector'"
            )
        settings = self._changed(dense=sizes.dense)
        if isinstance(self.settings, str) and self.variance_floor is None:
            # Each layer's poses spread less than those below. A floor that stays would cover their votes' agreement.
            floor = settings.variance_floor * float(self.pose_scale) ** 2
            if not SMALLEST <= floor < math.inf:
                raise ValueError(
                    f"pose_scale must leave the variance floor, {settings.variance_floor} · pose_scale², "
                    f"at {SMALLEST:.3g} or more and finite, got {self.pose_scale}"
                )
            settings = replace(settings, variance_floor=floor)
        if sizes.dense:
            check_dense_choice(settings, self.n_iters)
        return replace(self, settings=settings, **dict.fromkeys(_SETTINGS))

    def _initial(self, sizes: Sizes) -> EMInit:
        settings = self.settings if isinstance(self.settings, EMSettings) else self._changed(dense=sizes.dense)
        inner = 4 if self.pose == "matrix" else sizes.d_in
        return em_init(sizes.n_children, inner, float(self.pose_scale), settings)

    def parts(self, sizes: Sizes) -> Mapping[str, Part]:
        """Name the weight and the two learned costs of each upper capsule."""
        n_in, n_out, d_in, d_out = known_sizes(sizes)
        inner = (4, 4) if self.pose == "matrix" else (d_in, d_out)
        initial = self._initial(sizes)
        std = initial.weight_std if self.weight_std is None else self.weight_std
        beta_u = initial.beta_u if self.beta_u_init is None else self.beta_u_init
        return {
            "weight": Init((n_in, n_out, *inner), partial(truncated_normal_, std=std), per_child=True),
            "beta_u": Init.constant((n_out,), beta_u),
            "beta_a": Init.constant((n_out,), self.beta_a_init),
        }

    def pose_scale_out(self, sizes: Sizes) -> float:
        """Return the deviation that the means have at first."""
        return self._initial(sizes).pose_scale

    def with_full_gradient(self) -> Self:
        """Return this routing with a gradient through every iteration."""
        return replace(self, backprop="full")

    def above(self, pose_scale: float) -> Self:
        """Return this routing for poses of this deviation."""
        return replace(self, pose_scale=pose_scale)

    def for_classes(self) -> Self:
        """Return this routing with competition among all, as class capsules have one position."""
        settings = self.settings
        if isinstance(settings, EMSettings) and settings.compete == "positions":
            settings = replace(settings, compete="all")
        return replace(self, settings=settings, compete="all" if self.compete == "positions" else self.compete)

    def check_map(self, size: tuple[int, int], kernel_size: tuple[int, int], stride: tuple[int, int]) -> None:
        """Refuse a map in whose receptive fields nothing competes."""
        if self._changed(dense=False).compete == "positions" and self.n_iters > 1:
            check_overlap(size, kernel_size, stride)

    def constants(self) -> dict[str, float]:
        """Return the variance floor, which depends on the layer below."""
        return {"variance_floor": self._changed(dense=False).variance_floor}

    def with_constants(self, constants: Mapping[str, float]) -> Self:
        """Return this routing with the variance floor of loaded weights."""
        assert isinstance(self.settings, EMSettings)  # a layer's routing is resolved
        return replace(self, settings=replace(self.settings, variance_floor=constants["variance_floor"]))

    def route(
        self,
        capsules: Capsules,
        parts: Mapping[str, Any],
        *,
        return_coupling: bool = False,
        n_iters: int | None = None,
        offset: Tensor | None = None,
    ) -> Capsules:
        """Route by :func:`torchcaps.ops.em_routing`."""
        return em_routing(
            shaped(capsules.pose, self.pose),
            capsules.activation,
            **parts,
            offset=None if offset is None else shaped(offset, self.pose),
            **self._options(n_iters, return_coupling),
        )

    def route_map(
        self,
        capsules: Capsules,
        parts: Mapping[str, Any],
        *,
        kernel_size: tuple[int, int],
        stride: tuple[int, int],
        state: Capsules | None = None,
        return_coupling: bool = False,
        n_iters: int | None = None,
        **_: Any,
    ) -> Capsules:
        """Route a map among all fields that see a capsule, see :func:`torchcaps.ops.conv_em_routing`."""
        options = self._options(n_iters, return_coupling)
        if options["settings"].compete == "positions" and options["n_iters"] > 1:  # else nothing would be routed
            check_overlap((capsules.pose.shape[2], capsules.pose.shape[3]), kernel_size, stride)
        return conv_em_routing(
            shaped(capsules.pose, self.pose),
            capsules.activation,
            parts["weight"].unflatten(0, (capsules.pose.shape[1], *kernel_size)),
            beta_u=parts["beta_u"],
            beta_a=parts["beta_a"],
            stride=stride,
            **options,
        )

    def _options(self, n_iters: int | None, return_coupling: bool) -> dict[str, Any]:
        return {
            "n_iters": self.n_iters if n_iters is None else n_iters,
            "settings": self.settings,
            "backprop": self.backprop,
            "backend": self.backend,
            "return_coupling": return_coupling,
        }


_SETTINGS = tuple(field.name for field in fields(EMSettings))
