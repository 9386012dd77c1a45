"""Why a backend cannot be had, and which derivatives its operators have not."""

from __future__ import annotations

from typing import Any, TypeVar

from torch import Tensor

from torchcaps.ops.backends.tracing import have_tangents

Found = TypeVar("Found")


class Unavailable(RuntimeError):
    """A backend cannot be had here; the message says why."""


def found(got: Found | str) -> Found:
    """Return the result of an attempt, or raise :class:`Unavailable` with the reason that stands in its place."""
    if isinstance(got, str):
        raise Unavailable(got)
    return got


def missing(got: object) -> str | None:
    """Return the reason why an attempt failed; None where it did not."""
    return got if isinstance(got, str) else None


def in_one_line(error: BaseException) -> str:
    """Write type and text of an error in one line, without the pages that compilers print."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}{'…' * (len(text) > 300)}"


def refuse_forward_derivative(*tensors: Tensor | None) -> None:
    """Raise ``NotImplementedError`` if an input carries a forward-mode tangent.

    The compiled operator has no forward derivative. ``torch.compile`` hides from "auto" that one is needed, and PyTorch
    would silently return zero.

    Raises:
        NotImplementedError: a tensor has a tangent.
    """
    if have_tangents(*tensors):
        raise NotImplementedError("compiled routing has no forward derivative: take backend='reference' for one")


def refuse_second_derivative(backward_op: Any, backend: str) -> None:
    """Make a second derivative of an operator raise ``NotImplementedError``."""

    def refuse(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        raise NotImplementedError(
            f"backend='{backend}' has no second derivative: take backend='reference' where one is needed"
        )

    backward_op.register_autograd(refuse)
