"""A function in a thread of its own, whatever its caller is in the middle of."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

import torch

Result = TypeVar("Result")


def alone(function: Callable[[], Result]) -> Result:
    """What ``function`` gives in a thread of its own, on one CPU core; raises what it raises.

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
