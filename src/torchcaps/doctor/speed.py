"""How fast routing is here beside the reference: forward and backward, medians of a few runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import Tensor

from torchcaps.ops import conv_em_routing, dynamic_routing
from torchcaps.ops.backends.triton_ahead import compile_ahead

#: Seconds that one implementation may take, and runs at most.
PATIENCE, RUNS = 1.5, 7
#: Images of a problem: a GPU is not filled by those that a CPU takes a while for.
IMAGES = {"cpu": {"dynamic": 16, "em": 4}, "cuda": {"dynamic": 128, "em": 32}}
PROBLEMS = {
    "dynamic": "1152 capsules of 8 to 10 of 16",
    "em": "8 types on 14×14 to 8 on 6×6, kernel 3",
}


def measure(routing: str, device: torch.device, taken: str) -> dict[str, Any]:
    """Milliseconds, and on a GPU peak memory in bytes, of the reference and of what "auto" takes."""
    n_images = IMAGES[device.type][routing]
    step = {"dynamic": _dynamic, "em": _em}[routing](n_images, device)
    backends = ("reference",) if taken == "reference" else ("reference", taken)
    return {
        "device": str(device),
        "routing": routing,
        "problem": f"{n_images} images, {PROBLEMS[routing]}",
        "taken": taken,
        "threads": torch.get_num_threads() if device.type == "cpu" else None,
        "measured": {backend: _measured(step, backend, device) for backend in backends},
    }


def _measured(step: Callable[[str], object], backend: str, device: torch.device) -> dict[str, float]:
    on_gpu = device.type == "cuda"
    if backend == "triton":
        compile_ahead(lambda: step(backend), device)
    start = time.monotonic()
    _timed(step, backend, device)  # takes memory
    times: list[float] = []
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device) if on_gpu else 0
    while len(times) < RUNS and (not times or time.monotonic() - start < PATIENCE):
        times.append(_timed(step, backend, device))
    found: dict[str, float] = {"ms": median(times) * 1e3, "runs": len(times)}
    return found | ({"peak_bytes": torch.cuda.max_memory_allocated(device) - before} if on_gpu else {})


def _timed(step: Callable[[str], object], backend: str, device: torch.device) -> float:
    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    wait()
    start = time.perf_counter()
    step(backend)
    wait()
    return time.perf_counter() - start


def _dynamic(n_images: int, device: torch.device) -> Callable[[str], object]:
    u, weight = _leaves(device, (n_images, 1152, 8), (1152, 10, 8, 16))

    def step(backend: str) -> object:
        found = dynamic_routing(u, weight * 0.1, backend=backend)
        return torch.autograd.grad(found.activation.sum() + found.pose.sum(), (u, weight))

    return step


def _em(n_images: int, device: torch.device) -> Callable[[str], object]:
    shapes = (n_images, 8, 14, 14, 4, 4), (n_images, 8, 14, 14), (8, 3, 3, 8, 4, 4), (8,), (8,)
    leaves = _leaves(device, *shapes)

    def step(backend: str) -> object:
        pose, activation, *rest = leaves
        found = conv_em_routing(pose, activation.sigmoid(), *rest, stride=2, backend=backend)  # type: ignore[arg-type]
        return torch.autograd.grad(found.activation.sum() + found.pose.sum(), leaves)

    return step


def _leaves(device: torch.device, *shapes: tuple[int, ...]) -> list[Tensor]:
    random = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=random).to(device).requires_grad_() for shape in shapes]
