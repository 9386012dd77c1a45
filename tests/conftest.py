"""What every test has: one thread, a fixed seed, and memory that was never written shows."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

if importlib.util.find_spec("triton") and not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when triton is first imported
    from triton.runtime import interpreter

    # It puts its own functions in the place of triton's at every call of one kernel by another, which takes most of
    # the time; they stay there, so that once for a module is enough.
    _PATCHED: set[str] = set()

    def _call(self: Any, *values: Any, **named: Any) -> Any:
        if self.fn.__module__ not in _PATCHED:
            _PATCHED.add(self.fn.__module__)
            interpreter._patch_lang(self.fn)
        return self.rewrite()(*values, **named)

    interpreter.InterpretedFunction.__call__ = _call  # type: ignore[method-assign]

#: The real data sets beside the checkout; tests that need them skip where they are absent.
SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(autouse=True)
def _deterministic(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    empty = torch.empty
    with torch.device("meta"):  # which remembers what makes tensors when it is first used: torch's own function
        empty(0)

    def poisoned(*arguments: Any, **options: Any) -> torch.Tensor:
        made = empty(*arguments, **options)
        return made.fill_(float("nan")) if made.is_floating_point() and not made.requires_grad else made

    monkeypatch.setattr(torch, "empty", poisoned)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def shared_mnist() -> Path:
    """The folder of MNIST's official files."""
    folder = SHARED_DATA / "mnist"
    if not folder.is_dir():
        pytest.skip(f"the MNIST files are not in {folder}")
    return folder


@pytest.fixture
def shared_smallnorb() -> Path:
    """The folder of small NORB at 48×48."""
    folder = SHARED_DATA / "smallnorb"
    if not folder.is_dir():
        pytest.skip(f"the small NORB files are not in {folder}")
    return folder
