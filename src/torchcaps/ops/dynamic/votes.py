"""Dynamic routing of votes that a convolution has laid out, in compiled code.

With b = 0 at first, every pass has, for the lower types t and the upper types j at places p,

    c_t = softmax(b_t),    s_j = Σ_t c_tj û_tj + bias_j,    v = squash(s),    b_tj ← b_tj + û_tj · v_j.

Softmax and squash are over the upper types and the poses of each place, or over those of all places together. The
gradient goes through every pass: with ds of v, it is dc_tj = û_tj · ds_j, through softmax to db_t, which all passes
before share, and dv_j = Σ_t db_tj û_tj of the pass before. The votes' own is Σ (c_tj ds_j + db_tj v_j) over the passes.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from torchcaps.checks import check_choice
from torchcaps.ops.backends import large_pages
from torchcaps.ops.backends.dispatch import note_reference, which_backend
from torchcaps.ops.backends.errors import refuse_forward_derivative, refuse_second_derivative
from torchcaps.ops.backends.native import SUFFIXES, load, why_not
from torchcaps.ops.precision import at_least_float32
from torchcaps.types import Capsules

#: What may be asked for; "auto" takes what :func:`torchcaps.ops.which_backend` says.
BACKENDS = ("auto", "reference", "cpu")
_ROUTING = "dynamic_votes"
_CHOICES = "int n_iters, bool leaky, bool together, bool last_only"


def choose(backend: str, votes: Tensor, bias: Tensor | None, *, return_coupling: bool) -> str:
    """Choose the implementation, by checked arguments.

    Raises:
        ValueError: an unknown one, or couplings asked of "cpu".
        Unavailable: "cpu" where nothing can be compiled.
    """
    check_choice("backend", backend, BACKENDS)
    if return_coupling:
        if backend == "cpu":
            raise ValueError("backend='cpu' gives no couplings of votes: take 'auto'")
        backend = "reference"
    return which_backend(_ROUTING, backend, votes, *(() if bias is None else (bias,)))


def route_compiled(
    votes: Tensor, n_iters: int, bias: Tensor | None, *, leaky: bool, together: bool, backprop: str
) -> Capsules:
    """Route votes ``[B, T, J, d_out, H, W]`` by checked arguments, in float32 at least; ``together`` over the map."""
    given = at_least_float32(votes)
    added = None if bias is None else bias.to(given.dtype)
    pose, activation = forward_op(given, added, n_iters, leaky, together, backprop == "last")
    return Capsules(pose.movedim(2, 4).to(votes.dtype), activation.to(votes.dtype))


@torch.library.custom_op(
    "torchcaps::dynamic_votes_cpu",
    mutates_args=(),
    device_types="cpu",
    schema=f"(Tensor votes, Tensor? bias, {_CHOICES}) -> (Tensor, Tensor)",
)
def forward_op(votes: Tensor, bias: Tensor | None, n_iters: int, *choices: bool) -> tuple[Tensor, Tensor]:
    """Route to poses ``[B, J, d_out, H, W]`` and activations ``[B, J, H, W]``, in float32 or float64.

    Where nothing is compiled, as an exported program may find, torch computes the same.
    """
    refuse_forward_derivative(votes, bias)
    results = _allocate(votes)
    if not results[0].numel():
        return results
    reason = why_not(_ROUTING)
    if reason is None:
        _call("forward", votes, n_iters, choices, votes, bias, *results)
    else:
        note_reference(reason)
        for result, value in zip(results, _by_torch(votes, bias, n_iters, *choices), strict=True):
            result.copy_(value)
    return results


@torch.library.custom_op(
    "torchcaps::dynamic_votes_cpu_backward",
    mutates_args=(),
    device_types="cpu",
    schema=f"(Tensor d_pose, Tensor d_activation, Tensor votes, Tensor? bias, {_CHOICES}) -> (Tensor, Tensor)",
)
def backward_op(
    d_pose: Tensor, d_activation: Tensor, votes: Tensor, bias: Tensor | None, n_iters: int, *choices: bool
) -> tuple[Tensor, Tensor]:
    """Compute the gradients of :func:`forward_op`: votes, and bias whether there is one or not."""
    results = large_pages.empty(votes.shape, votes.dtype), votes.new_empty(votes.shape[2:4])
    if not d_pose.numel():
        return results[0].zero_(), results[1].zero_()
    _call("backward", votes, n_iters, choices, votes, bias, d_pose, d_activation, *results)
    return results


def _allocate(votes: Tensor) -> tuple[Tensor, Tensor]:
    n_images, _, n_out, d_out, height, width = votes.shape
    return votes.new_empty(n_images, n_out, d_out, height, width), votes.new_empty(n_images, n_out, height, width)


@forward_op.register_fake
def _(votes: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return _allocate(votes)


@backward_op.register_fake
def _(_p: Any, _a: Any, votes: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return votes.new_empty(votes.shape), votes.new_empty(votes.shape[2:4])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    del output
    votes, bias, *ctx.choices = inputs
    ctx.has_bias = bias is not None
    ctx.save_for_backward(votes, bias)


def _differentiate(ctx: Any, d_pose: Tensor, d_activation: Tensor) -> tuple[Any, ...]:
    d_votes, d_bias = backward_op(d_pose, d_activation, *ctx.saved_tensors, *ctx.choices)
    return d_votes, d_bias if ctx.has_bias else None, *(None for _ in ctx.choices)


forward_op.register_autograd(_differentiate, setup_context=_keep)
refuse_second_derivative(backward_op, "cpu")


class _Extents(ctypes.Structure):
    """``Extents`` of dynamic_votes.cpp."""

    _names = ("B", "types", "J", "d_out", "P", "n_iters", "leaky", "together", "last_only", "threads")
    _fields_ = tuple((name, ctypes.c_int64) for name in _names)


def _call(name: str, votes: Tensor, n_iters: int, choices: tuple[bool, ...], *tensors: Tensor | None) -> None:
    """Call ``<name>_<dtype>`` of the library; None is handed over as null."""
    kept = [None if x is None else x.contiguous() for x in tensors]
    sizes = [*votes.shape[:4], votes.shape[4] * votes.shape[5], n_iters, *choices]
    extents = _Extents(*sizes, torch.get_num_threads())
    pointers = [ctypes.c_void_p(None if x is None else x.data_ptr()) for x in kept]
    if getattr(load(_ROUTING), f"{name}_{SUFFIXES[votes.dtype]}")(ctypes.byref(extents), *pointers):
        raise MemoryError(f"dynamic routing of sizes {sizes} ran out of memory")


def _by_torch(
    votes: Tensor, bias: Tensor | None, n_iters: int, leaky: bool, together: bool, last_only: bool
) -> tuple[Tensor, Tensor]:
    """Route as the reference does, without gradients."""
    from torchcaps.ops import dynamic_routing_3d, locally_constrained_routing  # which stand on this module

    del last_only
    if together:
        routed = dynamic_routing_3d(votes, n_iters=n_iters, bias=bias, backend="reference")
    else:
        routed = locally_constrained_routing(votes, n_iters=n_iters, bias=bias, leaky=leaky, backend="reference")
    return routed.pose.movedim(4, 2), routed.activation
