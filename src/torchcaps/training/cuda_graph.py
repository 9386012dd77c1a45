"""Work on a GPU, recorded as a CUDA graph: the host then launches one thing instead of hundreds."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from torchcaps.training.whole_step import Unrecordable

#: Set to 0 it lets steps be launched kernel by kernel. No field of an experiment, for results are the same.
SWITCH = "TORCHCAPS_CUDA_GRAPH"


def wanted() -> bool:
    """Return whether steps are to be recorded, where they can be.

    Raises:
        ValueError: the environment variable is neither 0 nor 1.
    """
    value = os.environ.get(SWITCH, "1")
    if value not in ("0", "1"):
        raise ValueError(f"{SWITCH} must be 0 or 1, got {value!r}")
    return value == "1"


class CudaGraph:
    """Records on a stream of its own, as CUDA wants it.

    Args:
        device: the GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self.index = torch.cuda.current_device() if device.index is None else device.index
        self.device = torch.device("cuda", self.index)
        self.stream = torch.cuda.Stream(self.device)

    def run(self, work: Callable[[], Tensor]) -> Tensor:
        """Run it on that stream, behind all that was launched before and ahead of all that comes."""
        here = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(here)
        with torch.cuda.stream(self.stream):
            result = work()
        here.wait_stream(self.stream)
        return result

    def record(self, work: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Return what does the same again, without having run it.

        Raises:
            Unrecordable: with the reason.
        """
        graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
        try:
            # The outer context comes back to this stream where the inner one fails to.
            with (
                torch.cuda.stream(self.stream),
                torch.cuda.graph(graph, pool, self.stream, capture_error_mode="thread_local"),
            ):
                result = work()
        except Exception as error:  # CUDA's, or what kernels and models raise because of it
            self._mend(pool)
            cause = error.__context__ or error  # the end of a recording that went wrong raises, too
            raise Unrecordable(f"{type(cause).__name__}: {str(cause).strip().partition(chr(10))[0]}") from error

        def replay() -> Tensor:
            graph.replay()
            return result

        return replay

    def _mend(self, pool: Any) -> None:
        """Undo what torch leaves behind when a recording fails: memory and random numbers that await its end.

        Where a version of torch has no need or no means of it, training goes on without.
        """
        with suppress(Exception):
            torch._C._cuda_endAllocateToPool(self.index, pool)
        # The pool itself is the graph's to release: a second time would end the process.
        with suppress(Exception):
            fresh = torch.Generator(self.device).manual_seed(torch.initial_seed())
            torch.cuda.default_generators[self.index].graphsafe_set_state(fresh.graphsafe_get_state())
