"""Routing by agreement between capsules whose length is their probability."""

from __future__ import annotations

import torch
from torch import Tensor

from torchcaps.checks import (
    check_at_least,
    check_beside,
    check_choice,
    check_flag,
    check_floating,
    check_shapes,
    check_tensor,
)
from torchcaps.ops.backends.dispatch import which_backend
from torchcaps.ops.dynamic import cpu, triton
from torchcaps.ops.dynamic.reference import route
from torchcaps.ops.precision import at_least_float32, computed_in, without_autocast
from torchcaps.ops.votes import dense_votes
from torchcaps.types import Capsules

BACKPROP = ("full", "last")
_OPERATORS = {"cpu": cpu.forward_op, "triton": triton.forward_op}


def dynamic_routing(
    u: Tensor,
    weight: Tensor,
    *,
    n_iters: int = 3,
    bias: Tensor | None = None,
    initial_logits: Tensor | None = None,
    leaky: bool = False,
    backprop: str = "full",
    backend: str = "auto",
    return_coupling: bool = False,
) -> Capsules:
    """Route I lower capsules to J upper ones by agreement.

    Lower capsule i votes û_ij = u_i W_ij for upper capsule j; the votes that agree with the outcome
    gain weight in the next iteration. Computed in float32 at least, whatever autocast is in force;
    the result has the common dtype of ``u`` and ``weight``.

    Args:
        u: poses of the lower capsules, ``[B, I, d_in]``.
        weight: transformation matrices, ``[I, J, d_in, d_out]``.
        n_iters: passes over the votes, at least 1; the paper uses 3. The couplings of iteration t
            are those of a call with ``n_iters=t``.
        bias: added to the weighted sum before squashing, ``[J, d_out]``. Not in the paper, but in
            its authors' code.
        initial_logits: initial logits b, ``[I, J]``; 0 in the paper.
        leaky: let a capsule route to nothing: the softmax runs over J + 1 places, the extra one
            with logit 0 and no output ("none of the above", section 7 on CIFAR-10).
        backprop: "full" flows through every iteration, as in the authors' code. "last" takes what
            agreement added to the logits as a constant: it flows through the final weighted sum,
            squash, bias and votes, and to ``initial_logits`` through the final softmax.
        backend: "reference" is the procedure as the paper prints it; "cpu" is compiled code that never
            stores the votes (backward derivatives only, and none of those), "triton" the same for CUDA
            devices; "auto" takes compiled code where it is available, elsewhere the reference, and
            :func:`torchcaps.ops.which_backend` says which. Kernels are checked on your GPU before they are taken.
        return_coupling: fill the result's ``coupling`` with the coupling coefficients of the last iteration.

    Returns:
        pose ``[B, J, d_out]``, activation ``[B, J]`` (the pose's length, 0 … 1), and coupling
        ``[B, I, J]``, or None unless asked for: Σ_j c_ij = 1, or less than 1 with ``leaky``.

    Raises:
        ValueError: shapes that do not fit, ``n_iters`` or d_out below 1, an unknown ``backprop`` or ``backend``,
            ``backend="cpu"`` or ``"triton"`` for tensors elsewhere.
        Unavailable: ``backend="cpu"`` where nothing can be compiled, ``"triton"`` where it cannot be imported;
            a RuntimeError.

    Example:
        >>> import torch
        >>> u, weight = torch.rand(2, 6, 8), torch.rand(6, 3, 8, 16)
        >>> routed = dynamic_routing(u, weight, n_iters=3, return_coupling=True)
        >>> routed.pose.shape, routed.coupling.shape
        (torch.Size([2, 3, 16]), torch.Size([2, 6, 3]))
        >>> bool((routed.coupling.sum(dim=2) - 1).abs().max() < 1e-5)  # over the upper capsules
        True

    Source: Sabour et al. 2017, section 2, procedure 1.
    """
    sizes = check_shapes(u=(u, "B I d_in"), weight=(weight, "I J d_in d_out"))
    _check(sizes, n_iters, bias, initial_logits, leaky, backprop, return_coupling, "u", u)
    dtype = torch.promote_types(u.dtype, weight.dtype)
    if not dtype.is_floating_point:
        raise ValueError(f"u and weight must be floating point, got {u.dtype} and {weight.dtype}")
    chosen = which_backend("dynamic", backend, *(x for x in (u, weight, bias, initial_logits) if x is not None))
    with without_autocast(u):
        if chosen != "triton":  # which widens numbers as it reads them
            u, weight = at_least_float32(u.to(dtype)), at_least_float32(weight.to(dtype))
        if chosen == "reference":
            routed = route(dense_votes(u, weight), n_iters, bias, initial_logits, leaky, backprop)
        else:
            routed = _run_operator(chosen, u, weight, n_iters, bias, initial_logits, leaky, backprop, return_coupling)
    return _finish(routed, dtype, return_coupling)


