"""What all layers of routed capsules share: parameters of a routing, and the call of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from torchcaps.checks import check_at_least, check_choice, check_flag, check_tensor
from torchcaps.layers.init import Scaled
from torchcaps.layers.routings import ROUTINGS
from torchcaps.ops import Routed
from torchcaps.ops.dynamic import GRADIENTS
from torchcaps.ops.em_checks import check_dense_choice
from torchcaps.ops.fused import IMPLS
from torchcaps.ops.routed import poses_of


class RoutedLayer(Scaled):
    """Parameters of a routing from ``n_in`` to ``n_out`` capsules, under the names that ops give them.

    Poses are vectors of ``d_in`` and ``d_out`` numbers; 4×4 matrices are 16, and come and go as
    ``[..., 4, 4]`` where the routing works on matrices. So layers of different routings stack. (Dynamic routing knows
    no activations but lengths: of the layer below it takes the poses alone.)

    Args:
        n_in: lower capsules that an upper one sees, I.
        n_out: upper capsules, J.
        d_in: pose size of the lower ones.
        d_out: pose size of the upper ones.
        n_iters: passes of the routing.
        routing: one of :data:`torchcaps.layers.ROUTINGS`: "dynamic" or "em".
        gradient: "full" or "last", see :func:`torchcaps.ops.dynamic_routing`.
        impl: see :func:`torchcaps.ops.dynamic_routing`.
        n_places: places at which each of the n_in stands with the same matrix; initial values ask for it.
        options: of every routing: ``weight_std``, standard deviation of the initial transformation matrices;
            by default such that stacked layers train, see :mod:`torchcaps.layers.init` and
            :mod:`torchcaps.layers.em_init`.
            Of dynamic routing: ``bias`` (learn one, ``[J, d_out]``; True), ``bias_init`` (0; the authors of
            CapsNet took 0.1), ``learned_prior`` (learn the initial logits ``[I, J]``; False), ``leaky`` (let
            capsules route to nothing; False), ``vote_scale`` (fixed factor on the poses below; the papers have none,
            1. By default a power of two such that a step of 1e-3 moves no capsule far, which is 1 but where many
            capsules vote for few; and 1 where ``weight_std`` is given).
            Of EM routing: ``pose`` ("matrix" for 4×4, "vector" for any size), ``settings`` ("released" by default,
            or "paper"), any field of :class:`~torchcaps.ops.EMSettings` that is to differ, ``pose_scale``, the
            deviation of the poses below at first (1; hand over the ``pose_scale`` of the layer below, else those of a
            stack drift), and initial values, which by default come from it: ``beta_u_init``, ``beta_a_init`` (0).
            The variance floor of settings that are given by name is for poses of deviation 1: where none is given
            besides, it is multiplied by ``pose_scale²``. So weights are for layers of the same ``pose_scale``: to
            load them into another is no error, and gives other capsules. The layer prints its floor.

    Attributes:
        pose_scale: deviation that the poses which come out have at first.
        scale: of dynamic routing the factor ``vote_scale``, a buffer: it is kept with the weights. Files without one
            are of older versions, which had 1.

    Raises:
        ValueError: sizes below 1, an unknown ``routing``, ``gradient``, ``impl`` or option, or initial values that are
            no numbers.
    """

    dense = True  #: every upper capsule sees every lower one

    def __init__(
        self,
        n_in: int,
        n_out: int,
        d_in: int,
        d_out: int,
        n_iters: int = 3,
        *,
        routing: str = "dynamic",
        gradient: str = "full",
        impl: str = "auto",
        n_places: int = 1,
        **options: Any,
    ) -> None:
        super().__init__()
        sizes = {"n_in": n_in, "n_out": n_out, "d_in": d_in, "d_out": d_out, "n_iters": n_iters, "n_places": n_places}
        for name, value in sizes.items():
            check_at_least(name, value, 1)
        check_options(routing, options)
        check_choice("gradient", gradient, GRADIENTS)
        check_choice("impl", impl, IMPLS)
        self.n_in, self.n_out, self.d_in, self.d_out = n_in, n_out, d_in, d_out
        self.n_iters, self.routing, self.gradient, self.impl = n_iters, routing, gradient, impl
        made = ROUTINGS[routing].make(n_in, n_out, d_in, d_out, dense=self.dense, n_places=n_places, **options)
        if self.dense and routing == "em":
            check_dense_choice(made.options["settings"], n_iters)
        self.options, self.pose_scale = made.options, made.pose_scale
        if made.vote_scale is not None:
            self.make_scale(made.vote_scale, given=options.get("vote_scale") is not None)
        #: Names of the parameters. They are asked for by name: a replica, a pruned or a parametrised layer has some
        #: that are computed, which are not among its parameters.
        self.named = tuple(made.parameters)
        self._initial = {name: initial for name, initial in made.parameters.items() if initial is not None}
        #: Those of which the first axis is the lower capsules.
        self.per_child = tuple(name for name, initial in self._initial.items() if initial.per_child)
        for name in self.named:
            initial = self._initial.get(name)
            self.register_parameter(name, None if initial is None else nn.Parameter(torch.empty(initial.shape)))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the initial values anew, in place: to train again, or after :meth:`torch.nn.Module.to_empty`."""
        for name, initial in self._initial.items():
            initial.fill(getattr(self, name))
        if "scale" in self._buffers:
            self.reset_scale()

    def call_options(self, n_iters: int | None, return_coupling: bool) -> dict[str, Any]:
        """Parameters and options of one call of the routing, under the names of its arguments."""
        check_flag("return_coupling", return_coupling)
        return {
            **{name: getattr(self, name) for name in self.named},
            **self.options,
            "n_iters": self.n_iters if n_iters is None else n_iters,
            "gradient": self.gradient,
            "impl": self.impl,
            "return_coupling": return_coupling,
        }

    def routing_repr(self) -> str:
        """The routing and the constants of it that depend on the layer below, for ``extra_repr``."""
        floor = f", variance_floor={self.options['settings'].variance_floor:.3g}" if self.routing == "em" else ""
        scale = f", vote_scale={self.scale_repr()}" if "scale" in self._buffers else ""
        return f"{self.n_iters} × {self.routing}{floor}{scale}"

    def routed(self, capsules: Routed | Tensor) -> Routed:
        """Capsules with their poses as vectors, times ``scale``, whether a layer's output or a bare tensor was given.

        Raises:
            ValueError: neither of them; bare poses, where the routing asks for activations too; activations that are
                not one for each pose.
        """
        if isinstance(capsules, Routed):
            pose, activation = capsules.pose, capsules.activation
            check_tensor("capsules.pose", pose)
            check_tensor("capsules.activation", activation)
            axes = pose.dim() - activation.dim()
            if axes == 2 and pose.shape[-2:] != (4, 4):
                raise ValueError(f"capsules.pose must be vectors or 4×4 matrices, got shape {list(pose.shape)}")
            if axes not in (1, 2) or pose.shape[:-axes] != activation.shape:
                raise ValueError(
                    f"capsules.activation must be one number for each pose, "
                    f"got shape {list(activation.shape)} beside poses of shape {list(pose.shape)}"
                )
            return capsules._replace(pose=self._scaled(pose if axes == 1 else pose.flatten(-2)))
        capsules = poses_of(capsules)
        if ROUTINGS[self.routing].activations:
            raise ValueError(
                f"capsules must be a Routed, for {self.routing} routing needs activations; got poses alone"
            )
        if self.d_in == 16 and capsules.shape[-2:] == (4, 4):
            capsules = capsules.flatten(-2)
        if capsules.dim() < 2 or not capsules.shape[-1]:
            raise ValueError(f"capsules must be poses [..., d_in={self.d_in}], got shape {list(capsules.shape)}")
        capsules = self._scaled(capsules)
        return Routed(capsules, capsules[..., 0])  # whose activations nothing reads

    def _scaled(self, pose: Tensor) -> Tensor:
        return pose * self.scale if "scale" in self._buffers else pose

    def routed_map(self, capsules: Routed | Tensor, n_types: int) -> Routed:
        """As :meth:`routed`, of a map ``[B, T, H, W, d_in]`` of so many types.

        Raises:
            ValueError: as there, or another shape.
        """
        lower = self.routed(capsules)
        if lower.pose.dim() != 5 or lower.pose.shape[1] != n_types or lower.pose.shape[4] != self.d_in:
            raise ValueError(
                f"capsules must be [B, T={n_types}, H, W, d_in={self.d_in}], got shape {list(lower.pose.shape)}"
            )
        return lower


def check_options(routing: str, options: Iterable[str]) -> None:
    """Refuse options that layers with this routing do not have, such as what a model sets itself."""
    check_choice("routing", routing, ROUTINGS)
    known = "n_iters", "routing", "gradient", "impl", *ROUTINGS[routing].options
    for name in options:
        check_choice(f"an option of layers with {routing} routing", name, known)
