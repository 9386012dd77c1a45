"""Which implementation of a routing runs."""

from __future__ import annotations

import logging

import torch
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack
from torch.autograd import forward_ad

from torchcaps.ops.checks import check_choice
from torchcaps.ops.fused import cpu
from torchcaps.ops.fused.constant import constant_when_compiled

#: "reference" is the paper's procedure in plain PyTorch; "auto" takes the fastest one that is to be had.
IMPLS = ("auto", "reference", "cpu")
_NOTED: set[str] = set()


def which_impl(routing: str, impl: str, *tensors: Tensor) -> str:
    """Ask which implementation a call takes: the same arguments always give the same answer.

    Args:
        routing: the name of its source, "dynamic".
        impl: what was asked for, "auto" or a name.
        tensors: all that are routed or route: poses, matrices, biases, priors.

    Returns:
        A name other than "auto". Only "auto" may fall back to the reference; where that is for want of
        a compiler, a note of the reason is logged once.

    Raises:
        ValueError: an unknown ``impl``, or one that is not for such tensors.
        NotImplementedError: the one that was named, within torch.func or with forward derivatives.
        Unavailable: the one that was named cannot be compiled here; the message says why.
    """
    check_choice("impl", impl, IMPLS)
    if impl == "reference":
        return impl
    devices = {tensor.device.type for tensor in tensors}
    if devices != {"cpu"}:
        if impl == "cpu":
            raise ValueError(f"impl='cpu' wants tensors on the CPU, got some on {', '.join(sorted(devices))}")
        return "reference"
    if _is_transformed(tensors):
        if impl == "cpu":
            raise NotImplementedError("impl='cpu' knows neither torch.func nor forward derivatives: take 'reference'")
        return "reference"
    reason = cpu.why_not(routing)
    if reason is None:
        return "cpu"
    if impl == "cpu":
        raise cpu.Unavailable(f"impl='cpu' is not to be had: {reason}")
    _note(reason)
    return "reference"


def _is_transformed(tensors: tuple[Tensor, ...]) -> bool:
    """Whether more is asked than backward derivatives: torch would take a forward one for 0 without a word."""
    if torch.compiler.is_compiling():
        return False
    within_func = peek_interpreter_stack() is not None
    return within_func or any(forward_ad.unpack_dual(x).tangent is not None for x in tensors)


@constant_when_compiled
def _note(reason: str) -> None:
    if reason not in _NOTED:
        _NOTED.add(reason)
        # Logged, not warned: where warnings are errors, "auto" still falls back.
        logging.getLogger("torchcaps").warning("routing takes the slow reference: %s", reason)
