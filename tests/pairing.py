"""The pairing rule of :mod:`torchcaps.testing`, for implementations that go by a name."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from tests.impls import DEVICES
from torchcaps import testing
from torchcaps.testing import _distance as distance
from torchcaps.testing import _double as double
from torchcaps.testing import _largest as largest

__all__ = ["Function", "Inputs", "assert_paired", "distance", "double", "largest", "outcome"]

Inputs = dict[str, Tensor | None]
#: Takes the name of an implementation and the inputs; gives the results.
Function = Callable[[str, Inputs], Sequence[Tensor]]


def assert_paired(function: Function, inputs: Inputs, impl: str, neighbours: int = 7) -> None:
    """Hold ``impl`` to the rule, for every result and for the gradients of all inputs that are there."""
    testing.assert_matches_reference(
        lambda given: function(impl, dict(given)),
        lambda given: function("reference", dict(given)),
        inputs,
        neighbours=neighbours,
        device=DEVICES[impl],
    )


def outcome(function: Function, inputs: Inputs, impl: str) -> dict[str, Tensor]:
    """Return the results and gradients, computed where ``impl`` works."""
    return testing._outcome(lambda given: function(impl, dict(given)), inputs, DEVICES[impl])
