"""What the compiler may take as a constant, and what cannot be asked while it is at work."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor
from torch._C import _len_torch_dispatch_stack
from torch._C._functorch import is_legacy_batchedtensor, peek_interpreter_stack
from torch.autograd import forward_ad
from torch.jit import is_tracing  # pyright: ignore[reportPrivateImportUsage]

Function = TypeVar("Function", bound=Callable[..., object])


def constant_when_compiled(function: Function) -> Function:
    """Let ``torch.compile`` call ``function`` once, and not look into it.

    As ``torch.compiler.assume_constant_result``, which imports all of the compiler to set this one mark: that
    would double the time that importing torch takes.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@constant_when_compiled  # and compiled anew for every transform
def in_functorch() -> bool:
    """Tell whether a transform of ``torch.func`` is active, of a function that may be compiled."""
    return peek_interpreter_stack() is not None


def of_many_outputs(*gradients: Tensor) -> bool:
    """Tell whether gradients of many outputs come at once, by autograd's ``is_grads_batched``."""
    return any(map(is_legacy_batchedtensor, gradients))


def have_tangents(*tensors: Tensor | None) -> bool:
    """Tell whether a forward derivative is asked for, by a tensor that carries a tangent."""
    return any(x is not None and forward_ad.unpack_dual(x).tangent is not None for x in tensors)


@constant_when_compiled
def in_dispatch_mode() -> bool:
    """Tell whether a dispatch mode is active: ``FakeTensorMode``, ``make_fx``, ``FlopCounterMode`` and others."""
    return _len_torch_dispatch_stack() > 0


def is_traced() -> bool:
    """Tell whether tensors may have no values: within ``torch.func`` or a dispatch mode."""
    return in_functorch() or in_dispatch_mode()


def is_plain() -> bool:
    """Tell whether code runs as it stands: nothing compiles, exports, transforms or watches it."""
    return not torch.compiler.is_compiling() and not is_tracing() and not is_traced()


def has_values(x: Tensor) -> bool:
    """Tell whether values can be read: on the CPU, where that stops no device, and not while code is transformed."""
    return x.device.type == "cpu" and not torch.compiler.is_compiling() and not is_traced() and x.numel() > 0
