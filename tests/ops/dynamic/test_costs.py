"""Bytes and operations of the kernels, against counts by hand."""

from __future__ import annotations

from torchcaps.ops.dynamic.costs import Cost, dynamic_costs
from torchcaps.ops.dynamic.tiles import Sizes


def test_dynamic_routing_of_one_iteration() -> None:
    """Two images, three lower capsules of 4 numbers, five upper ones of 6."""
    costs = dynamic_costs(Sizes(2, 3, 5, 4, 6), 1)
    poses, matrices, state = 2 * 3 * 4 * 4, 3 * 5 * 4 * 6 * 4, 2 * 5 * 6 * 4
    product = 2 * (2 * 3 * 5) * 4 * 6
    assert costs["logits_pass"] == Cost(0, 0, 0, 0)
    for name in ("sums_pass", "pose_gradient_pass", "weight_gradient_pass"):
        assert costs[name] == Cost(1, poses + matrices + state, product, 0)


def test_products_of_three_iterations() -> None:
    """Forward 5, backward 6, and 5 for each gradient, as many as there are in the formulas."""
    costs = dynamic_costs(Sizes(128, 1152, 10, 8, 16), 3)
    one = 2 * 128 * 1152 * 10 * 8 * 16
    assert sum(cost.products for cost in costs.values()) == (5 + 6 + 5 + 5) * one
    assert sum(cost.calls for cost in costs.values()) == 17


def test_half_precision_halves_the_inputs_alone() -> None:
    wide, narrow = (dynamic_costs(Sizes(2, 3, 5, 4, 6), 1, n)["sums_pass"].bytes for n in (4, 2))
    assert wide - narrow == 2 * (2 * 3 * 4 + 3 * 5 * 4 * 6)


def test_the_slower_of_memory_and_arithmetic_bounds() -> None:
    assert Cost(1, 100, 30, 10).seconds(10.0, 30.0, 10.0) == 10.0
    assert Cost(1, 10, 30, 10).seconds(10.0, 30.0, 10.0) == 2.0
