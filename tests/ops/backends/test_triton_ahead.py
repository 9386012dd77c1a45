"""Kernels that are compiled together before they are started, with stand-ins for triton's."""

from __future__ import annotations

import logging
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from torchcaps.ops.backends.triton_ahead import compile_ahead, noted

CPU = torch.device("cpu")


class Kernel:
    """What is compiled is kept; being started is a fault."""

    def __init__(self, error: Exception | None = None) -> None:
        self.compiled: list[tuple[Any, ...]] = []
        self.built = 0
        self.error = error

    def __getitem__(self, grid: Any) -> Any:
        raise AssertionError("a kernel was started")

    def warmup(self, *values: Any, grid: Any, **named: Any) -> Kernel:
        if self.error is not None:
            raise self.error
        self.compiled.append((values, grid, named))
        return self

    @property
    def run(self) -> None:
        self.built += 1


def module(**kernels: Kernel) -> Any:
    return SimpleNamespace(**kernels)


def test_each_kind_is_compiled_once_and_none_is_started() -> None:
    one, other = Kernel(), Kernel()
    kernels = module(one=one, other=other)
    memory = torch.empty(9)
    wide, shifted = torch.empty(8, dtype=torch.float64), memory[1:]

    def starts() -> None:
        found = noted(kernels)
        for x in (memory, torch.empty(99), wide, shifted):  # the second is of the first one's kind
            found.one[3, 2](x, 32, None, N=16)
        found.one[1, 1](memory, 33, None, N=16)  # no multiple of 16
        found.one[1, 1](memory, 48, None, N=16)  # as 32
        found.one[1, 1](memory, 32, None, N=32)  # another constant
        found.other[5,](memory, 32, None, N=16)

    compile_ahead(starts, CPU)
    assert len(one.compiled) == one.built == 5 and len(other.compiled) == other.built == 1
    assert other.compiled == [((memory, 32, None), (5,), {"N": 16})]
    assert noted(kernels) is kernels


def test_a_failure_is_met_where_the_kernel_is_started(caplog: pytest.LogCaptureFixture) -> None:
    kernels = module(bad=Kernel(RuntimeError("no compiler")))
    with caplog.at_level(logging.DEBUG, "torchcaps"):
        compile_ahead(lambda: noted(kernels).bad[1,](1), CPU)
        compile_ahead(lambda: 1 / 0, CPU)
    assert [record.levelname for record in caplog.records] == ["DEBUG", "DEBUG"]
    assert "no compiler" in caplog.text and "division by zero" in caplog.text
    assert noted(kernels) is kernels


def test_other_threads_start_their_kernels_meanwhile() -> None:
    kernels, seen = module(), list[Any]()

    def function() -> None:
        thread = threading.Thread(target=lambda: seen.append(noted(kernels)))
        thread.start()
        thread.join(60)
        seen.append(noted(kernels))

    compile_ahead(function, CPU)
    assert seen[0] is kernels and seen[1] is not kernels


def test_the_backward_pass_is_noted_too() -> None:
    kernels, kernel = module(), Kernel()
    kernels.kernel = kernel

    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return 2 * x

        @staticmethod
        def backward(ctx: Any, d: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            noted(kernels).kernel[1,](d)
            return 2 * d

    compile_ahead(lambda: Doubled.apply(torch.ones(2, requires_grad=True)).sum().backward(), CPU)  # type: ignore[no-untyped-call]
    assert len(kernel.compiled) == 1
