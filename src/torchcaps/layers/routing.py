"""What a routing is to a layer: the parameters it asks for, and how it routes."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, ClassVar, NamedTuple, Self

from torch import Tensor, nn

from torchcaps.ops import Capsules, receptive_fields


class Init(NamedTuple):
    """Describe a parameter before it has values.

    Attributes:
        shape: Its shape, of any number of axes.
        fill: Gives it its initial values, in place.
        per_child: Its first axis is the lower capsules. :class:`~torchcaps.layers.ClassCaps` then repeats the values of
            a type at every place of the map.
        learned: It is a parameter; else a buffer, which is saved with the weights and stays as it was drawn.
    """

    shape: tuple[int, ...]
    fill: Callable[[Tensor], object]
    per_child: bool = False
    learned: bool = True

    @staticmethod
    def constant(shape: tuple[int, ...], value: float) -> Init:
        """Describe a parameter that starts as one number."""
        return Init(shape, partial(nn.init.constant_, val=value))


class Sizes(NamedTuple):
    """Hold the sizes of a layer, from which the shapes and initial values of its parameters follow.

    Attributes:
        n_in: Lower capsules I that an upper one sees. None: any number, see ``Routing.any_n_in``.
        n_out: Upper capsules J.
        d_in: Pose size of the lower ones.
        d_out: Pose size of the upper ones.
        n_places: Places at which each of the ``n_in`` stands with the same matrix.
        dense: Every upper capsule sees every lower one; else a map is routed within receptive fields.
    """

    n_in: int | None
    n_out: int
    d_in: int
    d_out: int
    n_places: int = 1
    dense: bool = True

    @property
    def n_children(self) -> int:
        """Count the lower capsules that an upper one sees, at all places; 1 where any number may come."""
        return (self.n_in or 1) * self.n_places


#: What a layer makes under a name: a parameter, a module with parameters or running statistics, or nothing.
Part = Init | Callable[[], nn.Module] | None


class Routing(ABC):
    """Base of all routings: how lower capsules become upper ones, as an object that a layer is given.

    A routing holds its options and no tensors, so that one object serves many layers. Write your own as a frozen
    dataclass with two methods, :meth:`parts` and :meth:`route`; every layer then takes it as ``routing=``.
    ``examples/routings`` holds one.

    Besides ``return_coupling``, a call of a layer may hand over any of ``n_iters``, ``offset``, ``mask``,
    ``initial_logits`` and ``state``. A routing names those it understands as keyword arguments of :meth:`route`.
    Layers refuse the others.

    Attributes:
        name: Name in messages and in files.
        needs_activations: Whether the activations of the lower capsules are read. If not, bare poses will do.
        any_n_in: Whether the parameters do not depend on the number of lower capsules.
        bounded: Whether activations lie in 0 … 1. If not, they are logits.
        squashes: Whether the length of a pose is its activation, so that the poses have one scale whatever lies below.
        pose: "matrix" if poses go in and come out as ``[..., n, n]``, else "vector".
        pose_scale: Standard deviation of the poses below at first, if the routing depends on it.
    """

    name: ClassVar[str] = "custom"
    needs_activations: ClassVar[bool] = False
    any_n_in: ClassVar[bool] = False
    bounded: ClassVar[bool] = True
    squashes: ClassVar[bool] = False
    pose: str = "vector"
    pose_scale: float = 1.0

    @abstractmethod
    def parts(self, sizes: Sizes) -> Mapping[str, Part]:
        """Name the parameters and modules that a layer of these sizes needs.

        Raises:
            ValueError: The routing cannot work with these sizes.
        """

    @abstractmethod
    def route(self, capsules: Capsules, parts: Mapping[str, Any], *, return_coupling: bool = False) -> Capsules:
        """Route all lower capsules to all upper ones.

        Args:
            capsules: Poses ``[B, I, d_in]`` and activations ``[B, I]``. If ``needs_activations`` is false, the
                activations may hold anything.
            parts: What :meth:`parts` named, as tensors, modules or None.
            return_coupling: Fill the result's ``coupling``, ``[B, I, J]``.

        Further keyword arguments, each optional: ``n_iters``, another number of iterations for this call; ``offset``,
        ``[I, d_out]``, added to the votes; ``mask``, ``[B, I]``, true for lower capsules that are there;
        ``initial_logits``, ``[I, J]`` or ``[B, I, J]``, of this call; ``state``, the upper capsules of the pass before.

        Returns:
            Poses ``[B, J, d_out]`` or ``[B, J, n, n]``, and activations ``[B, J]``: probabilities 0 … 1, or logits
            where the routing's class says so.
        """

    def resolve(self, sizes: Sizes) -> Self:
        """Return this routing with all that depends on the sizes of a layer filled in."""
        del sizes
        return self

    def vote_scale_for(self, sizes: Sizes) -> float | None:
        """Return the fixed factor on the poses below, see :mod:`torchcaps.layers.init`; None for none."""
        del sizes
        return None

    def pose_scale_out(self, sizes: Sizes) -> float:
        """Return the standard deviation that the poses of the upper capsules have at first."""
        del sizes
        return 1.0

    def above(self, pose_scale: float) -> Self:
        """Return this routing for a layer above poses of this standard deviation."""
        del pose_scale
        return self

    def for_classes(self) -> Self:
        """Return this routing for class capsules, which have one place only."""
        return self

    def check_map(self, size: tuple[int, int], kernel_size: tuple[int, int], stride: tuple[int, int]) -> None:
        """Refuse maps on which the routing would route nothing.

        Raises:
            ValueError: The fields of this kernel and stride leave no choice on a map of this size.
        """
        del size, kernel_size, stride

    def with_full_gradient(self) -> Self:
        """Return this routing with the gradient through all of its iterations."""
        return self

    def constants(self) -> dict[str, float]:
        """Return numbers that the function depends on and that weights are saved with."""
        return {}

    def with_constants(self, constants: Mapping[str, float]) -> Self:
        """Return this routing with the constants of loaded weights."""
        del constants
        return self

    def route_map(
        self,
        capsules: Capsules,
        parts: Mapping[str, Any],
        *,
        kernel_size: tuple[int, int],
        stride: tuple[int, int],
        state: Capsules | None = None,
        **given: Any,
    ) -> Capsules:
        """Route a map ``[B, T, H, W, d_in]`` within receptive fields; by default :meth:`route` sees each by itself.

        Returns:
            Poses ``[B, J, H', W', ...]``, activations ``[B, J, H', W']``, coupling ``[B, H', W', T·K_h·K_w, J]``.
        """
        fields = receptive_fields(capsules.pose, kernel_size, stride)  # [B, H', W', I, d_in]
        active = fields  # activations that nothing reads
        if self.needs_activations:
            active = receptive_fields(capsules.activation.unsqueeze(-1), kernel_size, stride)
        places = fields.shape[:3]
        if state is not None:
            given["state"] = Capsules(*(x.movedim(1, 3).flatten(0, 2) for x in state[:2]))
        lower = Capsules(fields.flatten(0, 2), active.flatten(0, 2)[..., 0])
        pose, activation, coupling = self.route(lower, parts, **given)
        return Capsules(
            pose.unflatten(0, places).movedim(3, 1),  # [B, J, H', W', ...]
            activation.unflatten(0, places).movedim(3, 1),
            None if coupling is None else coupling.unflatten(0, places),
        )


@cache
def understood(kind: type[Routing]) -> frozenset[str]:
    """Return the names of what a routing can be told in a call, from its own signature."""
    return frozenset(inspect.signature(kind.route).parameters) & {
        "n_iters",
        "offset",
        "mask",
        "initial_logits",
        "state",
    }
