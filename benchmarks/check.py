"""Nothing is timed that is not right: every contender is first held to the reference in float64."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

#: ‖x − exact‖ over ‖exact‖ that is let pass in float32. One wrong iteration, or one lost term, is far beyond it.
TOLERANCE = 1e-3


class Disagreement(ValueError):
    """A contender computes something else than the reference: its time would mean nothing."""


def relative_errors(got: Mapping[str, Tensor], exact: Mapping[str, Tensor]) -> dict[str, float]:
    """‖x − exact‖ over ‖exact‖ by name; infinite for what is missing or too much."""
    errors = dict.fromkeys((*exact, *got), float("inf"))
    for name in exact:
        if name in got:
            x, wanted = got[name].double().cpu(), exact[name].cpu()
            errors[name] = float((x - wanted).norm() / wanted.norm().clamp_min(1e-30))
    return errors


def require_agreement(contender: str, errors: Mapping[str, float], plain: Mapping[str, float] | None = None) -> float:
    """See that no error is too large, and return the largest.

    Args:
        contender: its name, for the message.
        errors: see :func:`relative_errors`.
        plain: errors of the reference in the same precision, where this is below float32; up to twice as much is
            let pass. Without them :data:`TOLERANCE` is.

    Raises:
        Disagreement: one is larger, or not a number.
    """
    for name, error in errors.items():
        allowed = max(TOLERANCE, 2 * plain[name] if plain else 0.0)
        if not error <= allowed:
            raise Disagreement(
                f"{contender}: {name} must be within {allowed:.2g} of the reference in float64, got {error:.2g}; "
                f"nothing is timed"
            )
    return max(errors.values())
