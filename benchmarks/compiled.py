"""torch.compile as one who knows it would use it: one graph, for these sizes, and nothing compiled while time is taken.

Left alone, it compiles anew for a second size with all sizes open, and after eight in all it runs the function as it
is, without a word. Both have been taken for its speed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

#: Sizes that one function may be compiled for; torch stops at 8.
SIZES = 64


def compiled(function: Callable[..., Any], backend: Any = "inductor") -> Callable[..., Any]:
    """Compile for each size by itself, and whole: a graph that would break is an error."""
    torch._dynamo.config.cache_size_limit = max(SIZES, torch._dynamo.config.cache_size_limit)
    return torch.compile(function, fullgraph=True, dynamic=False, backend=backend)


@contextmanager
def nothing_compiled() -> Iterator[None]:
    """Within it, what would have to be compiled once more raises a RuntimeError: it should have been warm."""
    with torch.compiler.set_stance("fail_on_recompile"):
        yield
