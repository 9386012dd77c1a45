"""How fast a problem could be on a card: its least bytes and operations, at the rates that were measured there.

Bytes: inputs are read and results written once, in the backward pass inputs again and their gradients. Operations of
dynamic routing are those of matrix products that store no votes; three quarters of them could run on tensor cores,
the rest is elementwise. Operations of EM routing are counted a number of a vote and cannot leave the lanes; variational
Bayes has the same passes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.gpu.problems import Problem
from benchmarks.work import Vectors

#: Of dynamic routing's operations, on tensor cores.
SHARE_OF_PRODUCTS = 0.75


@dataclass(frozen=True)
class Cost:
    """What a problem takes at least.

    Attributes:
        bytes: moved to and from memory.
        operations: floating point; a fused multiply-add counts as two.
        products: of them, those that tensor cores can do.
    """

    bytes: int
    operations: float
    products: float

    def seconds(self, rates: Mapping[str, float], products: str) -> float:
        """The larger of the time for bytes and for operations.

        Args:
            rates: per second: "copy" in bytes; "float32", "tf32" and "bfloat16" in operations.
            products: the rate at which products run, such as "tf32".
        """
        on_lanes = self.operations - self.products
        return max(self.bytes / rates["copy"], on_lanes / rates["float32"] + self.products / rates[products])


def cost(problem: Problem, item: int = 4) -> Cost:
    """The least that a problem takes, forward or forward with backward as it says.

    Args:
        problem: the sizes.
        item: bytes of a number.
    """
    return _dynamic(problem, item) if isinstance(problem, Vectors) else _em(problem, item)


def _dynamic(problem: Vectors, item: int) -> Cost:
    upper, lower = problem.n_out * problem.d_out, problem.n_in * problem.d_in
    moved = item * (problem.batch * (lower + upper) + lower * upper)
    matrices = 4 * problem.n_iters - 1 if problem.backward else 2 * problem.n_iters - 1
    operations = 2.0 * matrices * problem.batch * lower * upper
    return Cost(moved * (3 if problem.backward else 1), operations, SHARE_OF_PRODUCTS * operations)


def _em(problem: Problem, item: int) -> Cost:
    assert not isinstance(problem, Vectors)
    places = ((problem.size - problem.kernel_size) // problem.stride + 1) ** 2
    children = problem.n_types * problem.kernel_size**2
    maps = problem.batch * 17 * (problem.n_types * problem.size**2 + problem.n_out * places)
    moved = item * (maps + 16 * children * problem.n_out)
    numbers = 16.0 * problem.batch * places * children * problem.n_out
    each = 10 * problem.n_iters - 3 + (30 * problem.n_iters - 12 if problem.backward else 0)
    return Cost(moved * (3 if problem.backward else 1), 2 * each * numbers, 0.0)
