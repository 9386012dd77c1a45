"""Why a backend cannot be had, and which derivatives its operators have not."""

from __future__ import annotations

from typing import Any, TypeVar

from torch import Tensor
from torch.autograd import forward_ad

Found = TypeVar("Found")


class Unavailable(RuntimeError):
    """A backend cannot be had here; the message says why."""


def found(got: Found | str) -> Found:
    """What an attempt got; raises :class:`Unavailable` with the reason that it gave instead."""
    if isinstance(got, str):
        raise Unavailable(got)
    return got


def missing(got: object) -> str | None:
    """The reason that an attempt gave; None where it got something."""
    return got if isinstance(got, str) else None


def in_one_line(error: BaseException) -> str:
    """Kind and text of an error, without the pages that compilers print."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}{'…' * (len(text) > 300)}"


def refuse_forward_derivative(*tensors: Tensor | None) -> None:
    """Say that an operator has none where ``torch.compile`` hid from "auto" that one is asked for; torch would take 0.

    Raises:
        NotImplementedError: a tensor has a tangent.
    """
    if any(x is not None and forward_ad.unpack_dual(x).tangent is not None for x in tensors):
        raise NotImplementedError("compiled routing has no forward derivative: take impl='reference' for one")


def refuse_second_derivative(backward_op: Any, impl: str) -> None:
    """Let the gradient of an operator say that it has none itself."""

    def refuse(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        raise NotImplementedError(f"impl='{impl}' has no second derivative: take impl='reference' where one is needed")

    backward_op.register_autograd(refuse)
