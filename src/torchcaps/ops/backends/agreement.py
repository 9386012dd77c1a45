"""How near an implementation comes to the reference in float64: on small problems, by the rule of pairing.

The error of a result, and of every gradient, may be twice that of the reference in the same dtype, or a few units in
the last place of the largest number. The error of one rounding may be small by luck, so the reference's is the largest
of several: on the inputs, and on neighbours of them that differ in the last place. (In float64 the reference has no
error against itself: there what counts is how far such neighbours move its results.)

The reference runs on the CPU, whatever is compared with it: no fault of a GPU can be on both sides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

Tensors = dict[str, Tensor]
#: Units in the last place below which an error is not compared, and neighbours of the inputs.
FLOOR, NEIGHBOURS = 4, 7
#: Of a product whose numbers are rounded to TF32.
TF32 = 2.0**-10


#: Of random numbers, so that routing decides something: neither all the same nor all or nothing.
_SCALES = {"u": 0.5, "pose": 1.0, "votes": 1.0}


class Problem(NamedTuple):
    """Sizes of a small problem, and the options of its routing.

    Attributes:
        shapes: of the tensors; poses first.
        options: further arguments of the routing.
        constant: those that get no gradient.
        function: the name of the routing in :mod:`torchcaps.ops`.
    """

    shapes: dict[str, tuple[int, ...]]
    options: dict[str, Any]
    constant: tuple[str, ...] = ()
    function: str = "conv_em_routing"


def _em(pose: tuple[int, ...], n: int, children: tuple[int, ...], kernel: tuple[int, ...], n_out: int) -> Any:
    matrix = pose if len(pose) == 2 else (*pose, *pose)
    return {
        "pose": (n, *children, *pose),
        "activation": (n, *children),
        "weight": (children[0], *kernel, n_out, *matrix),
        "beta_u": (n_out,),
        "beta_a": (n_out,),
    }


#: With the named settings' λ activations hardly depend on so few votes.
_PAPER = {"settings": "paper", "final_lambda": 0.3, "variance_floor": 0.1}
_RELEASED = {"settings": "released", "final_lambda": 0.001}
#: By the routing: one with no extras, of sizes that fill blocks, and one with all of them, of sizes that fill none.
#: More images, types and children than a block has; children that no parent sees.
PROBLEMS = {
    "dynamic": (
        Problem({"u": (32, 24, 8), "weight": (24, 10, 8, 16)}, {}, function="dynamic_routing"),
        Problem(
            {"u": (67, 19, 7), "weight": (19, 11, 7, 13), "bias": (11, 13), "initial_logits": (19, 11)},
            {"leaky": True, "return_coupling": True},
            function="dynamic_routing",
        ),
    ),
    "dynamic_votes": (
        Problem({"votes": (3, 5, 3, 4, 5, 7)}, {}, function="locally_constrained_routing"),
        Problem({"votes": (2, 3, 4, 5, 3, 3), "bias": (4, 5)}, {}, function="dynamic_routing_3d"),
    ),
    "em": (
        Problem(_em((4, 4), 9, (2, 6, 5), (2, 3), 17), {"stride": (2, 2), **_RELEASED}),
        Problem(
            _em((4, 4), 5, (19, 1, 1), (1, 1), 5) | {"offset": (19, 1, 1, 4, 4)},
            {"return_coupling": True, **_PAPER},
            ("offset",),
        ),
    ),
    "em_vectors": (Problem(_em((16,), 4, (2, 4, 4), (2, 3), 5), {"stride": (2, 1), **_PAPER}),),
    "variational_bayes": (
        Problem(_em((4, 4), 3, (2, 6, 5), (2, 3), 17), {"stride": (2, 2)}, function="conv_variational_bayes_routing"),
        Problem(
            _em((4, 4), 5, (19, 1, 1), (1, 1), 5) | {"offset": (19, 1, 1, 4, 4)},
            {"return_coupling": True},
            ("offset",),
            function="conv_variational_bayes_routing",
        ),
    ),
}


class Compared(NamedTuple):
    """One result or gradient beside the reference in float64.

    Attributes:
        name: such as "result 0" or "gradient of weight".
        error: the largest one.
        reference: that of the reference in the same dtype.
        allowed: what an error may be.
        largest: of the numbers themselves.
    """

    name: str
    error: float
    reference: float
    allowed: float
    largest: float

    @property
    def is_right(self) -> bool:
        """Say whether the error is within what is allowed."""
        return self.error <= self.allowed  # which NaN is not


class Agreement(NamedTuple):
    """All that was compared, and whether a second run gave the same bits."""

    compared: tuple[Compared, ...]
    same_bits: bool

    @property
    def worst(self) -> Compared:
        """Return what is wrong if anything is, else what comes nearest to it."""
        return max(
            self.compared, key=lambda x: x.error / max(x.allowed, 1e-300) if x.error == x.error else float("inf")
        )

    @property
    def errors(self) -> tuple[float, float]:
        """Return the largest error and the reference's, relative to the largest number of the same tensor."""
        ours = max(x.error / max(x.largest, 1e-300) if x.error == x.error else float("inf") for x in self.compared)
        return ours, max(x.reference / max(x.largest, 1e-300) for x in self.compared)

    def fault(self) -> str | None:
        """Describe what is wrong; None where nothing is."""
        x = self.worst
        if not x.is_right:
            return f"{x.name} is off by {x.error:.2g} of {x.largest:.2g}, where {x.allowed:.2g} is let pass"
        return None if self.same_bits else "the same input gave different numbers in two runs"


