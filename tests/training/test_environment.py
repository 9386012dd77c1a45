"""Where training runs, and what it leaves behind."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

from torchcaps.ops.backends.native import openmp
from torchcaps.training.environment import flushed


@pytest.fixture
def _two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def kept() -> float:
    """The share of many subnormal numbers that a product keeps, computed on all threads."""
    return (torch.full((1 << 20,), 1e-40) * 1.0).count_nonzero().item() / (1 << 20)


@pytest.mark.skipif(not openmp(), reason="torch runs on no OpenMP here whose threads could be reached")
@pytest.mark.usefixtures("_two_threads")
def test_all_threads_count_subnormal_numbers_alike_before_in_and_after_training() -> None:
    assert kept() == 1
    with flushed():
        assert kept() == 0
        with flushed():
            assert kept() == 0
        assert kept() == 0
        torch.set_num_threads(3)  # as an experiment may
        assert kept() == 0
        torch.set_num_threads(2)
    assert kept() == 1
    with flushed():
        torch.set_num_threads(1)  # as an experiment may, too
    torch.set_num_threads(2)
    assert kept() == 1
    torch.set_num_threads(3)
    assert kept() == 1


#: In a process of its own, whose threads start while numbers are flushed.
_COLD = """
import torch
from torchcaps.training.environment import flushed

torch.set_num_threads(2)
with flushed():
    inside = (torch.full((1 << 22,), 1e-40) * 1.0).count_nonzero().item()
print(inside, (torch.full((1 << 22,), 1e-40) * 1.0).count_nonzero().item() == 1 << 22)
"""


@pytest.mark.skipif(not openmp(), reason="torch runs on no OpenMP here whose threads could be reached")
def test_threads_that_start_in_training_do_not_keep_its_setting() -> None:
    done = subprocess.run([sys.executable, "-c", _COLD], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "True"]
