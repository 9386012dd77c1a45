"""What all layers of routed capsules share: the parts of a routing, and the call of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from torchcaps.checks import check_at_least, check_flag, check_floating, check_tensor
from torchcaps.layers.init import Scaled
from torchcaps.layers.routing import Init, Routing, Sizes, understood
from torchcaps.layers.routings import as_routing
from torchcaps.ops import Capsules
from torchcaps.types import as_pose


class RoutedLayer(Scaled):
    """Hold the parts of a routing from ``n_in`` to ``n_out`` capsules, under the names that the routing gives them.

    Poses are vectors of ``d_in`` and ``d_out`` numbers. Square matrices ``[..., n, n]`` count as vectors of n² numbers;
    a routing on matrices returns such. So layers of different routings stack. (Dynamic routing knows no activations but
    lengths: of the layer below it takes the poses alone.)

    Args:
        n_in: Lower capsules that an upper one sees, I. None if any number may come, for routings that allow it.
        n_out: Upper capsules, J.
        d_in: Pose size of the lower ones.
        d_out: Pose size of the upper ones.
        routing: :class:`~torchcaps.layers.DynamicRouting`, :class:`~torchcaps.layers.EMRouting`, a
            :class:`~torchcaps.layers.Routing` of your own, or the name of one: "dynamic", "em".
        n_places: Places at which each of the n_in stands with the same matrix; initial values depend on it.

    Attributes:
        routing: The routing, with all that depends on the layer's sizes filled in.
        pose_scale: Standard deviation that the poses which come out have at first.
        scale: Fixed factor on the poses below, if the routing has one: a buffer, saved with the weights.

    A layer's ``state_dict`` holds its whole function: ``pose_scale`` and the constants of the routing, such as the
    variance floor of EM routing, stand in its extra state. Files that lack them leave the layer as it was made.

    Raises:
        ValueError: Sizes below 1, an unknown routing, or sizes that the routing cannot work with.
    """

    dense = True  #: every upper capsule sees every lower one

    def __init__(
        self,
        n_in: int | None,
        n_out: int,
        d_in: int,
        d_out: int,
        *,
        routing: Routing | str = "dynamic",
        n_places: int = 1,
    ) -> None:
        super().__init__()
        given = as_routing(routing)
        if n_in is None and not given.any_n_in:
            raise ValueError(f"n_in must be given for {given.name} routing, got None")
        sizes = {"n_in": n_in, "n_out": n_out, "d_in": d_in, "d_out": d_out, "n_places": n_places}
        for name, value in sizes.items():
            if name != "n_in" or value is not None:
                check_at_least(name, value, 1)  # type: ignore[arg-type]
        n_in = None if n_in is None else int(n_in)  # numpy's may be of 8 bits, which products overflow
        n_out, d_in, d_out, n_places = int(n_out), int(d_in), int(d_out), int(n_places)
        self.n_in, self.n_out, self.d_in, self.d_out = n_in, n_out, d_in, d_out
        sizes = Sizes(n_in, n_out, d_in, d_out, n_places, self.dense)
        self.routing = given.resolve(sizes)
        self.pose_scale = self.routing.pose_scale_out(sizes)
        vote_scale = self.routing.vote_scale_for(sizes)
        if vote_scale is not None:
            self.make_scale(vote_scale, given=getattr(given, "vote_scale", None) is not None)
        parts = self.routing.parts(sizes)
        self._understood = understood(type(self.routing))
        # Parts are asked for by name: a replica, a pruned or a parametrised layer has some that are computed, which are
        # not among its parameters.
        self._names = tuple(parts)
        self._initial = {name: part for name, part in parts.items() if isinstance(part, Init)}
        #: Names of the parameters and buffers whose first axis is the lower capsules.
        self.per_child = tuple(name for name, initial in self._initial.items() if initial.per_child)
        for name, part in parts.items():
            if part is None:
                self.register_parameter(name, None)
            elif isinstance(part, Init) and not part.learned:
                self.register_buffer(name, torch.empty(part.shape))
            elif isinstance(part, Init):
                self.register_parameter(name, nn.Parameter(torch.empty(part.shape)))
            else:
                self.add_module(name, part())
        self.reset_parameters()

    @property
    def n_iters(self) -> int:
        """Iterations of the routing; 1 for a routing without iterations."""
        return getattr(self.routing, "n_iters", 1)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the initial values anew, in place: to train again, or after :meth:`torch.nn.Module.to_empty`."""
        for name, initial in self._initial.items():
            initial.fill(getattr(self, name))
        for name in self._names:
            part = getattr(self, name)
            if isinstance(part, nn.Module) and callable(reset := getattr(part, "reset_parameters", None)):
                reset()
        if "scale" in self._buffers:
            self.reset_scale()

    def parts(self) -> dict[str, Any]:
        """Return what the routing named, as it is now: tensors, modules or None."""
        return {name: getattr(self, name) for name in self._names}

    def call_arguments(self, return_coupling: bool, n_images: int, **given: Any) -> dict[str, Any]:
        """Return what one call of so many images tells the routing.

        Raises:
            ValueError: Something that the routing does not understand, or a state of other capsules.
        """
        check_flag("return_coupling", return_coupling)
        call: dict[str, Any] = {"return_coupling": return_coupling}
        for name, value in given.items():
            if value is None:
                continue
            if name not in self._understood:
                raise ValueError(f"{name} must be None with {self.routing.name} routing, got {value!r}")
            call[name] = value
        if "n_iters" in call:
            check_at_least("n_iters", call["n_iters"], 1)
        if "state" in call:
            self._check_state(call["state"], n_images)
        return call

    def _check_state(self, state: Capsules, n_images: int) -> None:
        if not isinstance(state, Capsules):
            raise ValueError(f"state must be the Capsules of the pass before, got a {type(state).__name__}")
        check_floating("state.pose", state.pose)
        check_floating("state.activation", state.activation)
        pose, n_axes = state.pose.shape, 2 if self.dense else 4
        if pose[:2] != (n_images, self.n_out) or math.prod(pose[n_axes:]) != self.d_out or len(pose) <= n_axes:
            wanted = f"B={n_images}, J={self.n_out}{'' if self.dense else ', H, W'}, d_out={self.d_out}"
            raise ValueError(f"state must have poses [{wanted}], got shape {list(pose)}")

    def get_extra_state(self) -> Tensor:
        """Return the numbers that the layer's function depends on, for its ``state_dict``."""
        return torch.tensor(list(self._constants().values()), dtype=torch.float64, device="cpu")

    def set_extra_state(self, state: Tensor) -> None:
        """Take the numbers of loaded weights over.

        Raises:
            ValueError: The weights are those of a layer with another routing.
        """
        names = list(self._constants())
        if not isinstance(state, Tensor) or state.shape != (len(names),):
            raise ValueError(f"the extra state of {type(self).__name__} must hold {', '.join(names)}, got {state!r}")
        self._take(dict(zip(names, state.tolist(), strict=True)))

    def _constants(self) -> dict[str, float]:
        return {"pose_scale": self.pose_scale, **self.routing.constants()}

    def _take(self, constants: Mapping[str, float]) -> None:
        self.pose_scale = constants["pose_scale"]
        if constants != self._constants():
            self.routing = self.routing.with_constants(constants)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        state_dict.setdefault(f"{prefix}_extra_state", self.get_extra_state())
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def routing_repr(self) -> str:
        """Describe the routing and the constants that depend on the layer below, for ``extra_repr``."""
        passes = f"{self.n_iters} × " if hasattr(self.routing, "n_iters") else ""
        constants = "".join(f", {name}={value:.3g}" for name, value in self.routing.constants().items())
        scale = f", vote_scale={self.scale_repr()}" if "scale" in self._buffers else ""
        return f"{passes}{self.routing.name}{constants}{scale}"

    def routed(self, capsules: Capsules | Tensor) -> Capsules:
        """Return capsules with their poses as vectors, times ``scale``, from a layer's output or a bare tensor.

        Raises:
            ValueError: Neither of them; bare poses where the routing needs activations too; activations that are not
                one for each pose.
        """
        if isinstance(capsules, Capsules):
            pose, activation = capsules.pose, capsules.activation
            check_tensor("capsules.pose", pose)
            check_tensor("capsules.activation", activation)
            axes = pose.dim() - activation.dim()
            if axes == 2 and pose.shape[-1] != pose.shape[-2]:
                raise ValueError(f"capsules.pose must be vectors or square matrices, got shape {list(pose.shape)}")
            if axes not in (1, 2) or pose.shape[:-axes] != activation.shape:
                raise ValueError(
                    f"capsules.activation must be one number for each pose, "
                    f"got shape {list(activation.shape)} beside poses of shape {list(pose.shape)}"
                )
            pose = self._scaled(pose if axes == 1 else pose.flatten(-2))
            return Capsules(pose, activation, capsules.coupling)  # Dynamo of torch 2.6 traces no _replace
        capsules = as_pose(capsules)
        if self.routing.needs_activations:
            raise ValueError(
                f"capsules must be a Capsules, for {self.routing.name} routing needs activations; got poses alone"
            )
        side = math.isqrt(self.d_in)
        if side * side == self.d_in and side > 1 and capsules.shape[-2:] == (side, side):
            capsules = capsules.flatten(-2)
        if capsules.dim() < 2 or not capsules.shape[-1]:
            raise ValueError(f"capsules must be poses [..., d_in={self.d_in}], got shape {list(capsules.shape)}")
        capsules = self._scaled(capsules)
        return Capsules(capsules, capsules[..., 0])  # activations that nothing reads

    def returned(self, routed: Any, n_axes: int) -> Capsules:
        """Check what the routing made: one activation and one pose for each upper capsule.

        Args:
            routed: what it returned.
            n_axes: 2 for ``[B, J]``, 4 for a map ``[B, J, H', W']``.

        Raises:
            ValueError: It returned something else.
        """
        if not isinstance(routed, Capsules):
            raise ValueError(f"{self.routing.name} routing must return Capsules, got a {type(routed).__name__}")
        pose, activation = routed.pose.shape, routed.activation.shape
        axes = len(pose) - n_axes
        if (
            len(activation) != n_axes
            or axes not in (1, 2)
            or activation[1] != self.n_out
            or pose[:n_axes] != activation
            or math.prod(pose[n_axes:]) != self.d_out
        ):
            sizes = f"B, J={self.n_out}{', H, W' * (n_axes == 4)}"
            raise ValueError(
                f"{self.routing.name} routing must return poses [{sizes}, d_out={self.d_out}] and activations "
                f"[{sizes}], got shapes {list(pose)} and {list(activation)}"
            )
        return routed

    def _scaled(self, pose: Tensor) -> Tensor:
        return pose * self.scale if "scale" in self._buffers else pose

    def routed_map(self, capsules: Capsules | Tensor, n_types: int) -> Capsules:
        """Return what :meth:`routed` does, for a map ``[B, T, H, W, d_in]`` of so many types.

        Raises:
            ValueError: As there, or another shape.
        """
        lower = self.routed(capsules)
        if lower.pose.dim() != 5 or lower.pose.shape[1] != n_types or lower.pose.shape[4] != self.d_in:
            raise ValueError(
                f"capsules must be [B, T={n_types}, H, W, d_in={self.d_in}], got shape {list(lower.pose.shape)}"
            )
        return lower
