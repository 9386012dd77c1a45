"""The count of operations and bytes of EM routing's kernels."""

from __future__ import annotations

from torchcaps.ops.em.costs import em_costs


def test_one_vote() -> None:
    """Of one child and one parent, counted by hand: 64 products for a vote, 17 for the mass and mean."""
    costs = {cost.kernel: cost for cost in em_costs(1, (1, 1, 1), 1, 1, 1, 2)}
    mean = costs["parent_pass, first, mean"]
    assert (mean.launches, mean.operations, mean.bytes) == (1, 64 + 17, 4 * (16 + 16 + 1 + 17))
    assert mean.seconds(81.0, 400.0) == 1.0
    assert mean.seconds(8100.0, 100.0) == 2.0


def test_the_first_convolution_of_32_types() -> None:
    costs = em_costs(64, (32, 14, 14), 3, 32, 2, 3)
    n_votes = 64 * 36 * 32 * 32 * 9
    of_a_vote = sum(cost.operations for cost in costs) / n_votes
    # On 132 processors of 128 lanes at 1.7 GHz, all issued perfectly.
    assert 2 < 1e3 * n_votes * of_a_vote / (132 * 128 * 1.7e9) < 2.6
    # No pass waits for memory of 3 TB/s.
    assert all(cost.operations / (132 * 128 * 1.7e9) > cost.bytes / 3e12 for cost in costs)


def test_without_an_e_step_there_is_little() -> None:
    assert sum(cost.launches for cost in em_costs(2, (3, 5, 5), 3, 4, 1, 1)) == 4
