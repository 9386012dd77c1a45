"""Routing between capsules of matrices or vectors by expectation-maximisation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchcaps.checks import as_two, check_choice, check_flag, check_floating, check_shapes
from torchcaps.ops.em import cpu, triton
from torchcaps.ops.em.checks import (
    check_activation,
    check_betas,
    check_choices,
    check_dense,
    check_dense_choice,
    check_maps,
    check_matrices,
    choose_backend,
)
from torchcaps.ops.em.operator import Settings, places
from torchcaps.ops.em.reference import route, route_map
from torchcaps.ops.em.settings import EMSettings, em_settings
from torchcaps.ops.precision import at_least_float32, computed_in, without_autocast
from torchcaps.ops.votes import Fields, check_fields
from torchcaps.types import Capsules

_OPERATORS = {"cpu": cpu.forward_op, "triton": triton.forward_op}


def em_routing(
    pose: Tensor,
    activation: Tensor,
    weight: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    *,
    n_iters: int = 3,
    settings: str | EMSettings = "paper",
    offset: Tensor | None = None,
    backprop: str = "full",
    backend: str = "auto",
    return_coupling: bool = False,
    **changes: Any,
) -> Capsules:
    """Route I lower matrix capsules to J upper ones by fitting a Gaussian to the votes for each.

    Lower capsule i votes V_ij = M_i W_ij. An upper capsule is active where the votes assigned to it lie so
    close together that describing them by it is cheaper than by their background. Computed in float32 at
    least, whatever autocast is in force; the result has the common dtype of ``pose`` and ``weight``. Squares of votes
    must be finite: votes beyond 1e18 may give NaN in float32.

    Args:
        pose: of the lower capsules, matrices ``[B, I, 4, 4]``; or vectors ``[B, I, d_in]``, whose votes are
            M_i W_ij with a row vector M_i (the paper's ablation has d_in = d_out = 16).
        activation: of the lower capsules, 0 … 1, ``[B, I]``.
        weight: transformation matrices, ``[I, J, 4, 4]``; for vectors ``[I, J, d_in, d_out]``.
        beta_u: learned cost β_u, ``[J]``, added once per vote component. −β_u is the paper's cost of leaving a vote
            unexplained.
        beta_a: learned benefit of activating a capsule, ``[J]``: minus the paper's cost of activating it. (With
            ``settings="released"`` it is a cost, multiplied by −5000.)
        n_iters: M-steps, at least 1, with an E-step between each two; the paper uses 3.
        settings: "paper", "released" or :class:`~torchcaps.ops.EMSettings`.
        offset: added to the votes of each lower capsule, ``[I, 4, 4]`` or ``[I, d_out]``
            (:func:`~torchcaps.ops.coordinate_offset`).
        backprop: "full" flows through every iteration, E-steps too. "last" takes the responsibilities and
            means that enter the last M-step as constants.
        backend: "reference" is the procedure as the paper prints it; "cpu" is compiled code that never stores the
            votes, for matrices and vectors of 16 numbers, without gradient of ``offset``; "triton" the same for CUDA
            devices, of matrices alone. "auto" takes compiled code where it is available, elsewhere the reference, and
            :func:`torchcaps.ops.which_backend` says which. Kernels are checked on your GPU before they are taken. (Of
            vectors with one or two upper types the reference is the faster one: compiled code works on several types at
            once.) On the CPU compiled code takes numbers below the smallest normal one, 1e-38 in float32, for 0.
        return_coupling: fill the result's ``coupling`` with the responsibilities R_ij of the last E-step.
        changes: fields of ``settings`` that are to differ, such as ``final_lambda=0.02``.

    Returns:
        pose ``[B, J, 4, 4]`` or ``[B, J, d_out]`` (the means μ_j), activation ``[B, J]``, and coupling
        ``[B, I, J]``, not weighted by the lower activations, or None unless asked for.

    Raises:
        ValueError: shapes that do not fit, matrices that are not 4×4, ``n_iters`` below 1, an unknown choice,
            activations that are no probabilities (looked at on the CPU alone), ``compete="positions"`` with several
            iterations (it is for maps), ``backend="cpu"`` or ``"triton"`` for what it is not made for.
        Unavailable: ``backend="cpu"`` where nothing can be compiled, ``"triton"`` where it cannot be imported; a
            RuntimeError.

    Example:
        >>> import torch
        >>> pose, activation = torch.rand(2, 6, 4, 4), torch.rand(2, 6)
        >>> weight, beta_u, beta_a = torch.rand(6, 3, 4, 4), torch.zeros(3), torch.zeros(3)
        >>> routed = em_routing(pose, activation, weight, beta_u, beta_a)
        >>> routed.pose.shape, routed.activation.shape
        (torch.Size([2, 3, 4, 4]), torch.Size([2, 3]))

    Source: Hinton, Sabour, Frosst 2018 (ICLR), section 3 and procedure 1.
    """
    axes = "B I d_in" if getattr(pose, "ndim", 0) == 3 else "B I rows columns"
    check_shapes(pose=(pose, axes), activation=(activation, "B I"), weight=(weight, "I J rows_in rows_out"))
    check_dense(pose, weight, offset)
    given = em_settings(settings, dense=True, **changes)
    check_dense_choice(given, n_iters)
    routed = conv_em_routing(
        pose[:, :, None, None],
        activation[:, :, None, None],
        weight[:, None, None],
        beta_u,
        beta_a,
        n_iters=n_iters,
        settings=given,
        offset=None if offset is None else offset[:, None, None],
        backprop=backprop,
        backend=backend,
        return_coupling=return_coupling,
    )
    coupling = None if routed.coupling is None else routed.coupling[:, 0, 0]
    return Capsules(routed.pose[:, :, 0, 0], routed.activation[:, :, 0, 0], coupling)


def conv_em_routing(
    pose: Tensor,
    activation: Tensor,
    weight: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    *,
    stride: int | tuple[int, int] = 1,
    n_iters: int = 3,
    settings: str | EMSettings = "paper",
    offset: Tensor | None = None,
    backprop: str = "full",
    backend: str = "auto",
    return_coupling: bool = False,
    **changes: Any,
) -> Capsules:
    """Route maps as :func:`em_routing` does; an upper capsule at a place sees a receptive field of the lower map.

    With ``compete="all"`` (the paper's) parents compete for a child wherever they stand: its responsibilities are
    shared among all parents, of all types at all places, whose receptive fields it lies in. With ``"positions"`` (the
    released code's) they are shared among those places, for each type by itself: where fields do not overlap no child
    has a choice, then.

    Args:
        pose: ``[B, T, H, W, 4, 4]``, or vectors ``[B, T, H, W, d_in]``.
        activation: ``[B, T, H, W]``.
        weight: ``[T, K_h, K_w, J, 4, 4]``, shared over places; for vectors ``[T, K_h, K_w, J, d_in, d_out]``.
        beta_u: ``[J]``.
        beta_a: ``[J]``.
        stride: places from one receptive field to the next, or (rows, columns).
        n_iters: M-steps, at least 1.
        settings: "paper", "released" or :class:`~torchcaps.ops.EMSettings`.
        offset: ``[T, K_h, K_w, 4, 4]`` or ``[T, K_h, K_w, d_out]``.
        backprop: "full" or "last", see :func:`em_routing`.
        backend: "auto", "reference", "cpu" or "triton", see :func:`em_routing`.
        return_coupling: fill the result's ``coupling``.
        changes: fields of ``settings`` that are to differ.

    Returns:
        pose ``[B, J, H', W', 4, 4]`` or ``[B, J, H', W', d_out]`` with H' = (H − K_h) // stride + 1;
        activation ``[B, J, H', W']``; coupling ``[B, H', W', T·K_h·K_w, J]`` on request.

    Raises:
        ValueError: as :func:`em_routing`; a kernel larger than the map.

    Example:
        >>> import torch
        >>> pose, activation = torch.rand(1, 2, 5, 5, 4, 4), torch.rand(1, 2, 5, 5)
        >>> weight, beta = torch.rand(2, 3, 3, 4, 4, 4), torch.zeros(4)
        >>> conv_em_routing(pose, activation, weight, beta, beta, stride=2).pose.shape
        torch.Size([1, 4, 2, 2, 4, 4])

    Source: Hinton, Sabour, Frosst 2018, section 4.
    """
    matrices = getattr(pose, "ndim", 0) == 6
    check_flag("return_coupling", return_coupling)
    given = em_settings(settings, dense=False, **changes)
    dtype = check_maps(pose, activation, weight, beta_u, beta_a, offset, n_iters, backprop, matrices=matrices)
    vectors = None if matrices else weight.shape[-2:]
    chosen = choose_backend(backend, pose, activation, weight, beta_u, beta_a, offset=offset, vectors=vectors)
    stride = as_two("stride", stride, 1)
    map_shape, kernel_size = (_numbers(sizes) for sizes in (pose.shape[1:4], weight.shape[1:3]))
    check_fields(map_shape[1:], kernel_size, stride)
    with without_autocast(pose):
        m, a, w = pose, activation, weight
        if chosen != "triton":  # which widens numbers as it reads them
            m, a, w = (at_least_float32(x.to(dtype)) for x in (m, a, w))
        if chosen == "reference":
            fields = Fields(map_shape, kernel_size, stride)
            routed = route_map(m, a, w, beta_u, beta_a, offset, fields, n_iters, given, backprop)
        else:
            rest = beta_u, beta_a, stride, n_iters, given, offset, backprop, return_coupling
            routed = _run_operator(chosen, m, a, w, *rest)
    coupling = routed.coupling.to(dtype) if return_coupling and routed.coupling is not None else None
    return Capsules(routed.pose.to(dtype), routed.activation.to(dtype), coupling)


def em_routing_from_votes(
    votes: Tensor,
    activation: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    *,
    n_iters: int = 3,
    settings: str | EMSettings = "paper",
    backprop: str = "full",
    backend: str = "auto",
    return_coupling: bool = False,
    **changes: Any,
) -> Capsules:
    """Route given votes: :func:`em_routing` without its first line.

    Args:
        votes: V, ``[B, I, J, 4, 4]`` or ``[B, I, J, d_out]``.
        activation: of the lower capsules, ``[B, I]``.
        beta_u: ``[J]``.
        beta_a: ``[J]``.
        n_iters: M-steps, at least 1.
        settings: "paper", "released" or :class:`~torchcaps.ops.EMSettings`.
        backprop: "full" or "last", see :func:`em_routing`.
        backend: "auto" or "reference", which are the same: votes that are there already are routed by the reference.
        return_coupling: fill the result's ``coupling``.
        changes: fields of ``settings`` that are to differ.

    Returns:
        As :func:`em_routing`.

    Raises:
        ValueError: as :func:`em_routing`.

    Example:
        >>> import torch
        >>> votes, activation, beta = torch.rand(2, 6, 3, 16), torch.rand(2, 6), torch.zeros(3)
        >>> em_routing_from_votes(votes, activation, beta, beta, n_iters=2).activation.shape
        torch.Size([2, 3])
    """
    sizes = check_shapes(
        votes=(votes, "B I J rows columns" if getattr(votes, "ndim", 0) == 5 else "B I J d_out"),
        activation=(activation, "B I"),
    )
    if votes.dim() == 5:
        check_matrices("votes", votes)
    check_betas(beta_u, beta_a, sizes["J"], "votes", votes)
    check_activation(activation)
    check_floating("votes", votes)
    dtype = torch.promote_types(votes.dtype, activation.dtype)
    check_choices(n_iters, backprop)
    check_flag("return_coupling", return_coupling)
    check_choice("backend, for votes that are there already,", backend, ("auto", "reference"))
    given = em_settings(settings, dense=True, **changes)
    check_dense_choice(given, n_iters)
    fields = Fields((sizes["I"], 1, 1), (1, 1), (1, 1))
    with without_autocast(votes):
        v, a = (at_least_float32(x.to(dtype)) for x in (votes, activation))
        v, u, b = v.flatten(3).unsqueeze(1), beta_u.to(v.dtype), beta_a.to(v.dtype)  # votes [B, 1, I, J, D]
        mu, a_out, coupling = route(v, a.unsqueeze(1), u, b, fields, n_iters, given, backprop)
    coupling = coupling.squeeze(1).to(dtype) if return_coupling else None
    return Capsules(mu.squeeze(1).unflatten(-1, votes.shape[3:]).to(dtype), a_out.squeeze(1).to(dtype), coupling)


def _numbers(sizes: Sequence[int]) -> list[int]:
    """Return sizes as integers; they are tensors while ``torch.jit`` traces."""
    return [int(n) if isinstance(n, Tensor) else n for n in sizes]


def _run_operator(
    backend: str,
    pose: Tensor,
    activation: Tensor,
    weight: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    stride: tuple[int, int],
    n_iters: int,
    given: EMSettings,
    offset: Tensor | None,
    backprop: str,
    return_coupling: bool,
) -> Capsules:
    """Route checked arguments of :func:`conv_em_routing` by the operator of ``backend``.

    "cpu" wants pose and weight of one dtype, float32 or float64; "triton" widens half precision as it reads it.
    """
    dtype = computed_in(pose, weight)
    activation, beta_u, beta_a = activation.to(dtype), beta_u.to(dtype), beta_a.to(dtype)
    offset = None if offset is None else offset.to(dtype)
    ratio = 1.0
    if given.normalize:
        ratio = len(beta_u) * math.prod(places(pose, weight, stride)) / max(1, math.prod(pose.shape[1:4]))
    settings = Settings(
        compete_positions=given.compete == "positions",
        start_types=given.start == "types",
        last_only=backprop == "last",
        damping=given.damping,
        variance_floor=given.variance_floor,
        mass_floor=given.mass_floor,
        ratio=ratio,
        scale_a=given.beta_a_scale,
        scale_u=given.beta_u_scale,
        scale_variance=given.cost_scale,
        lambdas=[given.lambda_at(t) for t in range(n_iters)],
    )
    tensors = pose, activation, weight, beta_u, beta_a, offset
    mu, a, coupling, *_ = _OPERATORS[backend](*tensors, list(stride), *settings.pack(), return_coupling)
    if not return_coupling:
        return Capsules(mu, a, None)
    # Without an E-step, or with one that is taken as a constant, the responsibilities are constants.
    return Capsules(mu, a, coupling if n_iters > 1 and backprop == "full" else coupling.detach())
