"""Marks for tests that hold for every implementation of a routing, each where it is to be had."""

from __future__ import annotations

import pytest

from torchcaps.ops.fused import cpu

needs_cpu = pytest.mark.skipif(cpu.why_not("dynamic") is not None, reason=str(cpu.why_not("dynamic")))
impls = pytest.mark.parametrize("impl", ["reference", pytest.param("cpu", marks=needs_cpu)])
