"""Several processes that train one run together: which of them this is, and what they exchange.

They are known by the environment variables that torchrun sets (``RANK``, ``WORLD_SIZE``, …), whoever started them.
The first one, of rank 0, decides and writes; what it cannot do, all refuse with the same words.
"""

from __future__ import annotations

import atexit
import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from torchcaps.training.config import Experiment

T = TypeVar("T")

#: How long a process waits for another that is alive and says nothing. One that has ended is noticed at once.
_PATIENCE = timedelta(minutes=30)
#: What a process needs beside the number of them.
_NEEDED = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class World(NamedTuple):
    """The processes of a run, and which of them this is.

    Attributes:
        rank: of this process, 0 … size − 1.
        size: how many there are.
        local_rank: among those of this machine, which is also the number of its GPU.
        local_size: how many are on this machine.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1

    @property
    def first(self) -> bool:
        """Return whether this process decides and writes."""
        return self.rank == 0

    def decided(self, decide: Callable[[], T]) -> T:
        """Let the first process decide; all return what it says, or raise what it raises."""
        if self.size == 1:
            return decide()
        found: list[Any] = [_outcome(decide) if self.first else None]
        dist.broadcast_object_list(found, src=0, device=torch.device("cpu"))
        value, error = found[0]
        if error is not None:
            raise error
        return value

    def in_turn(self, work: Callable[[], T]) -> T:
        """Let the first process work, then all others at once, which find what it downloaded or compiled.

        The work itself must not wait for other processes.

        Raises:
            Exception: what any of them met, in all of them.
        """
        if self.size == 1:
            return work()
        mine = _outcome(work) if self.first else None
        if self.decided(lambda: mine is not None and mine[1] is None) and mine is None:
            mine = _outcome(work)
        error = None if mine is None else mine[1]
        for each in self.gathered(error):
            if each is not None:
                raise each
        assert mine is not None
        return mine[0]

    def gathered(self, value: T) -> list[T]:
        """Return the values of all processes, by rank."""
        if self.size == 1:
            return [value]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value)
        return found

    def mean(self, x: Tensor) -> Tensor:
        """Return the mean over the processes, where each gives as much."""
        if self.size == 1:
            return x
        total = x.clone()
        dist.all_reduce(total)
        return total / self.size

    def sum(self, x: Tensor) -> Tensor:
        """Return the sum over the processes. Gradients flow back to all of them."""
        return x if self.size == 1 else _Sum.apply(x)  # pyright: ignore[reportReturnType]


#: A single process.
ALONE = World()


class Share(NamedTuple):
    """What part of a batch a process has.

    Attributes:
        world: the processes.
        first: number of its first example in the whole batch.
        total: examples in the whole batch.
    """

    world: World
    first: int
    total: int

    def weight(self, n: int) -> float:
        """Return the factor of a mean over n examples, such that the mean over the processes is that over all."""
        return self.world.size * n / self.total

    def joined(self, x: Tensor) -> Tensor:
        """Return what all processes have of the batch, ``[total, …]``, of this one's part. Gradients flow back."""
        behind = self.total - self.first - len(x)
        return self.world.sum(F.pad(x, (0, 0) * (x.dim() - 1) + (self.first, behind)))


def slice_of(world: World, n: int) -> slice:
    """Return which of n examples are this process's: as many as others have, or one less."""
    return slice(world.rank * n // world.size, (world.rank + 1) * n // world.size)


class _Sum(torch.autograd.Function):
    """Adds over the processes. A gradient with regard to the sum is one with regard to every summand."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        del ctx
        total = x.contiguous().clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        del ctx
        total = gradients[0].contiguous().clone()
        dist.all_reduce(total)
        return total


def world_here() -> World:
    """Return which process this is, as torchrun says it; one alone where nothing is said.

    Raises:
        ValueError: ``WORLD_SIZE`` is above 1, and what else torchrun sets is missing or no number.
    """
    n = os.environ.get("WORLD_SIZE", "1")
    if not n.isdecimal() or int(n) < 2:
        return ALONE
    missing = [name for name in _NEEDED if name not in os.environ]
    if missing:
        raise ValueError(
            f"WORLD_SIZE={n} must come with {', '.join(missing)}, as torchrun sets them: start by torchrun, or with "
            "--devices, or without WORLD_SIZE"
        )
    numbers = [os.environ[name] for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE")]
    if not all(number.isdecimal() for number in numbers):
        raise ValueError(f"RANK, LOCAL_RANK and LOCAL_WORLD_SIZE must be numbers, got {', '.join(numbers)}")
    rank, local_rank, local_size = map(int, numbers)
    return World(rank, int(n), local_rank, local_size)


def as_launched(config: Experiment, world: World) -> Experiment:
    """Return the experiment with the ``devices`` and ``nodes`` that torchrun started.

    Raises:
        ValueError: the experiment wants others, or several machines and no torchrun; more processes than images in a
            batch.
    """
    if world.size == 1:
        if config.nodes > 1:
            raise ValueError(
                f"nodes must be 1 without torchrun, which starts training on several machines; got {config.nodes}"
            )
        return config
    there = {"devices": world.local_size, "nodes": world.size // world.local_size}
    for name, n in there.items():
        if getattr(config, name) not in (1, n):
            raise ValueError(
                f"{name} must be {n}, as torchrun started so many, or be left; got {getattr(config, name)}"
            )
    return replace(config, **there)


@contextmanager
def connected(world: World, device: torch.device) -> Iterator[None]:
    """Connect the processes, and leave them connected until they end: training may be called again.

    Raises:
        ConnectionError: in the body another process ended, or could not be reached.
    """
    if world.size == 1:
        yield
        return
    try:
        if not dist.is_initialized():
            backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
            dist.init_process_group(backend, timeout=_PATIENCE)
            atexit.register(_disconnect)
        yield
    except RuntimeError as error:
        if not _is_of_connection(error):
            raise
        raise ConnectionError(
            f"another of the {world.size} processes ended; the same command goes on from the last checkpoint, with as "
            f"many processes or others ({str(error).strip().splitlines()[0]})"
        ) from error


def _disconnect() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def _is_of_connection(error: RuntimeError) -> bool:
    """Return whether gloo, NCCL or the store raised it: gloo's errors have no type of their own."""
    text = str(error)
    return isinstance(error, dist.DistError) or any(name in text for name in ("gloo", "NCCL", "Connection closed"))


def _outcome(work: Callable[[], T]) -> tuple[Any, Exception | None]:
    try:
        return work(), None
    except Exception as error:
        return None, _sendable(error)


def _sendable(error: Exception) -> Exception:
    """Return the error, or its words where it cannot be sent to another process."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # whatever its class does
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
