"""Run many cases of a fuzzer in processes of their own, bounded in time and memory, and count how each ended."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import multiprocessing
import random
import resource
import signal
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from torchcaps.training.files import write_text

#: Bytes that a case may take beyond what the process has.
MEMORY = 1 << 30
#: Seconds of the processor that a case may take.
SECONDS = 20
#: Seconds that a case may take by the clock, where it waits instead.
PATIENCE = 120
#: Cases of one process: a crash loses no more.
CHUNK = 250

#: Makes one case out of what is drawn, in an empty folder, and says how it ended: a word, or "fault: " and what.
Case = Callable[[random.Random, Path], str]


class TooLong(BaseException):
    """A case took longer than it may."""


def fuzz(
    subjects: Mapping[str, Case],
    cases: int,
    seed: int,
    only: Sequence[str] = (),
    first: int = 0,
    show: Callable[[dict[str, Any]], None] = lambda _: None,
) -> dict[str, Any]:
    """Run so many cases in all, shared out among the subjects, and count how they ended; ``show`` gets it so far."""
    every = {name: case for name, case in subjects.items() if not only or name in only}
    context = multiprocessing.get_context("fork")
    each = -(-cases // len(every))
    found: dict[str, Counter[str]] = {name: Counter() for name in every}
    faults: dict[str, dict[str, int]] = {}
    for start in range(first, first + each, CHUNK):
        for name, case in every.items():
            numbers = range(start, min(start + CHUNK, first + each))
            while numbers:  # again behind a case that ended its process
                receive, send = context.Pipe(duplex=False)
                child = context.Process(target=_chunk, args=(case, name, seed, numbers, send))
                child.start()
                send.close()
                last = numbers.start - 1
                while last + 1 < numbers.stop:
                    try:
                        if not receive.poll(PATIENCE):
                            child.kill()
                            raise TimeoutError
                        last, ended = receive.recv()
                    except (EOFError, TimeoutError) as error:
                        how = "ended the process" if isinstance(error, EOFError) else f"hung for {PATIENCE} s"
                        last, ended = last + 1, f"fault: it {how}"
                        _count(found[name], faults.setdefault(name, {}), last, ended)
                        break
                    _count(found[name], faults.setdefault(name, {}), last, ended)
                child.join()
                numbers = range(last + 1, numbers.stop)
            show(_counted(found, faults, seed))
    return _counted(found, faults, seed)


def _chunk(case: Case, name: str, seed: int, numbers: range, pipe: Any) -> None:
    """Run cases in a process of their own, and send how each ended."""
    torch.set_num_threads(1)
    logging.disable()
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, resource.RLIM_INFINITY))
    for number in numbers:
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):  # where spoiled paths may lead
            pipe.send((number, _outcome(case, random.Random(f"{seed} {name} {number}"), Path(folder))))
    pipe.close()


def _outcome(case: Case, draw: random.Random, folder: Path) -> str:
    """Run one case within its time; what it does not catch itself is a fault."""
    signal.signal(signal.SIGPROF, _too_long)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return case(draw, folder)
    except MemoryError:  # the command line says it in one sentence
        return "MemoryError"
    except TooLong:
        return f"fault: longer than {SECONDS} s"
    except Exception as error:
        return fault_of(error)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _too_long(*_: object) -> None:
    raise TooLong


def fault_of(error: BaseException) -> str:
    """Say where in our own code an error arose."""
    where = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in where if "torchcaps" in frame.filename or "study" in frame.filename]
    last = own[-1] if own else where[-1]
    return f"fault: {type(error).__name__} in {Path(last.filename).name}:{last.name}: {str(error)[:80]}"


def _counted(found: dict[str, Counter[str]], faults: dict[str, dict[str, int]], seed: int) -> dict[str, Any]:
    return {
        "cases": sum(map(Counter.total, found.values())),
        "seed": seed,
        "outcomes": {name: dict(sorted(counts.items())) for name, counts in found.items()},
        "faults": {name: dict(sorted(kinds.items())) for name, kinds in faults.items() if kinds},
    }


def _count(counts: Counter[str], faults: dict[str, int], number: int, ended: str) -> None:
    kind, _, what = ended.partition(": ")
    counts[kind] += 1
    if what:
        faults.setdefault(what, number)


def run_fuzzer(description: str | None, subjects: Callable[[], Mapping[str, Case]]) -> int:
    """Run a fuzzer from the command line; returns 1 where it found a fault."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=20_000, help="in all (default: 20000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", default=(), metavar="SUBJECT", help="these alone")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--out", type=Path, help="a JSON file to write")
    parsed = parser.parse_args()

    def write(found: dict[str, Any]) -> None:
        if parsed.out:
            write_text(parsed.out, json.dumps(found, indent=1) + "\n")

    found = fuzz(subjects(), parsed.cases, parsed.seed, parsed.only, parsed.first, write)
    print(json.dumps(found, indent=1))
    return int(bool(found["faults"]))
