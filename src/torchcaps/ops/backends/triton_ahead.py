"""Compile the kernels of a few calls together, on all cores, instead of one at each first start."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

_NOW = threading.local()


class Start(NamedTuple):
    """How a kernel would be started."""

    kernel: Any
    grid: tuple[int, ...]
    values: tuple[Any, ...]
    named: dict[str, Any]

    def kind(self) -> tuple[Any, ...]:
        """Return what tells two compilations apart."""
        return (id(self.kernel), *map(_kind, self.values), *sorted(self.named.items()))

    def compile(self, device: torch.device) -> None:
        """Compile the kernel, and what starts it."""
        from torchcaps.ops.backends.triton import on  # which loads kernels by way of this file

        with on(device):
            compiled = self.kernel.warmup(*self.values, grid=self.grid, **self.named)
            _ = compiled.run  # which is built when it is first asked for


class Noted:
    """Stand for a module of kernels: what would be started is noted instead."""

    def __init__(self, kernels: ModuleType, starts: list[Start]) -> None:
        self.kernels, self.starts = kernels, starts

    def __getattr__(self, name: str) -> Any:
        return _Noted(getattr(self.kernels, name), self.starts)


class _Noted(NamedTuple):
    kernel: Any
    starts: list[Start]

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return lambda *values, **named: self.starts.append(Start(self.kernel, grid, values, named))


def noted(kernels: ModuleType) -> Any:
    """Return the kernels, or within :func:`compile_ahead` what stands for them."""
    starts = getattr(_NOW, "starts", None)
    return kernels if starts is None else Noted(kernels, starts)


def compile_ahead(function: Callable[[], object], device: torch.device) -> None:
    """Compile every kernel that ``function`` would start, on all cores. None is started: its results mean nothing.

    What fails here fails again where the kernel is started, and is met there.
    """
    try:
        with _noting() as starts, torch.autograd.set_multithreading_enabled(False):  # the backward pass in this thread
            function()
        kinds = list({start.kind(): start for start in starts}.values())
        if kinds:
            with ThreadPoolExecutor(min(len(kinds), os.cpu_count() or 1)) as pool:
                list(pool.map(partial(Start.compile, device=device), kinds))
    except Exception as error:
        logging.getLogger("torchcaps").debug("kernels were not compiled ahead: %s", error)


@contextmanager
def _noting() -> Iterator[list[Start]]:
    _NOW.starts = starts = list[Start]()
    try:
        yield starts
    finally:
        del _NOW.starts


def _kind(value: Any) -> Any:
    """Return what a compilation knows of an argument: of a tensor its dtype, and whether numbers are aligned."""
    if isinstance(value, Tensor):
        return value.dtype, value.data_ptr() % 16
    return (value == 1, value % 16 == 0) if isinstance(value, int) else value
