"""What kernels multiply, counted by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.conditions import Conditions
from benchmarks.suites.bounds import bounds, multiplications
from benchmarks.work import Maps, Vectors

ONE_VOTE = Vectors(batch=1, n_in=1, n_out=1)
ONE_MATRIX = Maps(batch=1, n_types=1, n_out=1, size=1, kernel_size=1, stride=1)


@pytest.mark.parametrize(
    ("work", "n_iters", "forward", "backward"),
    [
        (ONE_VOTE, 1, 8 * 16, 3 * 8 * 16 + 16),  # a vote; the vote again, dû, du and dW
        (ONE_VOTE, 3, 3 * 128 + 2 * (2 * 16 + 13), 3 * 128 + 16 + 2 * (128 + 7 * 16 + 2 * 15)),
        (ONE_MATRIX, 1, 64 + 2 * 16, 64 + 4 * 16 + 2 * 64),
        (ONE_MATRIX, 3, 3 * 96 + 2 * (2 * 16 + 14), 256 + 2 * (3 * 64 + 10 * 16 + 18)),
    ],
)
def test_of_one_vote(work: Vectors | Maps, n_iters: int, forward: int, backward: int) -> None:
    work = replace(work, n_iters=n_iters)
    assert multiplications(replace(work, backward=False)) == forward
    assert multiplications(work) == forward + backward


def test_grow_with_votes() -> None:
    """36 places see 3×3 of 32 types, and have 32 types themselves."""
    assert multiplications(Maps()) == 8 * 36 * 9 * 32 * 32 * multiplications(ONE_MATRIX)
    assert multiplications(Vectors()) == 64 * 1152 * 10 * multiplications(ONE_VOTE)


def test_rates_and_kernels_are_measured() -> None:
    found = bounds(Conditions(smoke=True, repeats=1))
    assert [row.value > 0 for row in found.rows] == [True] * 4
