"""Capsules whose votes are convolutions, routed among the types that stand at each place, or over the whole map."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from torchcaps.checks import as_two, check_at_least, check_choice, check_flag
from torchcaps.layers.base import RoutedLayer
from torchcaps.layers.init import step_scale, votes_reach
from torchcaps.layers.routing import Routing
from torchcaps.layers.routings import DynamicRouting, as_routing
from torchcaps.layers.shapes import Two, check_like, conv_size, same_padding, windows
from torchcaps.ops import Capsules, conv2d, dynamic_routing_3d, locally_constrained_routing
from torchcaps.ops.dynamic.over_map import squash_over_map
from torchcaps.ops.dynamic.votes import BACKENDS
from torchcaps.ops.precision import at_least_float32, computed_in, without_autocast
from torchcaps.ops.squash import squash_with_length

SAME = "same"
#: Among what a lower type chooses: the upper types of each place, or those of all places.
COMPETE = ("place", "map")

#: Standard deviation of initial weights, in units of that for which ‖s‖ is the length ℓ of the poses below. Squash
#: makes g²ℓ²/(1 + g²ℓ²) of it, which is ℓ again at ½ (1 ± √(1 − 4/g²)). The upper of the two is where a stack of any
#: depth arrives; of lengths below the lower one it makes 0. With g = 2 both are ½, and stacks of ten layers die out.
_GAIN = 2.5
#: The same over a map, where a larger one lets a type choose a single place before any training. Of 32 types of 8
#: numbers the mean length of an upper type is 0.33, 0.78 and 0.85 on 4, 16 and 64 places. With 2.5 the largest of a
#: type's couplings is 0.64, 0.92 and 0.95 on average.
_GAIN_OVER_MAP = 1.25


def _checked(routing: Routing | str) -> DynamicRouting:
    """Return a routing that needs no more than votes."""
    given = as_routing(routing)
    if not isinstance(given, DynamicRouting):
        raise ValueError(f"routing must be dynamic where votes are convolutions, got {given.name}")
    if given.learned_logits:
        raise ValueError("learned_logits must be False where votes are convolutions, got True")
    if given.backend not in BACKENDS:
        raise ValueError(f"backend must be {', '.join(BACKENDS)} where votes are convolutions, got {given.backend!r}")
    return given


def _with_initial_scale(
    routing: DynamicRouting, seen: int, n_out: int, d_in: int, d_out: int, n_places: int, gain: float
) -> DynamicRouting:
    """Return the routing with initial values for upper capsules that see so many lower ones.

    Over a map of P places a coupling is 1 / (J·P) at first, and the norm for squash is √P times that of a place.
    """
    if routing.weight_std is not None:
        return routing
    spread = math.sqrt(n_places)
    scale = routing.vote_scale or step_scale(votes_reach(seen, n_out, d_in) / spread, d_out)
    std = gain * (n_out + routing.leaky) * spread / math.sqrt(seen * d_out) / scale
    return replace(routing, weight_std=std, vote_scale=scale)


class _ConvolvedVotes(RoutedLayer):
    """Hold what both layers share: kernels as matrices, and the routing of what a convolution makes of each type."""

    dense = False

    weight: Tensor
    bias: Tensor | None

    def __init__(
        self,
        n_in: int,
        n_out: int,
        d_in: int,
        d_out: int,
        kernel_size: tuple[int, int],
        stride: tuple[int, int],
        *,
        n_written: int,
        shared: bool,
        routing: Routing | str,
        compete: str = "place",
        n_places: int = 1,
    ) -> None:
        sizes = {"n_in": n_in, "n_out": n_out, "d_in": d_in, "d_out": d_out, "n_places": n_places}
        for name, size in sizes.items():
            check_at_least(name, size, 1)
        check_flag("shared", shared)
        check_choice("compete", compete, COMPETE)
        if compete == "place" and n_places != 1:
            raise ValueError(f"n_places must be 1 where types compete at each place, got {n_places}")
        given = _checked(routing)
        if compete == "map" and given.leaky:
            raise ValueError("leaky must be False where types compete over the map, got True")
        n_in, window = int(n_in), kernel_size[0] * kernel_size[1]
        seen = max(1, n_in * window // n_written)
        gain = _GAIN_OVER_MAP if compete == "map" else _GAIN
        routing = _with_initial_scale(given, seen, int(n_out), int(d_in), int(d_out), int(n_places), gain)
        super().__init__((1 if shared else n_in) * window, n_out, d_in, d_out, routing=routing)
        self.n_types, self.kernel_size, self.stride, self.shared = n_in, kernel_size, stride, bool(shared)
        self.compete = compete

    @abstractmethod
    def _convolve(self, x: Tensor, kernels: Tensor, *, summed: bool) -> Tensor:
        """Convolve maps ``[N, n·d_in, H, W]`` by n kernels ``[n, J·d_out, d_in, K_h, K_w]``.

        Returns:
            ``[N, n·J·d_out, H', W']``; or, where they are to be summed over n, ``[N, J·d_out, H', W']``.
        """

    @abstractmethod
    def output_size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of the map made from a map of this size."""

    def forward(
        self, capsules: Capsules | Tensor, *, n_iters: int | None = None, return_coupling: bool = False
    ) -> Capsules:
        """Route the types of every place; *Input* and *Output* of the class say the shapes."""
        pose = self.routed_map(capsules, self.n_types).pose
        self.call_arguments(return_coupling, pose.shape[0], n_iters=n_iters)  # refuses what they cannot be
        n_iters = self.n_iters if n_iters is None else n_iters
        check_like("capsules", pose, self.weight)
        self.output_size(*pose.shape[2:4])  # refuses maps that are too small
        dtype = torch.promote_types(pose.dtype, self.weight.dtype)
        routing = self.routing
        assert isinstance(routing, DynamicRouting)
        # Compiled code gives no couplings.
        backend = "auto" if return_coupling and routing.backend == "cpu" else routing.backend
        options = {"n_iters": n_iters, "bias": self.bias, "backprop": routing.backprop, "backend": backend}
        with without_autocast(pose):
            if n_iters == 1 or (self.n_out == 1 and self.compete == "place" and not routing.leaky):
                routed = self._route_evenly(pose, 1 / (self.n_out + routing.leaky), return_coupling)
            elif self.compete == "map":
                routed = dynamic_routing_3d(self._votes(pose), **options, return_coupling=return_coupling)
            else:
                routed = locally_constrained_routing(
                    self._votes(pose),
                    **options,
                    leaky=routing.leaky,
                    return_coupling=return_coupling,
                )
        coupling = None if routed.coupling is None else routed.coupling.to(dtype)
        return self.returned(Capsules(routed.pose.to(dtype), routed.activation.to(dtype), coupling), 4)

    def _kernels(self) -> Tensor:
        """Return the weight as kernels, ``[n, J·d_out, d_in, K_h, K_w]``: one for all types, or one for each."""
        n_places = self.kernel_size[0] * self.kernel_size[1]
        kernels = self.weight.unflatten(0, (-1, n_places)).permute(0, 2, 4, 3, 1)  # of [n, K_h·K_w, J, d_in, d_out]
        return at_least_float32(kernels.reshape(len(kernels), -1, self.d_in, *self.kernel_size))

    def _maps(self, pose: Tensor) -> Tensor:
        """Return poses as feature maps ``[B, T, d_in, H, W]``, of the dtype of the kernels.

        They lie in memory like this, so that routing runs along rows of pixels. The poses of such a layer do already.
        """
        return pose.permute(0, 1, 4, 2, 3).to(computed_in(pose, self.weight)).contiguous()

    def _votes(self, pose: Tensor) -> Tensor:
        """Convolve the poses of each type by itself: ``[B, T, J, d_out, H', W']``."""
        maps = self._maps(pose)
        if self.shared:
            votes = self._convolve(maps.flatten(0, 1), self._kernels(), summed=False)
            votes = votes.unflatten(0, maps.shape[:2])
        else:
            votes = self._convolve(maps.flatten(1, 2), self._kernels(), summed=False)
            votes = votes.unflatten(1, (self.n_types, -1))
        return votes.unflatten(2, (self.n_out, self.d_out))

    def _route_evenly(self, pose: Tensor, share: float, return_coupling: bool) -> Capsules:
        """Route with equal couplings: a convolution of sums is the sum of convolutions, so that no vote is made."""
        maps = self._maps(pose)
        maps = maps.sum(dim=1) if self.shared else maps.flatten(1, 2)
        s = self._convolve(maps, self._kernels(), summed=True)
        s = s.unflatten(1, (self.n_out, self.d_out))  # [B, J, d_out, H', W']
        if self.compete == "map":
            share = share / (s.shape[3] * s.shape[4])
        s = share * s
        if self.bias is not None:
            s = s + self.bias.to(s.dtype)[:, :, None, None]
        v, length = squash_over_map(s) if self.compete == "map" else squash_with_length(s, dim=2)
        coupling = None
        if return_coupling:
            n_images, _, *places = length.shape
            coupling = length.new_full((), share).expand(n_images, *places, self.n_types, self.n_out)
        return Capsules(v.movedim(2, 4), length, coupling)

    def extra_repr(self) -> str:
        """Describe the layer for ``print``: shapes, then options."""
        return (
            f"[B, {self.n_types}, H, W, {self.d_in}] -> [B, {self.n_out}, H', W', {self.d_out}], "
            f"kernel_size={self.kernel_size}, stride={self.stride}{self._further_repr()}, shared={self.shared}, "
            f"{self.routing_repr()}"
        )

    def _further_repr(self) -> str:
        return ""