def dynamic_routing_from_votes(
    votes: Tensor,
    *,
    n_iters: int = 3,
    bias: Tensor | None = None,
    initial_logits: Tensor | None = None,
    leaky: bool = False,
    backprop: str = "full",
    backend: str = "auto",
    return_coupling: bool = False,
) -> Capsules:
    """Route given votes: :func:`dynamic_routing` without its first line.

    Args:
        votes: û, ``[B, I, J, d_out]``.
        n_iters: passes over the votes, at least 1.
        bias: added to the weighted sum before squashing, ``[J, d_out]``.
        initial_logits: initial logits b, ``[I, J]``; 0 in the paper.
        leaky: let a capsule route to nothing, see :func:`dynamic_routing`.
        backprop: "full" or "last", see :func:`dynamic_routing`.
        backend: "auto" or "reference", which are the same: votes that are there already are routed by the reference.
        return_coupling: fill the result's ``coupling``.

    Returns:
        As :func:`dynamic_routing`.

    Raises:
        ValueError: as :func:`dynamic_routing`.

    Example:
        >>> import torch
        >>> votes = torch.tensor([[[[1.0, 0.0]], [[1.0, 0.0]]]])  # two lower capsules agree
        >>> dynamic_routing_from_votes(votes, n_iters=1).pose  # s = (2, 0), of which 4/5 remain as v
        tensor([[[0.8000, 0.0000]]])
    """
    sizes = check_shapes(votes=(votes, "B I J d_out"))
    check_floating("votes", votes)
    _check(sizes, n_iters, bias, initial_logits, leaky, backprop, return_coupling, "votes", votes)
    check_choice("backend, for votes that are there already,", backend, ("auto", "reference"))
    with without_autocast(votes):
        routed = route(at_least_float32(votes), n_iters, bias, initial_logits, leaky, backprop)
    return _finish(routed, votes.dtype, return_coupling)


def _run_operator(
    backend: str,
    u: Tensor,
    weight: Tensor,
    n_iters: int,
    bias: Tensor | None,
    initial_logits: Tensor | None,
    leaky: bool,
    backprop: str,
    return_coupling: bool,
) -> Capsules:
    """Route checked arguments by the operator of ``backend``.

    "cpu" wants u and weight of one dtype, float32 or float64; "triton" widens half precision as it reads it.
    """
    dtype = computed_in(u, weight)
    bias, initial_logits = (None if x is None else x.to(dtype) for x in (bias, initial_logits))
    full = backprop == "full"
    pose, activation, coupling, _ = _OPERATORS[backend](
        u, weight, bias, initial_logits, n_iters, leaky, full, return_coupling
    )
    if not return_coupling:
        return Capsules(pose, activation, None)
    # What does not depend on the votes has no gradient, as in the reference.
    return Capsules(
        pose, activation, coupling.detach() if initial_logits is None and (n_iters == 1 or not full) else coupling
    )


def _check(
    sizes: dict[str, int],
    n_iters: int,
    bias: Tensor | None,
    initial_logits: Tensor | None,
    leaky: bool,
    backprop: str,
    return_coupling: bool,
    first: str,
    poses: Tensor,
) -> None:
    check_at_least("n_iters", n_iters, 1)
    if sizes["d_out"] < 1:
        raise ValueError(f"d_out must be at least 1, got {sizes['d_out']}")
    check_choice("backprop", backprop, BACKPROP)
    check_flag("leaky", leaky)
    check_flag("return_coupling", return_coupling)
    for name, tensor, letters in (("bias", bias, ("J", "d_out")), ("initial_logits", initial_logits, ("I", "J"))):
        if tensor is None:
            continue
        check_tensor(name, tensor)
        check_beside(name, tensor, first, poses)
        wanted = [sizes[letter] for letter in letters]
        if list(tensor.shape) != wanted:
            raise ValueError(f"{name} must be [{', '.join(letters)}] = {wanted}, got shape {list(tensor.shape)}")


def _finish(routed: Capsules, dtype: torch.dtype, return_coupling: bool) -> Capsules:
    pose, activation, coupling = routed
    asked = coupling.to(dtype) if return_coupling and coupling is not None else None
    return Capsules(pose.to(dtype), activation.to(dtype), asked)
