"""Checks of EM routing's arguments."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchcaps.checks import check_at_least, check_beside, check_choice, check_shapes, check_tensor
from torchcaps.ops.backends.dispatch import BACKENDS, which_backend
from torchcaps.ops.backends.tracing import has_values
from torchcaps.ops.dynamic.routing import BACKPROP
from torchcaps.ops.em.cpu import SIZE
from torchcaps.ops.em.settings import EMSettings

#: With what bfloat16 may round up.
_ONE = 1.01


def check_maps(
    pose: Tensor,
    activation: Tensor,
    weight: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    offset: Tensor | None,
    n_iters: int,
    backprop: str,
    *,
    matrices: bool,
) -> torch.dtype:
    """Check that all arguments fit; returns the dtype of the result."""
    if matrices:
        sizes = check_shapes(
            pose=(pose, "B T H W rows columns"),
            activation=(activation, "B T H W"),
            weight=(weight, "T K_h K_w J rows columns"),
        )
        check_matrices("pose", pose)
        check_matrices("weight", weight)
    else:
        sizes = check_shapes(
            pose=(pose, "B T H W d_in"),
            activation=(activation, "B T H W"),
            weight=(weight, "T K_h K_w J d_in d_out"),
        )
    check_offset(offset, weight.shape[:3], weight, matrices=matrices)
    check_betas(beta_u, beta_a, sizes["J"], "pose", pose)
    check_choices(n_iters, backprop)
    check_activation(activation)
    dtype = torch.promote_types(pose.dtype, weight.dtype)
    if not dtype.is_floating_point:
        raise ValueError(f"pose and weight must be floating point, got {pose.dtype} and {weight.dtype}")
    return dtype


def check_dense(pose: Tensor, weight: Tensor, offset: Tensor | None) -> None:
    """Check the arguments of dense routing, before axes are added that its caller never wrote."""
    matrices = pose.dim() == 4
    if matrices:
        check_matrices("pose", pose)
        check_matrices("weight", weight)
    elif pose.shape[-1] != weight.shape[-2]:
        raise ValueError(f"weight must be [I, J, d_in={pose.shape[-1]}, d_out], got shape {list(weight.shape)}")
    check_offset(offset, weight.shape[:1], weight, matrices=matrices)


def check_dense_choice(settings: EMSettings, n_iters: int) -> None:
    """Reject dense routing over positions. There is one position, so nothing would be routed."""
    check_at_least("n_iters", n_iters, 1)
    if settings.compete == "positions" and n_iters > 1:
        raise ValueError("compete must be 'all' in dense routing, got 'positions': no child would have a choice")


def check_offset(offset: Tensor | None, children: torch.Size, weight: Tensor, *, matrices: bool) -> None:
    """Reject anything but one vote's numbers for each lower capsule that a parent sees."""
    if offset is None:
        return
    check_tensor("offset", offset)
    check_beside("offset", offset, "weight", weight)
    wanted = [*children, *((4, 4) if matrices else (weight.shape[-1],))]
    if list(offset.shape) != wanted:
        raise ValueError(f"offset must be {wanted}, got shape {list(offset.shape)}")


def check_matrices(name: str, tensor: Tensor) -> None:
    """Reject anything but 4×4 matrices on the last two axes."""
    if tuple(tensor.shape[-2:]) != (4, 4):
        raise ValueError(f"{name} must end in 4×4 matrices, got shape {list(tensor.shape)}")


def check_betas(beta_u: Tensor, beta_a: Tensor, n_out: int, first: str, poses: Tensor) -> None:
    """Reject anything but one β for each upper capsule."""
    for name, beta in (("beta_u", beta_u), ("beta_a", beta_a)):
        check_tensor(name, beta)
        check_beside(name, beta, first, poses)
        if list(beta.shape) != [n_out]:
            raise ValueError(f"{name} must be [J={n_out}], got shape {list(beta.shape)}")


def check_activation(activation: Tensor) -> None:
    """Reject what is no probability, such as logits, which would silently give NaN; see :func:`has_values`."""
    if not has_values(activation):
        return
    least, greatest = activation.detach().aminmax()
    if least >= 0 and greatest <= _ONE:  # one pass instead of four; where there are NaN, it is not so
        return
    if bool(((activation < 0) | (activation > _ONE)).any()):
        raise ValueError(
            f"activation must hold probabilities 0 … 1, got {activation.min():.4g} … {activation.max():.4g}"
        )


def check_choices(n_iters: int, backprop: str) -> None:
    """Reject a number of iterations below 1 and unknown choices."""
    check_at_least("n_iters", n_iters, 1)
    check_choice("backprop", backprop, BACKPROP)


def choose_backend(backend: str, *tensors: Tensor, offset: Tensor | None, vectors: Sequence[int] | None) -> str:
    """Choose the implementation. Whether it can do the call is asked first, so that nothing is compiled in vain.

    ``vectors`` is their d_in and d_out, None for matrices.
    """
    check_choice("backend", backend, BACKENDS)
    why = None if backend == "reference" else _not_made_for(backend, offset, vectors)
    if why is not None and backend != "auto":
        raise ValueError(f"backend='{backend}' {why}")
    every = tensors if offset is None else (*tensors, offset)
    return which_backend("em" if vectors is None else "em_vectors", backend if why is None else "reference", *every)


def _not_made_for(backend: str, offset: Tensor | None, vectors: Sequence[int] | None) -> str | None:
    """Describe what compiled code lacks for a call: some sizes of vectors (Triton: all), and gradients of an offset."""
    if offset is not None and offset.requires_grad and torch.is_grad_enabled():
        return "gives no gradient of offset"
    if vectors is None:
        return None
    if backend == "triton":
        return "wants matrices, got vectors"
    d_in, d_out = vectors
    return None if d_in == d_out == SIZE else f"wants vectors of {SIZE} numbers, got d_in={d_in} and d_out={d_out}"
