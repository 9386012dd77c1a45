"""EM routing between 4×4 matrix capsules on CUDA devices, as operators that torch knows.

The algebra is in ``ops/fused/cpu/em.py``. As in FlashAttention the softmax over parents is split: a pass over the
children finds the highest logit of each and the sum of exponentials beside it; a pass over the parents makes the
responsibilities from these. Every pass makes the votes anew. What is of the parents' size is computed in torch, whose
logarithms are exact.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from torchcaps.ops.em_settings import EMSettings
from torchcaps.ops.fused.triton.dynamic import FUSED
from torchcaps.ops.fused.triton.library import load, on
from torchcaps.ops.routed import Routed

#: Children or parents times types of parent in a tile, and its warps: 8 numbers for each thread, for there are about
#: ten tiles in the backward passes.
TILE, WARPS = 128, 8
#: Programs that fill the greatest devices; sums are cut into parts until there are as many.
PROGRAMS = 512
#: Children, or blocks of places, of a part at least.
LEAST = 8
#: Tensors in the parents' states: mean and variance of the E-step, how far the mean moved, and two slopes.
STATES = 5


class Numbers(NamedTuple):
    """The settings, as ``ops/fused/cpu/em.py`` hands them over; λ of every iteration is at the end."""

    damping: float
    floor: float
    mass_floor: float
    ratio: float
    scale_a: float
    scale_u: float
    scale_variance: float


def conv_em_routing_triton(
    pose: Tensor,
    activation: Tensor,
    weight: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    stride: tuple[int, int],
    n_iters: int,
    settings: EMSettings,
    offset: Tensor | None,
    gradient: str,
    return_coupling: bool,
) -> Routed:
    """:func:`torchcaps.ops.conv_em_routing` of checked arguments; half precision is widened as it is read."""
    dtype = _dtype(pose, weight)
    activation, beta_u, beta_a = activation.to(dtype), beta_u.to(dtype), beta_a.to(dtype)
    offset = None if offset is None else offset.to(dtype)
    types, height, width = pose.shape[1:4]
    places = math.prod(_places(pose, weight, stride))
    numbers = Numbers(
        settings.damping,
        settings.variance_floor,
        settings.mass_floor,
        len(beta_u) * places / (types * height * width) if settings.normalise else 1.0,
        settings.beta_a_scale,
        settings.beta_u_scale,
        settings.cost_scale,
    )
    lambdas = [settings.lambda_at(t) for t in range(n_iters)]
    choices = [settings.compete == "positions", settings.start == "types", gradient == "last"]
    tensors = pose, activation, weight, beta_u, beta_a, offset
    mu, a, coupling, _, _ = routed(*tensors, list(stride), choices, [*numbers, *lambdas], return_coupling)
    if not return_coupling:
        return Routed(mu, a, None)
    # Without an E-step, or with one that is taken as a constant, the responsibilities are constants.
    return Routed(mu, a, coupling if n_iters > 1 and gradient == "full" else coupling.detach())


@torch.library.custom_op("torchcaps::em_routing_triton", mutates_args=())
def routed(
    pose: Tensor,
    activation: Tensor,
    weight: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    offset: Tensor | None,
    stride: list[int],
    choices: list[bool],
    numbers: list[float],
    return_coupling: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """EM routing in float32, or in float64 where pose or weight has it.

    Args:
        pose: ``[B, T, H, W, 4, 4]``. The others are those of :func:`torchcaps.ops.conv_em_routing`; all but weight
            are of the dtype that is computed in.
        choices: whether positions compete, whether R starts at 1 over the number of types, whether the gradient
            is that of the last iteration only.
        numbers: :class:`Numbers`, and λ of every iteration.

    Returns:
        pose ``[B, J, H', W', 4, 4]``, activation ``[B, J, H', W']``, coupling ``[B, H', W', T·K_h·K_w, J]`` or
        ``[0]`` unless asked for. For the backward pass, of every iteration: how far the mean moved, what is left of
        Σ r (V − μ) / mass by damping and rounding, and variance, ``[n_iters, 3, B, P, J, 16]``; logit and mass,
        ``[n_iters, 2, B, P, J]``.
    """
    made = _outputs(pose, weight, stride, numbers, return_coupling)
    out_pose, out_activation, coupling, states, masses = made
    if not out_activation.numel():
        return made
    passes = _Passes.of(pose, activation, weight, offset, stride, choices)
    given, lambdas = Numbers(*numbers[:7]), numbers[7:]
    mu, again = torch.zeros_like(states[0, 0]), None
    for t, inverse_temperature in enumerate(lambdas):
        asked = coupling if return_coupling and t == len(lambdas) - 1 else None
        if t == 0:
            if asked is not None:
                asked.copy_(passes.first_coupling())
            s0, s1, _ = passes.parents(first=True)
            mass = s0 + given.mass_floor
            moved = (1 - given.damping) * s1 / mass[..., None]
            passes.tiles[0] = moved
            _, left, squares = passes.parents(first=True)
        else:
            passes.children()
            s0, s1, s2 = passes.parents(coupling=asked)
            mass = s0 + given.mass_floor
            moved = (1 - given.damping) * ((s1 - given.mass_floor * mu) / mass[..., None])
            left = s1 - moved * s0[..., None]
            squares = s2 + moved * (moved * s0[..., None] - 2 * s1)
            # Where the mean moved so far that the variance cancels, it is summed again around the new mean.
            lost = s2 > 4 * (squares + given.floor * mass[..., None])
            again = lost.any(dim=-1)
            passes.tiles[2] = moved
            _, left_again, squares_again = passes.parents(again=again.to(torch.int32))
            left = torch.where(again[..., None], left_again, left)
            squares = torch.where(again[..., None], squares_again, squares)
        mu = mu + moved
        variance = squares / mass[..., None] + given.floor
        cost = _cost(beta_u, variance, given) * (given.ratio * mass)
        logit = inverse_temperature * (given.scale_a * beta_a - cost)
        states[t, 0], states[t, 1], states[t, 2] = moved, left / mass[..., None], variance
        masses[t, 0], masses[t, 1] = logit, mass
        passes.ready(mu, variance, logit)
    out_pose.copy_(mu.permute(0, 2, 1, 3).reshape(out_pose.shape))
    out_activation.copy_(masses[-1, 0].sigmoid().transpose(1, 2).reshape(out_activation.shape))
    return made


@routed.register_fake
def _(pose: Tensor, _a: Any, weight: Tensor, _u: Any, _b: Any, _o: Any, *rest: Any) -> tuple[Tensor, ...]:
    stride, _, numbers, return_coupling = rest
    return _outputs(pose, weight, stride, numbers, return_coupling)


@torch.library.custom_op("torchcaps::em_routing_triton_backward", mutates_args=())
def routed_backward(
    d_mu: Tensor,
    d_a: Tensor,
    d_coupling: Tensor | None,
    pose: Tensor,
    activation: Tensor,
    weight: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    offset: Tensor | None,
    states: Tensor,
    masses: Tensor,
    stride: list[int],
    choices: list[bool],
    numbers: list[float],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of :func:`routed`: pose, activation, weight, beta_u and beta_a."""
    made = _gradients(pose, activation, weight, beta_u, beta_a)
    if not d_a.numel():
        return tuple(x.zero_() for x in made)  # type: ignore[return-value]
    passes = _Passes.of(pose, activation, weight, offset, stride, choices)
    given, lambdas, stop = Numbers(*numbers[:7]), numbers[7:], choices[2]
    last = len(lambdas) - 1
    d_mu = d_mu.flatten(4).flatten(2, 3).transpose(1, 2).contiguous()  # [B, P, J, 16]
    logit = masses[last, 0]
    d_logit = d_a.flatten(2).transpose(1, 2) * logit.sigmoid() * (-logit).sigmoid()  # [B, P, J]
    d_variance = torch.zeros_like(d_mu)
    d_beta_u, d_beta_a = (torch.zeros(x.shape, dtype=x.dtype, device=x.device) for x in (beta_u, beta_a))
    for t in range(last, -1, -1):
        (moved, left, variance), mass = states[t], masses[t, 1]
        before = torch.zeros_like(moved)
        for earlier in states[:t, 0]:  # by the same sums as in the forward pass
            before = before + earlier
        scale = lambdas[t] * given.ratio
        d_beta_a += lambdas[t] * given.scale_a * d_logit.sum(dim=(0, 1))
        d_beta_u -= scale * given.scale_u * 16 * (d_logit * mass).sum(dim=(0, 1))
        apart = left - given.mass_floor * (before + moved) / mass[..., None]  # mean − μ
        d_variance = d_variance - (scale * given.scale_variance / 2 * mass * d_logit)[..., None] / variance
        g2 = d_variance / mass[..., None]
        d_mu = d_mu - 2 * g2 * mass[..., None] * left
        g1 = (1 - given.damping) * d_mu / mass[..., None]
        k = -scale * _cost(beta_u, variance, given) * d_logit - (g2 * (variance - given.floor) + g1 * apart).sum(dim=-1)
        passes.slopes(moved, g1, g2, k)
        if t == 0:
            passes.tiles[0] = moved
            passes.children(first=True, backward=True)
            passes.gradients(first=True)
            break
        earlier_variance, earlier_logit = states[t - 1, 2], masses[t - 1, 0]
        passes.ready(before, earlier_variance, earlier_logit)
        outside = d_coupling if t == last else None
        passes.children(backward=True, d_coupling=outside)
        passes.gradients(stop=stop, d_coupling=outside)
        if stop:
            break
        s0, s1, s2 = passes.parents(backward=True, d_coupling=outside)
        d_logit = s0 * (-earlier_logit).sigmoid()
        d_mu = given.damping * d_mu + s1 / earlier_variance
        d_variance = (s2 / earlier_variance - s0[..., None]) / (2 * earlier_variance)
    d_pose, d_weight = passes.d_pose.to(pose.dtype), passes.d_weight.sum(dim=0).to(weight.dtype)
    return d_pose, passes.d_activation, d_weight, d_beta_u, d_beta_a


