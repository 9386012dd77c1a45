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
    check_mask,
    check_shapes,
    check_tensor,
)
from torchcaps.ops.backends.dispatch import BACKENDS, which_backend
from torchcaps.ops.dynamic import cpu, triton
from torchcaps.ops.dynamic.reference import route
from torchcaps.ops.dynamic.shared import route_shared
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
    mask: Tensor | None = None,
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
        weight: transformation matrices, ``[I, J, d_in, d_out]``; or ``[1, J, d_in, d_out]``, shared by all lower
            capsules; or ``[1, 1, d_in, d_out]``, shared by all pairs, where J is that of ``initial_logits``.
        n_iters: passes over the votes, at least 1; the paper uses 3. The couplings of iteration t
            are those of a call with ``n_iters=t``.
        bias: added to the weighted sum before squashing, ``[J, d_out]``. Not in the paper, but in
            its authors' code.
        initial_logits: initial logits b, ``[I, J]``, ``[1, J]`` or ``[B, I, J]``; 0 in the paper. With one matrix for
            all pairs, equal logits make equal upper capsules, apart from ``bias``: MIND draws them from N(0, 1).
        mask: true for lower capsules that are there, ``[B, I]``; None for all. The others have no part in any sum and
            get no gradient, and their coupling is 0; their poses, and logits ``[B, I, J]``, may hold anything, NaN too.
            Where none is there, the pose is 0 (the squashed ``bias``, if there is one).
        leaky: let a capsule route to nothing: the softmax runs over J + 1 places, the extra one
            with logit 0 and no output ("none of the above", section 7 on CIFAR-10).
        backprop: "full" flows through every iteration, as in the authors' code. "last" takes what
            agreement added to the logits as a constant: it flows through the final weighted sum,
            squash, bias and votes, and to ``initial_logits`` through the final softmax.
        backend: "reference" is the procedure as the paper prints it; "cpu" is compiled code that never
            stores the votes (backward derivatives only, and none of those), "triton" the same for CUDA
            devices; "auto" takes compiled code where it is available, elsewhere the reference, and
            :func:`torchcaps.ops.which_backend` says which. Kernels are checked on your GPU before they are taken.
            Kernels know no logits ``[B, I, J]``. With shared matrices "auto" takes sums of poses in plain PyTorch,
            which need no votes: memory grows with B·I·J.
        return_coupling: fill the result's ``coupling`` with the coupling coefficients of the last iteration.

    Returns:
        pose ``[B, J, d_out]``, activation ``[B, J]`` (the pose's length, 0 … 1), and coupling
        ``[B, I, J]``, or None unless asked for: Σ_j c_ij = 1, or less than 1 with ``leaky``, or 0 of masked ones.

    Raises:
        ValueError: shapes that do not fit, a mask that is not bool, ``n_iters`` or d_out below 1, an unknown
            ``backprop`` or ``backend``, ``backend="cpu"`` or ``"triton"`` for tensors elsewhere or with logits
            ``[B, I, J]``.
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

    Source: Sabour et al. 2017, section 2, procedure 1. Sets with a mask, shared matrices and drawn logits: Li et al.
    2019, Multi-Interest Network with Dynamic Routing (MIND), arXiv 1904.08030.
    """
    sizes = _sizes(u, weight, initial_logits)
    _check(sizes, n_iters, bias, initial_logits, mask, leaky, backprop, return_coupling, "u", u)
    dtype = torch.promote_types(u.dtype, weight.dtype)
    if not dtype.is_floating_point:
        raise ValueError(f"u and weight must be floating point, got {u.dtype} and {weight.dtype}")
    n_in, n_out = sizes["I"], sizes["J"]
    chosen = _choose(backend, tuple(weight.shape[:2]) != (n_in, n_out), u, weight, bias, initial_logits)
    with without_autocast(u):
        u, initial_logits = _without_masked(u, initial_logits, mask)
        if chosen != "triton":  # which widens numbers as it reads them
            u, weight = at_least_float32(u.to(dtype)), at_least_float32(weight.to(dtype))
        if chosen == "shared":
            routed = route_shared(u, weight, n_out, n_iters, bias, initial_logits, leaky, backprop)
        elif chosen == "reference":
            votes = dense_votes(u, weight.expand(n_in, n_out, -1, -1))
            routed = route(votes, n_iters, bias, initial_logits, leaky, backprop)
        else:
            weight = weight.expand(n_in, n_out, -1, -1)
            logits = None if initial_logits is None else initial_logits.expand(n_in, n_out)
            routed = _run_operator(chosen, u, weight, n_iters, bias, logits, leaky, backprop, return_coupling)
    return _finish(routed, mask, dtype, return_coupling)


def dynamic_routing_from_votes(
    votes: Tensor,
    *,
    n_iters: int = 3,
    bias: Tensor | None = None,
    initial_logits: Tensor | None = None,
    mask: Tensor | None = None,
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
        initial_logits: initial logits b, ``[I, J]``, ``[1, J]`` or ``[B, I, J]``; 0 in the paper.
        mask: true for lower capsules that are there, ``[B, I]``, see :func:`dynamic_routing`.
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
    _check(sizes, n_iters, bias, initial_logits, mask, leaky, backprop, return_coupling, "votes", votes)
    check_choice("backend, for votes that are there already,", backend, ("auto", "reference"))
    with without_autocast(votes):
        dtype = votes.dtype
        votes, initial_logits = _without_masked(votes, initial_logits, mask)
        routed = route(at_least_float32(votes), n_iters, bias, initial_logits, leaky, backprop)
    return _finish(routed, mask, dtype, return_coupling)


def _without_masked(poses: Tensor, initial_logits: Tensor | None, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Set masked poses or votes ``[B, I, …]`` to 0, and logits ``[B, I, J]`` likewise.

    This is all that a mask has to do, in every implementation: a vote of 0 adds 0 to each sum, and what agrees with it
    is 0, so that its coupling does not matter; nor has it a gradient.
    """
    if mask is None:
        return poses, initial_logits
    absent = ~mask.unsqueeze(2)
    if initial_logits is not None and initial_logits.dim() == 3:
        initial_logits = initial_logits.masked_fill(absent, 0)
    return poses.masked_fill(absent if poses.dim() == 3 else absent.unsqueeze(3), 0), initial_logits


def _choose(
    backend: str, shared: bool, u: Tensor, weight: Tensor, bias: Tensor | None, initial_logits: Tensor | None
) -> str:
    """Return what computes a call: "shared" for sums of poses, or the name of a backend."""
    check_choice("backend", backend, BACKENDS)
    for_each_image = initial_logits is not None and initial_logits.dim() == 3
    if backend == "auto" and (shared or for_each_image):  # no kernel is asked for, nor checked
        return "shared" if shared else "reference"
    chosen = which_backend("dynamic", backend, *(x for x in (u, weight, bias, initial_logits) if x is not None))
    if for_each_image and chosen != "reference":
        raise ValueError(f"initial_logits must be [I, J] with backend={backend!r}, got one for each image")
    return chosen


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


def _sizes(u: Tensor, weight: Tensor, initial_logits: Tensor | None) -> dict[str, int]:
    """Return B, I, J, d_in and d_out, where lower capsules or all pairs may share a matrix."""
    sizes = check_shapes(u=(u, "B I d_in"), weight=(weight, "rows columns d_in d_out"))
    rows, columns = sizes.pop("rows"), sizes.pop("columns")
    if rows not in (1, sizes["I"]):
        raise ValueError(
            f"weight must be [I={sizes['I']} or 1, J, d_in, d_out] as u says, got shape {list(weight.shape)}"
        )
    for_all_pairs = rows == columns == 1 and isinstance(initial_logits, Tensor) and initial_logits.dim() > 1
    return sizes | {"J": initial_logits.shape[-1] if for_all_pairs and initial_logits is not None else columns}


def check_passes(sizes: dict[str, int], n_iters: int, backprop: str, leaky: bool, return_coupling: bool) -> None:
    """Refuse what no dynamic routing can be asked for, by places or by maps."""
    check_at_least("n_iters", n_iters, 1)
    if sizes["d_out"] < 1:
        raise ValueError(f"d_out must be at least 1, got {sizes['d_out']}")
    check_choice("backprop", backprop, BACKPROP)
    check_flag("leaky", leaky)
    check_flag("return_coupling", return_coupling)


def _check(
    sizes: dict[str, int],
    n_iters: int,
    bias: Tensor | None,
    initial_logits: Tensor | None,
    mask: Tensor | None,
    leaky: bool,
    backprop: str,
    return_coupling: bool,
    first: str,
    poses: Tensor,
) -> None:
    check_passes(sizes, n_iters, backprop, leaky, return_coupling)
    n_images, n_in, n_out, d_out = (sizes[letter] for letter in ("B", "I", "J", "d_out"))
    if bias is not None:
        check_tensor("bias", bias)
        check_beside("bias", bias, first, poses)
        if bias.shape != (n_out, d_out):
            raise ValueError(f"bias must be [J, d_out] = {[n_out, d_out]}, got shape {list(bias.shape)}")
    if initial_logits is not None:
        check_tensor("initial_logits", initial_logits)
        check_beside("initial_logits", initial_logits, first, poses)
        if tuple(initial_logits.shape) not in ((n_in, n_out), (1, n_out), (n_images, n_in, n_out)):
            raise ValueError(
                f"initial_logits must be [I, J] = {[n_in, n_out]}, [1, J] or [B, I, J], "
                f"got shape {list(initial_logits.shape)}"
            )
    if mask is not None:
        check_mask(mask, (n_images, n_in), (first, poses))


def _finish(routed: Capsules, mask: Tensor | None, dtype: torch.dtype, return_coupling: bool) -> Capsules:
    pose, activation, coupling = routed
    asked = coupling.to(dtype) if return_coupling and coupling is not None else None
    if asked is not None and mask is not None:
        asked = asked.masked_fill(~mask.unsqueeze(2), 0)
    return Capsules(pose.to(dtype), activation.to(dtype), asked)
