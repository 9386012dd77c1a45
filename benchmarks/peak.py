"""Peak memory of one piece of work, in a fresh process, where nothing else has been allocated.

``python -m benchmarks.peak DESCRIPTION`` is that process.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.work import Work, described, from_description
from torchcaps.memory import keep_memory

#: Where ``python -m benchmarks`` finds this package, wherever the process stands.
_ROOT = Path(__file__).resolve().parents[1]
_STATUS = Path("/proc/self/status")
#: Exit status of a process that ended because the one which asked it was gone.
_LEFT_ALONE = 3


def peak(work: Work, device: torch.device, threads: int = 1) -> dict[str, int]:
    """Let another process do the work twice, and say what it took.

    Returns:
        "step": bytes above what the process held before the first call (its model and inputs, torch itself);
        "process": bytes at the highest, with those. On a GPU only what torch allocated there counts.

    Raises:
        ValueError: the work failed there, such as for lack of memory; the message ends as its own does.
    """
    order = json.dumps({"work": described(work), "device": str(device), "threads": threads})
    command = [sys.executable, "-m", "benchmarks.peak", order]
    # The other end closes with this process, however it ends: the child then ends too, and disturbs nothing more.
    ends_with_us, ours = os.pipe()
    try:
        done = subprocess.run(command, cwd=_ROOT, stdin=ends_with_us, capture_output=True, text=True, check=False)
    finally:
        os.close(ends_with_us)
        os.close(ours)
    if done.returncode:
        reason = (done.stderr.strip() or f"exit status {done.returncode}").splitlines()[-1]
        raise ValueError(f"the memory of {work} could not be measured: {reason}")
    return json.loads(done.stdout.splitlines()[-1])


def measure(work: Work, device: torch.device) -> dict[str, int]:
    """:func:`peak`, in this process."""
    # What is loaded, built or made once is not the step's. Of one image alone some networks cannot normalize.
    replace(work, batch=min(2, work.batch)).prepare(device)()
    _trim()
    call = work.prepare(device)
    _trim()
    before = _start(device)
    for _ in range(2):  # the optimizer makes its state in the first step
        call()
    highest = _highest(device)
    return {"step": highest - before, "process": highest}


def _trim() -> None:
    """Give back what is free: what the allocator keeps of the past would hide what a step takes."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's alone
        if trim is not None:
            trim(0)


def _start(device: torch.device) -> int:
    """Forget the highest so far; bytes held now."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.memory_allocated(device)
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:  # not on Linux: the highest before now counts as held
        return _highest(device)
    return _status("VmRSS")


def _highest(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if _STATUS.is_file():
        return _status("VmHWM")
    try:
        import resource
    except ModuleNotFoundError:
        raise ValueError(f"peak memory must be asked of Linux, macOS or a GPU, got {sys.platform}") from None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _status(name: str) -> int:
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(name))
    return 1024 * int(line.split()[1])


def _end_with_parent() -> None:
    os.read(sys.stdin.fileno(), 1)  # nothing is ever written there: this returns when the other end is closed
    os._exit(_LEFT_ALONE)


def main(order: str) -> None:
    """Do what :func:`peak` asks for, and print what it took."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    keep_memory()  # as the process does whose times stand beside it
    given = json.loads(order)
    torch.set_num_threads(given["threads"])
    print(json.dumps(measure(from_description(given["work"]), torch.device(given["device"]))))


if __name__ == "__main__":
    main(sys.argv[1])
