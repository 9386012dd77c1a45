"""What was looked for once, or the reason why it is not to be had."""

from __future__ import annotations

from typing import TypeVar

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
