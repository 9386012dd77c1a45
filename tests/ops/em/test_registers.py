"""EM routing's kernels, compiled for real GPUs: all that a thread holds is in registers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.backends import needs_triton, spilled


@needs_triton
@pytest.mark.parametrize("capability", [80, 90, 100])
def test_no_kernel_spills(capability: int) -> None:
    """What does not fit goes to memory, in the innermost loops too."""
    pytest.importorskip("triton.backends.nvidia", reason="triton has no compiler for NVIDIA's GPUs here")
    program = Path(__file__).with_name("compile_triton.py")
    command = [sys.executable, "-W", "ignore", str(program), str(capability)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    lines = done.stdout.splitlines()
    assert len(lines) > 20
    assert [line for line in lines if int(line.split()[-1]) > spilled()] == []
