"""Work that is ended from outside, at any moment."""

from __future__ import annotations

import io
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from torchcaps.training.module import TrainingModule

SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)


def in_fork(work: Callable[[], None], seconds: float = 60) -> int:
    """Do work in a copy of this process, and return what ended it: a signal below 0, or its status."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other threads: none of torch's is used there
        child = os.fork()
    if not child:
        status = 70
        try:
            torch.set_num_threads(1)  # those of OpenMP are not in the copy
            signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background jobs ignore
            work()
            status = 0
        except KeyboardInterrupt:
            status = 130
        except BaseException as error:
            os.write(2, f"{error!r}\n".encode())
        finally:
            os._exit(status)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise AssertionError(f"it took longer than {seconds} s")


@contextmanager
def ended_at(moment: int, by: signal.Signals, folder: Path, steps: Path) -> Iterator[None]:
    """End this process at the so-manieth step, half-written tensors, or touch of a file in the folder. For a fork."""
    count = 0

    def passed() -> bool:
        nonlocal count
        count += 1
        return count == moment

    def end() -> None:
        os.kill(os.getpid(), by)

    def touched(event: str, arguments: tuple[object, ...]) -> None:
        if event in ("open", "os.rename", "os.link", "os.remove") and str(folder) in str(arguments[0]) and passed():
            end()

    step, save = TrainingModule.training_step, torch.save

    def noted(self: TrainingModule, batch: Any, k: int) -> Any:
        with steps.open("a") as file:
            file.write(f"{self.global_step}\n")
        if passed():
            end()
        return step(self, batch, k)

    def halved(content: object, path: Any) -> None:
        if passed():
            buffer = io.BytesIO()
            save(content, buffer)
            Path(path).write_bytes(buffer.getvalue()[: len(buffer.getvalue()) // 2])
            end()
        save(content, path)

    TrainingModule.training_step, torch.save = noted, halved  # type: ignore[method-assign, assignment]
    sys.addaudithook(touched)
    yield