class ConvVoteCaps(_ConvolvedVotes):
    """Convolutional capsules with locally constrained routing: a type's vote is a convolution of its map.

    The T lower types at a place choose among the J upper types there. What stands around the place counts within a
    vote, û_tj(p) = Σ_k u_t(p + k) W_kj, and is not routed by itself: there are T votes for an upper capsule, where
    :class:`ConvCaps` has T·K². All types share the kernel, or have one each.

    DeepCaps' 3-D routing lets a lower type choose among the upper types of all places (``compete="map"``), and squashes
    the poses of an upper type as one vector, see :func:`~torchcaps.ops.dynamic_routing_3d`.

    Where couplings are equal, as with one iteration or one upper type, poses are summed before they are convolved, and
    no vote is made. One iteration, a kernel for each type and no bias are what DeepCaps calls convolutional capsules.

    Args:
        n_in: types of capsule T in the map below.
        n_out: types of capsule J in this map.
        d_in: pose size of the lower ones.
        d_out: pose size of the upper ones.
        kernel_size: K of the convolution, or (rows, columns).
        stride: of the convolution, or (rows, columns).
        padding: zeros on every side, or (above and below, left and right); or "same" for ⌈H / stride⌉ rows, with the
            odd zero below and to the right, as Keras pads.
        shared: share one kernel among all lower types, as the paper does; else each has its own.
        routing: "dynamic", or a :class:`~torchcaps.layers.DynamicRouting` without learned logits. Others need each
            capsule's pose and matrix.
        compete: among what a lower type chooses, the upper types of each "place", or of all places of the "map".
        n_places: places of the upper map if they compete, for initial values alone; the map may be of another size.

    Attributes:
        weight: W, ``[K_h·K_w, J, d_in, d_out]``, or ``[T·K_h·K_w, J, d_in, d_out]`` if not shared: in the order of
            :class:`ConvCaps`, whose weight that is.

    Input:
        capsules: a ``Capsules`` or its pose, ``[B, T, H, W, d_in]``, any H and W of at least the kernel (of any size
            with padding "same").
        n_iters: another number of iterations for this call.
        return_coupling: fill the result's ``coupling``; None without.

    Output:
        :class:`~torchcaps.ops.Capsules` with pose ``[B, J, H', W', d_out]``, activation ``[B, J, H', W']``, and on
        request coupling ``[B, H', W', T, J]``.

    Raises:
        ValueError: another number of types or pose size, a padded map smaller than the kernel, another routing;
            ``leaky`` routing over a map, ``n_places`` without.

    Example:
        >>> import torch
        >>> layer = ConvVoteCaps(4, 8, 16, 32, kernel_size=5, stride=2, padding="same")
        >>> layer(torch.rand(2, 4, 12, 16, 16)).pose.shape
        torch.Size([2, 8, 6, 8, 32])
        >>> sum(p.numel() for p in layer.parameters())  # 5·5·16·8·32, and a bias
        102656

    Source: LaLonde, Bagci 2018, Capsules for Object Segmentation, arXiv 1804.04241, and its code; Rajasegaran et al.
    2019, DeepCaps, arXiv 1904.09546, and its code (``compete="map"``).
    """

    def __init__(
        self,
        n_in: int,
        n_out: int,
        d_in: int,
        d_out: int,
        kernel_size: Two,
        *,
        stride: Two = 1,
        padding: Two | str = 0,
        shared: bool = True,
        routing: Routing | str = "dynamic",
        compete: str = "place",
        n_places: int = 1,
    ) -> None:
        if isinstance(padding, str) and padding != SAME:
            raise ValueError(f"padding must be an integer of at least 0, two of them, or 'same'; got {padding!r}")
        kernel, step, around = windows(kernel_size, stride, 0 if isinstance(padding, str) else padding)
        sizes = n_in, n_out, d_in, d_out
        routed = {"shared": shared, "routing": routing, "compete": compete, "n_places": n_places}
        super().__init__(*sizes, kernel, step, n_written=1, **routed)
        self.padding: tuple[int, int] | str = SAME if isinstance(padding, str) else around

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of the map made from a map of this size."""
        if isinstance(self.padding, str):
            return -(-height // self.stride[0]), -(-width // self.stride[1])
        return conv_size((height, width), self.kernel_size, self.stride, self.padding)

    def _convolve(self, x: Tensor, kernels: Tensor, *, summed: bool) -> Tensor:
        if isinstance(self.padding, str):
            above, below = same_padding(x.shape[2], self.kernel_size[0], self.stride[0])
            left, right = same_padding(x.shape[3], self.kernel_size[1], self.stride[1])
            x, padding = F.pad(x, (left, right, above, below)), (0, 0)
        else:
            padding = self.padding
        if len(kernels) > 1 and not summed:
            weight = kernels.flatten(0, 1)  # a group for each type
            return F.conv2d(x, weight, stride=self.stride, padding=padding, groups=len(kernels))
        weight = kernels.transpose(0, 1).flatten(1, 2)  # over the numbers of all types
        return conv2d(x, weight, stride=self.stride, padding=padding)

    def _further_repr(self) -> str:
        return f", padding={self.padding}" + (", compete=map" if self.compete == "map" else "")


class DeconvVoteCaps(_ConvolvedVotes):
    """Deconvolutional capsules: as :class:`ConvVoteCaps`, with votes by a transposed convolution.

    The map grows by the stride: of H rows it makes stride · H. The kernel is laid as Keras lays it with "same" padding.

    Args:
        n_in: types of capsule T in the map below.
        n_out: types of capsule J in this map.
        d_in: pose size of the lower ones.
        d_out: pose size of the upper ones.
        kernel_size: K of the transposed convolution, or (rows, columns), of at least the stride; 4 in the paper. A
            multiple of the stride lets every place see as many lower ones.
        stride: by which the map grows, or (rows, columns).
        shared: share one kernel among all lower types, as the paper does; else each has its own.
        routing: as :class:`ConvVoteCaps`.

    Attributes:
        weight: W, ``[K_h·K_w, J, d_in, d_out]``, or ``[T·K_h·K_w, J, d_in, d_out]`` if not shared.

    Input:
        capsules: a ``Capsules`` or its pose, ``[B, T, H, W, d_in]``, any H and W.
        n_iters, return_coupling: as :class:`ConvVoteCaps`.

    Output:
        :class:`~torchcaps.ops.Capsules` with pose ``[B, J, H', W', d_out]``, activation ``[B, J, H', W']``, and on
        request coupling ``[B, H', W', T, J]``.

    Raises:
        ValueError: another number of types or pose size, a kernel smaller than the stride, another routing.

    Example:
        >>> import torch
        >>> DeconvVoteCaps(8, 4, 32, 16)(torch.rand(2, 8, 6, 8, 32)).pose.shape
        torch.Size([2, 4, 12, 16, 16])

    Source: LaLonde, Bagci 2018, Capsules for Object Segmentation, arXiv 1804.04241, and its code.
    """

    def __init__(
        self,
        n_in: int,
        n_out: int,
        d_in: int,
        d_out: int,
        kernel_size: Two = 4,
        *,
        stride: Two = 2,
        shared: bool = True,
        routing: Routing | str = "dynamic",
    ) -> None:
        kernel, step = as_two("kernel_size", kernel_size, 1), as_two("stride", stride, 1)
        if any(side < by for side, by in zip(kernel, step, strict=True)):
            raise ValueError(f"kernel_size must be at least the stride {step}, got {kernel}")
        n_written = step[0] * step[1]  # upper places for one lower place
        super().__init__(n_in, n_out, d_in, d_out, kernel, step, n_written=n_written, shared=shared, routing=routing)

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of the map made from a map of this size."""
        return height * self.stride[0], width * self.stride[1]

    def _convolve(self, x: Tensor, kernels: Tensor, *, summed: bool) -> Tensor:
        # The transposed convolution wants [n·d_in, J·d_out, K_h, K_w], in groups or not.
        weight = kernels.transpose(1, 2).flatten(0, 1)
        edges = [(side - by) // 2 for side, by in zip(self.kernel_size, self.stride, strict=True)]
        groups = 1 if summed else len(kernels)
        grown = F.conv_transpose2d(x, weight, stride=self.stride, padding=edges, groups=groups)
        height, width = self.output_size(x.shape[2], x.shape[3])
        return grown[:, :, :height, :width]
