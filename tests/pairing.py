"""The rule that pairs an implementation with its reference.

Against the reference in float64, the error of the result and of every gradient is at most twice that of the
reference in the same dtype, or a few units in the last place of the largest number, whichever is more.

The error of one rounding may be small by luck. So the reference's is the largest of several: on these inputs, and
on neighbours of them that differ in the last place, each against float64 on the same inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tests.impls import DEVICES

Inputs = dict[str, Tensor | None]
#: Takes the name of an implementation and the inputs; gives the results.
Function = Callable[[str, Inputs], Sequence[Tensor]]
#: Units in the last place below which an error is not compared.
FLOOR = 4


def assert_paired(function: Function, inputs: Inputs, impl: str, neighbours: int = 7) -> None:
    """Hold ``impl`` to the rule, for every result and for the gradients of all inputs that are there."""
    exact, ours = outcome(function, double(inputs), "reference"), outcome(function, inputs, impl)
    allowed = dict.fromkeys(exact, 0.0)
    for k in range(1 + neighbours):
        near = neighbour(inputs, seed=k) if k else inputs
        theirs, true = outcome(function, near, "reference"), outcome(function, double(near), "reference")
        for name, x in theirs.items():
            assert bool(x.isfinite().all()), f"{name}: the reference is not finite"
            assert ours[name].dtype == x.dtype and ours[name].shape == x.shape, name
            allowed[name] = max(allowed[name], distance(x, true[name]))
    assert ours.keys() == exact.keys()
    for name, wanted in exact.items():
        limits = torch.finfo(ours[name].dtype)
        ulp = limits.eps * max(largest(wanted), limits.smallest_normal)
        error = distance(ours[name], wanted)
        assert error <= max(2 * allowed[name], FLOOR * ulp), (
            f"{name}: error {error:.3g}, the reference's {allowed[name]:.3g}, ulp {ulp:.3g}"
        )


def largest(x: Tensor) -> float:
    return float(x.abs().max()) if x.numel() else 0.0


def distance(x: Tensor, exact: Tensor) -> float:
    return largest(x.double() - exact)


def double(inputs: Inputs) -> Inputs:
    return {k: None if x is None else x.double() for k, x in inputs.items()}


def neighbour(inputs: Inputs, seed: int) -> Inputs:
    """Every number as it is, or one unit in the last place more or less."""
    generator = torch.Generator().manual_seed(seed)

    def moved(x: Tensor) -> Tensor:
        step = torch.randint(-1, 2, x.shape, generator=generator) * torch.finfo(x.dtype).eps
        return (x.double() * (1 + step)).to(x.dtype)

    return {k: None if x is None else moved(x) for k, x in inputs.items()}


def outcome(function: Function, inputs: Inputs, impl: str) -> dict[str, Tensor]:
    """The results, and the gradients of one fixed weighting of them all, computed where ``impl`` works."""
    leaves = {k: x.detach().requires_grad_() for k, x in inputs.items() if x is not None}
    moved = {k: x.to(DEVICES[impl]) for k, x in leaves.items()}
    results = [x.cpu() for x in function(impl, inputs | moved)]
    generator = torch.Generator().manual_seed(1)
    # The weights are numbers that every dtype can hold.
    weights = [torch.randn(x.shape, generator=generator).bfloat16().to(x.dtype) for x in results]
    sources = [(x, w) for x, w in zip(results, weights, strict=True) if x.requires_grad]
    gradients = torch.autograd.grad(
        [x for x, _ in sources],
        list(leaves.values()),
        [w for _, w in sources],
        allow_unused=True,
        materialize_grads=True,
    )
    named = {f"result {k}": x.detach() for k, x in enumerate(results)}
    return named | {f"gradient of {k}": x for k, x in zip(leaves, gradients, strict=True)}