@routed_backward.register_fake
def _(*arguments: Any) -> tuple[Tensor, ...]:
    return _gradients(*arguments[3:8])


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.stride, ctx.choices, ctx.numbers, ctx.return_coupling = inputs
    ctx.save_for_backward(*tensors, *output[3:])


def _backward(ctx: Any, d_mu: Tensor, d_a: Tensor, d_coupling: Tensor, *_: Tensor) -> tuple[Any, ...]:
    asked = d_coupling if ctx.return_coupling else None
    gradients = routed_backward(d_mu, d_a, asked, *ctx.saved_tensors, ctx.stride, ctx.choices, ctx.numbers)
    return *gradients, None, None, None, None, None


def _no_second_derivative(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
    raise NotImplementedError("impl='triton' has no second derivative: take impl='reference' where one is needed")


routed.register_autograd(_backward, setup_context=_setup_context)
routed_backward.register_autograd(_no_second_derivative)


class _Passes(NamedTuple):
    """The kernels for one problem, and the tensors that they hand to each other.

    Attributes:
        sizes: constants of the geometry.
        given: pose, activation, weight and offset, contiguous.
        begin: R of the first M-step, ``[H, W]``.
        tiles: states of the parents, ``[STATES, B, P, J, 16]``.
        numbers: constant of the logits, slope k: ``[2, B, P, J]``.
        found: of every child, or of every child and type: highest logit, inverse sum, mean slope.
        d_pose, d_activation, d_weight: gradients so far; that of the weights in parts.
        parts: cuts of receptive fields, and of all places for the gradient of the weights.
    """

    sizes: dict[str, int]
    given: tuple[Tensor, Tensor, Tensor, Tensor | None]
    begin: Tensor
    tiles: Tensor
    numbers: Tensor
    found: Tensor
    d_pose: Tensor
    d_activation: Tensor
    d_weight: Tensor
    parts: tuple[int, int]

    @classmethod
    def of(
        cls,
        pose: Tensor,
        activation: Tensor,
        weight: Tensor,
        offset: Tensor | None,
        stride: list[int],
        choices: list[bool],
    ) -> _Passes:
        dtype = _dtype(pose, weight)
        (n_images, types, height, width), (rows, columns, n_out) = pose.shape[:4], weight.shape[1:4]
        places = _places(pose, weight, stride)
        values = (types, height, width, rows, columns, *places, *stride, n_out)
        names = ("T", "H", "W", "KH", "KW", "HO", "WO", "SH", "SW", "J")
        block = min(_power(n_out), 16)
        sizes = dict(zip(names, values, strict=True)) | {"JB": block, "POSITIONS": choices[0]}
        n_places, n_rows = n_images * math.prod(places), types * rows * columns
        blocks = math.ceil(n_places / min(_power(n_places), TILE // block))
        over_rows = _cut(n_rows, blocks * math.ceil(n_out / block))
        over_places = _cut(blocks, n_rows * math.ceil(n_out / block))

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=pose.device)

        seen = _seen(height, rows, stride[0])[:, None] * _seen(width, columns, stride[1])
        begin = 1 / (n_out * (torch.ones_like(seen) if choices[1] else seen.clamp_min(1)).to(dtype))
        return cls(
            sizes,
            (
                pose.contiguous(),
                activation.contiguous(),
                weight.contiguous(),
                None if offset is None else offset.contiguous(),
            ),
            begin.to(pose.device),
            zeros(STATES, n_images, math.prod(places), n_out, 16),
            zeros(2, n_images, math.prod(places), n_out),
            zeros(3, *activation.shape, *((n_out,) if choices[0] else ())),
            zeros(*pose.shape),
            zeros(*activation.shape),
            zeros(math.ceil(blocks / over_places), *weight.shape),
            (over_rows, over_places),
        )

    def ready(self, mu: Tensor, variance: Tensor, logit: Tensor) -> None:
        """Hand the parents' states to the next E-step."""
        self.tiles[0], self.tiles[1] = mu, 1 / variance
        self.numbers[0] = F.logsigmoid(logit) - (2 * math.pi * variance).log().sum(dim=-1) / 2

    def slopes(self, moved: Tensor, g1: Tensor, g2: Tensor, k: Tensor) -> None:
        """Hand over the gradients of the parents' states."""
        self.tiles[2], self.tiles[3], self.tiles[4], self.numbers[1] = moved, g1, g2, k

    def first_coupling(self) -> Tensor:
        """R of the first M-step, ``[H', W', T·K_h·K_w, 1]``."""
        s = self.sizes
        fields = self.begin.unfold(0, s["KH"], s["SH"]).unfold(1, s["KW"], s["SW"])  # [H', W', K_h, K_w]
        return fields.flatten(2).repeat(1, 1, s["T"])[..., None]

    def children(self, *, first: bool = False, backward: bool = False, d_coupling: Tensor | None = None) -> None:
        """Highest logits and sums of exponentials; backward, mean slopes and the activations' gradient too."""
        pose, activation, weight, offset = self.given
        given = pose, activation, weight, offset, self.begin, self.tiles, self.numbers, _packed(d_coupling)
        with on(pose.device):
            load("em").child_pass[self._over_children()](
                *given,
                *self.found,
                self.d_activation,
                len(pose),
                **self.sizes,
                **self._block(len(pose)),
                FIRST=first,
                BACKWARD=backward,
            )

    def parents(
        self,
        *,
        first: bool = False,
        backward: bool = False,
        d_coupling: Tensor | None = None,
        again: Tensor | None = None,
        coupling: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Σ r ``[B, P, J]``, Σ r (V − μ) and Σ r (V − μ)² ``[B, P, J, 16]``."""
        pose, activation, weight, offset = self.given
        n_images, n_places, n_out = self.tiles.shape[1:4]
        s, per_part, block = self.sizes, self.parts[0], self._block(n_images * n_places)
        n_rows = s["T"] * s["KH"] * s["KW"]
        shape = (math.ceil(n_rows / per_part), *self.tiles.shape[1:])
        s0, s1, s2 = (torch.empty(x, dtype=self.tiles.dtype, device=pose.device) for x in (shape[:-1], shape, shape))
        grid = (math.ceil(n_images * n_places / block["N"]), math.ceil(n_out / s["JB"]), shape[0])
        with on(pose.device):
            load("em").parent_pass[grid](
                pose,
                activation * self.begin if first else activation,
                weight,
                offset,
                self.tiles,
                self.numbers,
                _packed(d_coupling),
                *self.found,
                again,
                coupling,
                s0,
                s1,
                s2,
                n_images,
                per_part,
                **s,
                **block,
                FIRST=first,
                BACKWARD=backward,
            )
        return s0.sum(dim=0), s1.sum(dim=0), s2.sum(dim=0)

    def gradients(self, *, first: bool = False, stop: bool = False, d_coupling: Tensor | None = None) -> None:
        """Add the gradients of poses and weights of one iteration."""
        pose, activation, weight, offset = self.given
        given = pose, activation, weight, offset, self.begin, self.tiles, self.numbers, _packed(d_coupling), *self.found
        choices, s = {"FIRST": first, "STOP": stop}, self.sizes
        n_images, n_places, n_out = self.tiles.shape[1:4]
        block = self._block(n_images * n_places)
        grid = (s["T"] * s["KH"] * s["KW"], math.ceil(n_out / s["JB"]), len(self.d_weight))
        with on(pose.device):
            load("em").pose_pass[self._over_children()](
                *given, self.d_pose, n_images, **s, **self._block(n_images), **choices
            )
            load("em").weight_pass[grid](*given, self.d_weight, n_images, self.parts[1], **s, **block, **choices)

    def _over_children(self) -> tuple[int, int]:
        """A program for each child of an image, and for each block of images."""
        n_images, *lower = self.given[0].shape[:4]
        return math.prod(lower), math.ceil(n_images / self._block(n_images)["N"])

    def _block(self, n: int) -> dict[str, int]:
        """How many of n children or parents are taken at once, and by how many warps."""
        size = min(_power(n), TILE // self.sizes["JB"])
        return {"N": size, "num_warps": max(1, size * self.sizes["JB"] * WARPS // TILE)} | FUSED


def _cost(beta_u: Tensor, variance: Tensor, given: Numbers) -> Tensor:
    """Of describing one vote, ``[B, P, J]``."""
    return given.scale_u * 16 * beta_u + given.scale_variance / 2 * variance.log().sum(dim=-1)


def _cut(n: int, programs: int) -> int:
    """Of n terms, how many a part has, where each part is done by so many programs."""
    parts = max(1, min(math.ceil(PROGRAMS / max(1, programs)), math.ceil(n / LEAST)))
    return max(1, math.ceil(n / parts))


def _seen(extent: int, kernel: int, stride: int) -> Tensor:
    """How many receptive fields each of a row of places lies in."""
    first = torch.arange(0, extent - kernel + 1, stride)[:, None]
    place = torch.arange(extent)
    return ((first <= place) & (place < first + kernel)).sum(dim=0)


def _packed(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.contiguous()


def _power(n: int) -> int:
    """The least power of two that is not below n, at least 1."""
    return 1 << max(0, n - 1).bit_length()


def _dtype(*tensors: Tensor) -> torch.dtype:
    """What is computed in."""
    return torch.float64 if any(x.dtype == torch.float64 for x in tensors) else torch.float32


def _places(pose: Tensor, weight: Tensor, stride: list[int] | tuple[int, ...]) -> tuple[int, int]:
    """H' and W'."""
    height, width = (
        (extent - kernel) // step + 1
        for extent, kernel, step in zip(pose.shape[2:4], weight.shape[1:3], stride, strict=True)
    )
    return height, width


def _outputs(
    pose: Tensor, weight: Tensor, stride: list[int], numbers: list[float], return_coupling: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    n_images, n_out, n_iters = pose.shape[0], weight.shape[3], len(numbers) - len(Numbers._fields)
    places = _places(pose, weight, stride)
    parents = (n_images, places[0] * places[1], n_out)
    shapes = (
        (n_images, n_out, *places, 4, 4),
        (n_images, n_out, *places),
        (n_images, *places, weight.shape[0] * weight.shape[1] * weight.shape[2], n_out) if return_coupling else (0,),
        (n_iters, 3, *parents, 16),
        (n_iters, 2, *parents),
    )
    dtype = _dtype(pose, weight)
    made = [torch.empty(shape, dtype=dtype, device=pose.device) for shape in shapes]
    return made[0], made[1], made[2], made[3], made[4]


def _gradients(*tensors: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    pose, activation, weight, beta_u, beta_a = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in tensors)
    return pose, activation, weight, beta_u, beta_a
