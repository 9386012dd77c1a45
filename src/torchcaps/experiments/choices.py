"""What the fields of an experiment, and the ways to show it, can be chosen among."""

from __future__ import annotations

from typing import Literal, get_args

Blend = Literal["sum", "max"]
Optimizer = Literal["adam", "muon"]
Schedule = Literal["exponential", "cosine", "constant"]
Loss = Literal["margin", "spread", "cross_entropy", "squared_error"]
Margin = Literal["linear", "sigmoid"]
Precision = Literal["32", "bf16"]
Device = Literal["auto", "cpu", "cuda", "mps"]
Progress = Literal["bar", "lines", "none"]
TestCrops = Literal[1, 13]
BLENDS, SCHEDULES, LOSSES, MARGINS = get_args(Blend), get_args(Schedule), get_args(Loss), get_args(Margin)
PRECISIONS, DEVICES, TEST_CROPS = get_args(Precision), get_args(Device), get_args(TestCrops)
OPTIMIZERS, PROGRESS = get_args(Optimizer), get_args(Progress)
