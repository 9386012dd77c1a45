"""Start several processes on this machine, and see to it that all end when one does."""

from __future__ import annotations

import importlib
import logging
import os
import pickle
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException, start_processes

from torchcaps.memory import keep_memory
from torchcaps.training import own_code

#: How often a process looks whether the one that started it is still there.
_SECONDS = 1.0
#: How long processes may take to end by themselves when one of them has.
_GRACE = 10.0


def start(n: int, work: Callable[..., object], arguments: Sequence[Any], objects: str) -> None:
    """Let ``n`` processes do the same work together, and wait for them. They are numbered as by torchrun.

    Args:
        n: how many.
        work: a function of a module.
        arguments: its arguments.
        objects: those of them that may be of classes that no other process knows, in words.

    Raises:
        ValueError: the arguments cannot be handed to another process.
        ChildProcessError: a process was ended from outside; the others were, too.
        Exception: what the work raised.
    """
    with tempfile.TemporaryDirectory(prefix="torchcaps-") as folder:
        given = (
            n,
            _free_port(),
            _share_of_cores(n),
            folder,
            os.getpid(),
            _package(),
            own_code.files(),
            work,
            arguments,
        )
        with _without_advice():
            try:
                context = start_processes(_begin, args=given, nprocs=n, join=False, start_method="spawn")
            except (AttributeError, TypeError, pickle.PicklingError) as error:
                raise ValueError(
                    f"{objects} must be of classes and functions that a module has, to be handed to {n} processes; got "
                    f"{error}: put them into a file that is imported, or start the program by torchrun"
                ) from error
        assert context is not None
        try:
            with _quietly():
                while not context.join(timeout=1):
                    pass
        except (ProcessExitedException, ProcessRaisedException) as error:
            raise _what_was_met(Path(folder), n, context.processes, error) from None
        finally:
            _end(context.processes)


@contextmanager
def _without_advice() -> Iterator[None]:
    """Let the processes begin without torch's warnings of C++, as of parameters that are all used: no filter hears."""
    name = "TORCH_CPP_LOG_LEVEL"
    own = name in os.environ
    os.environ.setdefault(name, "ERROR")
    try:
        yield
    finally:
        if not own:
            del os.environ[name]


@contextmanager
def _quietly() -> Iterator[None]:
    """Let torch not log that it ends the other processes where one has ended."""
    log = logging.getLogger(start_processes.__module__)
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def _begin(
    rank: int,
    n: int,
    port: int,
    threads: str,
    folder: str,
    parent: int,
    package: str | None,
    files: Sequence[Path],
    work: Callable[..., object],
    arguments: Sequence[Any],
) -> None:
    """Work as one of several processes, and leave behind in words what went wrong."""
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    world = {"RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": 0, "WORLD_SIZE": n, "LOCAL_WORLD_SIZE": n}
    os.environ |= {name: str(value) for name, value in world.items()}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": threads}
    torch.set_num_threads(int(threads))
    try:
        keep_memory()
        if package is not None:
            importlib.import_module(package)
        for file in files:
            own_code.import_file(file)
        work(*arguments)
    except BaseException as error:
        with suppress(Exception), (Path(folder) / f"{rank}").open("wb") as file:
            pickle.dump(error if isinstance(error, Exception) else type(error)(), file)
        if isinstance(error, ValueError | OSError | KeyboardInterrupt | SystemExit):
            sys.exit(1)  # the process that started this one says it
        raise


def _end_with(parent: int) -> None:
    """End this process with the one that started it, however that ended: files are written whole or not at all."""
    while os.getppid() == parent:
        time.sleep(_SECONDS)
    os._exit(1)


def _what_was_met(folder: Path, n: int, processes: Sequence[Any], error: Exception) -> BaseException:
    """Return what the first process met that met anything itself, and not only the end of another."""
    met = list[BaseException]()
    for file in sorted(folder.iterdir(), key=lambda file: int(file.name)):
        with suppress(Exception):
            met.append(pickle.loads(file.read_bytes()))
    own = [each for each in met if not isinstance(each, ConnectionError | SystemExit)]
    if own:
        return own[0]
    codes = [process.exitcode or 0 for process in processes]
    killed = [rank for rank, code in enumerate(codes) if code < 0 and code != -signal.SIGTERM]
    if not killed and met:
        return met[0]
    said = f"process {killed[0]} was ended by {signal.Signals(-codes[killed[0]]).name}" if killed else str(error)
    if not killed and not met:  # it ended before it could work
        return ChildProcessError(f'of {n} processes {said}: does the program have if __name__ == "__main__":?')
    return ChildProcessError(f"of {n} processes {said}; the same command goes on from the last checkpoint")


def _end(processes: Sequence[Any]) -> None:
    """Wait a little, then end the processes that are still there."""
    until = time.monotonic() + _GRACE
    for process in processes:
        process.join(max(0.0, until - time.monotonic()))
    for process in processes:
        if process.is_alive():
            process.kill()
            process.join()


def _package() -> str | None:
    """Return the module that ``python -m`` runs, where it is a package's: it may enter data sets and recipes.

    Python itself imports again, in a process that it starts, any other program.
    """
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec.name if spec is not None and spec.name.endswith(".__main__") else None


def _share_of_cores(n: int) -> str:
    """Return how many threads a process has, unless the environment says it."""
    return os.environ.get("OMP_NUM_THREADS") or str(max(1, torch.get_num_threads() // n))


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]