def compare(
    routing: str, backend: str, device: torch.device, dtypes: tuple[torch.dtype, torch.dtype], *, tf32: bool = False
) -> Agreement:
    """Compare an implementation with the reference in float64.

    Args:
        routing: a key of :data:`PROBLEMS`.
        backend: the implementation's name.
        device: where it runs.
        dtypes: of poses and of matrices; other tensors have the latter.
        tf32: whether its products may round numbers to TF32.

    Returns:
        Forward and for every gradient, on each of :data:`PROBLEMS`.
    """
    found, same = [], True
    for k, problem in enumerate(PROBLEMS[routing]):
        given = _draw(problem, dtypes)
        first, second = (_outcome(problem, backend, given, device) for _ in range(2))
        same = same and all(torch.equal(x, y) for x, y in zip(first.values(), second.values()))
        found += [x._replace(name=f"{x.name} (problem {k + 1})") for x in _beside(problem, given, first, tf32)]
    return Agreement(tuple(found), same)


def run(routing: str, backend: str, device: torch.device, dtypes: tuple[torch.dtype, torch.dtype]) -> None:
    """Route every problem of :func:`compare` once, forward and backward."""
    for problem in PROBLEMS[routing]:
        _outcome(problem, backend, _draw(problem, dtypes), device)


def _beside(problem: Problem, given: Tensors, ours: Tensors, tf32: bool) -> list[Compared]:
    cpu = torch.device("cpu")
    exact = _outcome(problem, "reference", _double(given), cpu)
    theirs, moves = dict.fromkeys(exact, 0.0), tf32 or torch.float64 in {x.dtype for x in given.values()}
    for k in range(1 + NEIGHBOURS):
        near = _neighbour(given, k, tf32) if k else given
        true = exact if moves else _outcome(problem, "reference", _double(near), cpu)
        for name, x in _outcome(problem, "reference", near, cpu).items():
            theirs[name] = max(theirs[name], _distance(x, true[name]))
    found = []
    for name, wanted in exact.items():
        largest, limits = float(wanted.abs().max()), torch.finfo(ours[name].dtype)
        unit = max(limits.eps, TF32 if tf32 else 0) * max(largest, limits.smallest_normal)
        allowed = max(2 * theirs[name], FLOOR * unit)
        found.append(Compared(name, _distance(ours[name], wanted), theirs[name], allowed, largest))
    return found


def _draw(problem: Problem, dtypes: tuple[torch.dtype, torch.dtype]) -> Tensors:
    """Draw the same numbers every time, without the caller's random state."""
    random = torch.Generator().manual_seed(0)

    def draw(name: str, shape: tuple[int, ...]) -> Tensor:
        if name == "activation":
            return 0.1 + 0.8 * torch.rand(shape, generator=random, dtype=torch.float64, device="cpu")
        scale = shape[-2] ** -0.5 if name == "weight" else _SCALES.get(name, 0.3)
        return scale * torch.randn(shape, generator=random, dtype=torch.float64, device="cpu")

    poses, matrices = dtypes
    kinds = {name: poses if k == 0 else matrices for k, name in enumerate(problem.shapes)}
    return {name: draw(name, shape).to(kinds[name]) for name, shape in problem.shapes.items()}


def _outcome(problem: Problem, backend: str, given: Tensors, device: torch.device) -> Tensors:
    """Return the results, and the gradients of a fixed weighted sum of them, on the CPU."""
    from torchcaps import ops  # which stand on this package

    function: Callable[..., Any] = getattr(ops, problem.function)
    leaves = {name: x.detach().to(device).requires_grad_(name not in problem.constant) for name, x in given.items()}
    results = [x for x in function(**leaves, **problem.options, backend=backend) if x is not None]
    random = torch.Generator().manual_seed(1)
    weights = [torch.randn(x.shape, generator=random, dtype=torch.float32, device="cpu").bfloat16() for x in results]
    wanted = [x for x in leaves.values() if x.requires_grad]
    sources = [(x, w.to(x)) for x, w in zip(results, weights, strict=True) if x.requires_grad]
    gradients = torch.autograd.grad([x for x, _ in sources], wanted, [w for _, w in sources])
    names = [name for name in leaves if name not in problem.constant]
    found = {f"result {k}": x.detach() for k, x in enumerate(results)}
    found |= {f"gradient of {name}": x for name, x in zip(names, gradients, strict=True)}
    return {name: x.cpu() for name, x in found.items()}


def _double(given: Tensors) -> Tensors:
    return {name: x.double() for name, x in given.items()}


def _neighbour(given: Tensors, seed: int, tf32: bool) -> Tensors:
    """Move every number by at most one unit in the last place."""
    random = torch.Generator().manual_seed(seed)

    def moved(x: Tensor) -> Tensor:
        step = torch.randint(-1, 2, x.shape, generator=random, device="cpu").double()
        return (x.double() * (1 + step * max(torch.finfo(x.dtype).eps, TF32 if tf32 else 0))).to(x.dtype)

    return {name: moved(x) for name, x in given.items()}


def _distance(x: Tensor, exact: Tensor) -> float:
    return float((x.double() - exact).abs().max())
