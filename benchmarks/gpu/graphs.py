"""A call as a CUDA graph: the time of the card alone, without what the host takes to launch."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from benchmarks.clock import Function

#: A graph holds as many calls as fill so many seconds, at most ``MOST``: replaying one takes the host some µs itself.
FILLED, MOST = 0.002, 20


def captured(call: Function, seconds: float) -> tuple[Callable[[], None], int]:
    """Capture a warm call, several times over where it is short.

    Args:
        call: launches its work on the current stream, and waits for nothing.
        seconds: that it takes, roughly.

    Returns:
        What replays the graph, and how many calls that is.
    """
    n = min(MOST, max(1, math.ceil(FILLED / max(seconds, 1e-6))))
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.empty_cache()  # the graph has memory of its own
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(n):
            call()
    graph.replay()
    torch.cuda.synchronize()
    return graph.replay, n
