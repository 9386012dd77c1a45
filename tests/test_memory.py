"""Memory that a process has once had is kept for its next step, unless its user has said how memory is taken."""

import os
import platform
import subprocess
import sys

import pytest

from torchcaps.cli import main

_SECOND_TIME = """
import resource
import numpy
from torchcaps.memory import keep_memory
keep_memory()
numpy.ones(1 << 23)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
numpy.ones(1 << 23)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def _faults(**variables: str) -> int:
    own = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_TUNABLES"))}
    done = subprocess.run(
        [sys.executable, "-c", _SECOND_TIME], env=own | variables, capture_output=True, text=True, check=True
    )
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's malloc can be told so")
def test_a_large_array_is_cleared_by_the_system_once():
    # With anything that the user has set of his own (here, the default), 64 MB are new, in whatever pages.
    assert _faults() < _faults(MALLOC_ARENA_MAX="8")


@pytest.mark.parametrize(("given", "wanted"), [(None, "1"), ("0", "0")])
def test_large_pages_are_asked_for_unless_they_are_refused(monkeypatch, given, wanted):
    monkeypatch.delenv("THP_MEM_ALLOC_ENABLE", raising=False)
    if given is not None:
        monkeypatch.setenv("THP_MEM_ALLOC_ENABLE", given)
    assert main(["list"]) == 0 and os.environ["THP_MEM_ALLOC_ENABLE"] == wanted
