"""Learning rates by hand."""

from __future__ import annotations

import pytest

from torchcaps.training import Optim
from torchcaps.training.module import learning_rate


def test_exponential_as_the_authors_have_it() -> None:
    optim = Optim(lr=1e-3)
    assert learning_rate(optim, 0, 10) == 1e-3
    assert learning_rate(optim, 2000, 10) == pytest.approx(0.96e-3)
    assert learning_rate(optim, 1000, 10) == pytest.approx(1e-3 * 0.96**0.5)
    assert learning_rate(optim, 10**6, 10) == 1e-6


def test_decay_as_a_fraction_of_the_run() -> None:
    optim = Optim(lr=1.0, decay=0.5, decay_steps=0.25)
    assert [learning_rate(optim, step, 400) for step in (0, 100, 200)] == [1.0, 0.5, 0.25]


def test_exponential_after_the_warmup() -> None:
    optim = Optim(lr=1.0, decay=0.5, decay_steps=100, warmup=0.1, floor=0.0)
    assert [learning_rate(optim, step, 1000) for step in (49, 99, 100, 200, 300)] == [0.5, 1.0, 1.0, 0.5, 0.25]


def test_cosine_with_warmup() -> None:
    optim = Optim(lr=1.0, schedule="cosine", warmup=0.1, floor=0.0)
    rates = [learning_rate(optim, step, 100) for step in range(101)]
    assert rates[0] == 0.1 and rates[9] == rates[10] == 1.0
    assert rates[55] == pytest.approx(0.5) and rates[100] == 0.0


def test_constant() -> None:
    assert {learning_rate(Optim(lr=0.5, schedule="constant"), step, 9) for step in range(9)} == {0.5}
