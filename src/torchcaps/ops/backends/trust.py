"""Whether "auto" may take the kernels: they are checked on the user's own GPU, once for each kind of problem.

A wrong number, a compiler that is missing, a driver that is too old: whatever the check meets, it is a reason in words,
and the reference is taken.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sysconfig
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from torchcaps.ops.backends import verdicts
from torchcaps.ops.backends.agreement import Agreement, compare, run
from torchcaps.ops.backends.errors import in_one_line
from torchcaps.ops.backends.tracing import constant_when_compiled
from torchcaps.ops.backends.triton import allows_tf32, has_compiler, on, roles, unfit, wrong_sizes
from torchcaps.ops.backends.triton_ahead import compile_ahead
from torchcaps.ops.backends.verdicts import Kind, Verdict

Result = TypeVar("Result")

#: "0" keeps "auto" from the kernels, "1" from checking them.
SWITCH = "TORCHCAPS_TRITON"
_BUSY = "a CUDA graph is being captured, while which kernels cannot be checked: call the layer once before"
_REPORT = "torchcaps doctor --json FILE writes what to report"

_KNOWN: dict[Kind, Verdict] = {}
#: The same by what was asked, for every step of a training asks: routing, device, dtypes and TF32.
_SEEN: dict[tuple[str, str, torch.dtype, torch.dtype, bool], Verdict] = {}
_LOCK = threading.Lock()


@constant_when_compiled
def switch() -> str | None:
    """Read what the environment says of the kernels: "0", "1", or None.

    Raises:
        ValueError: it says something else.
    """
    value = os.environ.get(SWITCH, "")
    if value not in ("", "0", "1"):
        raise ValueError(f"{SWITCH} must be 0 (no GPU kernels), 1 (no check of them) or unset, got {value!r}")
    return value or None


def why_not_auto(routing: str, tensors: tuple[Tensor, ...]) -> str | None:
    """Return the reason why "auto" does not take the kernels for such tensors; None where it does."""
    wrong = wrong_sizes(routing, tensors)
    if wrong is not None:
        return wrong
    poses, matrices = roles(tensors)
    return why_not_trusted(routing, str(poses.device), poses.dtype, matrices.dtype)


@constant_when_compiled
def why_not_trusted(routing: str, device: str, poses: torch.dtype, matrices: torch.dtype) -> str | None:
    """Return the reason why the kernels are not trusted with such dtypes on this device; None where they are.

    The first time they are checked, which takes some seconds; the outcome is remembered, and kept for later processes.
    Under ``torch.compile`` and the like as well: the check has a thread of its own, and so none of the caller's modes.
    """
    asked = routing, device, poses, matrices, allows_tf32()
    if switch() is None and asked in _SEEN:
        return _SEEN[asked].reason
    place = torch.device(device)
    reason = unfit(place)
    if reason is not None or switch() == "1":
        return reason
    kind = Kind(routing, _card(place), *asked[2:])
    if kind not in _KNOWN:
        if _is_capturing():
            return _BUSY  # and not remembered
        with _LOCK:  # threads that ask together wait for one check
            if kind not in _KNOWN:
                _KNOWN[kind] = _found(kind, place)
    _SEEN[asked] = _KNOWN[kind]
    return _KNOWN[kind].reason


def agreement(routing: str, device: torch.device, dtypes: tuple[torch.dtype, torch.dtype]) -> Agreement:
    """Compare the kernels with the reference in float64, whatever was found before, in a thread with no modes."""
    return alone(lambda: _compare(routing, device, dtypes, allows_tf32()))


def alone(function: Callable[[], Result]) -> Result:
    """Run ``function`` in a thread of its own, on one CPU core; returns and raises what it does.

    There are no modes, hooks, autocast or default device there, gradients are on, and the stream is the default one:
    torch keeps all of these by thread. Small problems are the fastest on one core.
    """
    results: list[Result] = []
    failures: list[BaseException] = []

    def run() -> None:
        n_threads = torch.get_num_threads()
        try:
            torch.set_num_threads(1)
            results.append(function())
        except BaseException as error:
            failures.append(error)
        finally:
            torch.set_num_threads(n_threads)  # a part of which, MKL's, is of all threads

    thread = threading.Thread(target=run, name="torchcaps-check", daemon=True)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    return results[0]


def _found(kind: Kind, device: torch.device) -> Verdict:
    log = logging.getLogger("torchcaps")
    kept = verdicts.read(kind)
    if kept is not None and has_compiler():  # else what triton has not kept itself could not be started
        return kept
    # Said as loudly as a warning: a first step that stands still for some seconds is to be explained.
    log.warning("checking the GPU kernels of %s, once on this machine; compiling takes 10 to 60 s", kind)
    start = time.monotonic()
    verdict = alone(lambda: _checked(kind, device))
    log.info("checked %s in %.1f s: %s", kind, time.monotonic() - start, verdict.reason or "right")
    if verdict.keep:
        verdicts.write(kind, verdict)
    return verdict


def _checked(kind: Kind, device: torch.device) -> Verdict:
    """Check the kernels. A wrong number is kept as a verdict; what is merely missing may be there next time."""
    try:
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # what failed before is not the kernels' fault
    except Exception as error:
        return Verdict(f"the GPU failed before its kernels were checked: {in_one_line(error)}")
    try:
        fault = _compare(kind.routing, device, (kind.poses, kind.matrices), kind.tf32).fault()
    except Exception as error:
        said = in_words(error)
        if _is_alive(device):
            return Verdict(f"the kernels of {kind} did not run: {said}")
        # Kept, or every process would end like this one.
        return Verdict(
            f"the kernels of {kind} broke this process's GPU ({said}): start again, they will not be taken; {_REPORT}",
            keep=True,
        )
    return Verdict(None if fault is None else f"the kernels of {kind} are wrong: {fault}; {_REPORT}", keep=True)


def _compare(routing: str, device: torch.device, dtypes: tuple[torch.dtype, torch.dtype], tf32: bool) -> Agreement:
    with on(device):
        if device.type == "cuda":
            compile_ahead(lambda: run(routing, "triton", device, dtypes), device)
        return compare(routing, "triton", device, dtypes, tf32=tf32)


def in_words(error: BaseException) -> str:
    """Describe an error in one line, with what to do where that is known."""
    if isinstance(error, torch.OutOfMemoryError):
        return "the GPU has no memory left for the check"
    if not has_compiler() and "compiler" in str(error):
        return "triton finds no C compiler (CC, gcc, clang), which it builds the starting of kernels with: install one"
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    if isinstance(error, subprocess.CalledProcessError) and not headers.is_file():
        return f"triton's C compiler lacks Python's headers ({headers}): install python3-dev or python3-devel"
    return in_one_line(error)


def _is_alive(device: torch.device) -> bool:
    """Tell whether the GPU still takes work: after some errors it takes none from this process."""
    if device.type != "cuda":
        return True
    try:
        torch.cuda.synchronize(device)
    except Exception:
        return False
    return True


def _is_capturing() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def _card(device: torch.device) -> str:
    return (
        device.type
        if device.type != "cuda"
        else _name(torch.cuda.current_device() if device.index is None else device.index)
    )


@cache
def _name(index: int) -> str:
    return f"{torch.cuda.get_device_name(index)} ({'.'.join(map(str, torch.cuda.get_device_capability(index)))})"


if hasattr(os, "register_at_fork"):  # another thread of the parent may have held it
    os.register_at_fork(after_in_child=lambda: globals().update(_LOCK=threading.Lock()))
