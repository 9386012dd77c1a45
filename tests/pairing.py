"""The pairing rule of :mod:`torchcaps.testing`, for implementations that go by a name."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from tests.backends import DEVICES
from torchcaps import testing
from torchcaps.testing import _distance as distance
from torchcaps.testing import _double as double
from torchcaps.testing import _largest as largest

__all__ = ["Function", "Inputs", "assert_paired", "distance", "double", "largest", "outcome"]

Inputs = dict[str, Tensor | None]
#: Takes the name of an implementation and the inputs; gives the results.
Function = Callable[[str, Inputs], Sequence[Tensor]]


def assert_paired(function: Function, inputs: Inputs, backend: str, neighbours: int = 7) -> None:
    """Hold ``backend`` to the rule, for every result and for the gradients of all inputs that are there."""
    testing.assert_matches_reference(
        lambda given: function(backend, dict(given)),
        lambda given: function("reference", dict(given)),
        inputs,
        neighbours=neighbours,
        device=DEVICES[backend],
    )


def outcome(function: Function, inputs: Inputs, backend: str) -> dict[str, Tensor]:
    """Return the results and gradients, computed where ``backend`` works."""
    return testing._outcome(lambda given: function(backend, dict(given)), inputs, DEVICES[backend])
