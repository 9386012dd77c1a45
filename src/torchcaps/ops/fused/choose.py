"""Which implementation of a routing runs."""

from __future__ import annotations

import logging

import torch
from torch import Tensor

from torchcaps.ops.checks import check_choice
from torchcaps.ops.fused import cpu

#: "reference" is the paper's procedure in plain PyTorch; "auto" takes the fastest one that is to be had.
IMPLS = ("auto", "reference", "cpu")
_NOTED: set[str] = set()


def which_impl(routing: str, impl: str, *tensors: Tensor) -> str:
    """Ask which implementation a call takes: the same arguments always give the same answer.

    Args:
        routing: the name of its source, "dynamic".
        impl: what was asked for, "auto" or a name.
        tensors: the poses and matrices that are routed.

    Returns:
        A name other than "auto". Only "auto" may fall back to the reference; where that is for want of
        a compiler, a note of the reason is logged once.

    Raises:
        ValueError: an unknown ``impl``, or one that is not for such tensors.
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
    reason = cpu.why_not(routing)
    if reason is None:
        return "cpu"
    if impl == "cpu":
        raise cpu.Unavailable(f"impl='cpu' is not to be had: {reason}")
    _note(reason)
    return "reference"


@torch.compiler.assume_constant_result
def _note(reason: str) -> None:
    if reason not in _NOTED:
        _NOTED.add(reason)
        # Logged, not warned: where warnings are errors, "auto" still falls back.
        logging.getLogger("torchcaps").warning("routing takes the slow reference: %s", reason)
