"""Under what conditions is measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from benchmarks.check import relative_errors, require_agreement
from benchmarks.clock import Measured, interleaved, stopwatch
from benchmarks.contenders import why_no_triton
from benchmarks.peak import peak
from benchmarks.routed import Routed
from benchmarks.tf32 import without_tf32
from benchmarks.work import Net, Vectors, Votes, Work

#: What is held to the reference before it is timed.
Checked = Vectors | Votes | Routed | Net


@dataclass(frozen=True)
class Conditions:
    """What all suites share.

    Attributes:
        device: where everything runs.
        threads: on a CPU.
        repeats: repetitions of every measurement.
        compile: also measure the reference through torch.compile.
        smoke: sizes so small that all is done in seconds, to see that it runs; the times say nothing.
    """

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    threads: int = 1
    repeats: int = 7
    compile: bool = False
    smoke: bool = False

    def others(self, routing: str) -> tuple[str, ...]:
        """The contenders that are not measured everywhere: torch.compile where it was asked for, and GPU kernels."""
        return ("compiled",) * self.compile + ("triton",) * (why_no_triton(routing, self.device) is None)

    def left_out(self, routing: str) -> list[str]:
        """Why there are no times of the GPU kernels, in a sentence."""
        reason = why_no_triton(routing, self.device)
        return [] if reason is None else [f"No times of the Triton kernels of {routing} routing: {reason}."]

    def seconds(self, works: Mapping[str, Work]) -> dict[str, Measured]:
        """Time all, in turns."""
        calls = {name: work.prepare(self.device) for name, work in works.items()}
        return interleaved(calls, self.repeats, stopwatch(self.device))

    def bytes(self, work: Work) -> int:
        """Peak memory above what was held before."""
        return peak(work, self.device, self.threads)["step"]

    def checked(self, works: Mapping[str, Checked], batch: int) -> dict[str, float]:
        """Hold each to the reference in float64, on a smaller batch; relative errors by name.

        The floor is routing of one iteration, with equal weights. Whatever the user allows, TF32 is off here: times
        are taken with what the user allows.

        Raises:
            Disagreement: one computes something else.
        """
        with without_tf32():
            return self._checked(works, batch)

    def _checked(self, works: Mapping[str, Checked], batch: int) -> dict[str, float]:
        exact: dict[Checked, dict[str, Tensor]] = {}
        errors = {}
        for name, given in works.items():
            work = replace(given, batch=batch)
            truth = _truth(work)
            if truth not in exact:
                exact[truth] = truth.prepare(self.device, torch.float64)()
            plain = None
            if isinstance(work, Net) and work.precision != "32":
                simple = replace(truth, precision=work.precision)
                plain = relative_errors(simple.prepare(self.device)(), exact[truth])
            found = relative_errors(work.prepare(self.device)(), exact[truth])
            errors[name] = require_agreement(name, found, plain)
        return errors


def _truth(work: Checked) -> Checked:
    """The same by the reference."""
    floor = work.contender == "floor"
    if isinstance(work, Routed):
        return replace(work, contender="authors")  # which none of our code computes
    if isinstance(work, Vectors | Votes):
        return replace(work, contender="reference", n_iters=1 if floor else work.n_iters)
    n_iters = 1 if floor else work.n_iters
    return replace(work, contender="reference", precision="32", n_iters=n_iters, frequencies=False)
