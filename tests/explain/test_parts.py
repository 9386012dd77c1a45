from __future__ import annotations

import pytest
import torch

from tests.explain.test_receptive_fields import with_padded_capsules
from torchcaps.explain import coupling_maps, part_maps, propagate_responsibility
from torchcaps.models import CapsNet, build

SHAPE = (2, 24, 26)


def tiny(**options):
    return build("matrix_capsnet", SHAPE, 3, **{"A": 4, "B": 2, "C": 3, "D": 2} | options).eval()


def test_three_children_of_two_parents_are_worked_by_hand():
    activation = torch.tensor([1.0, 0.5, 1.0]).view(1, 1, 1, 3)
    coupling = torch.tensor([[0.5, 1.0], [0.25, 0.375]]).view(1, 1, 2, 2, 1)  # R a: ½, ½ and ⅛, ⅜
    amount = torch.tensor([6.0, 4.0]).view(1, 1, 1, 1, 2)
    handed = propagate_responsibility(amount, activation, coupling, (1, 2), (1, 1))
    assert handed.flatten().tolist() == [3, 3 + 1, 3]


def test_the_one_child_that_a_parent_took_gets_all():
    activation, coupling = torch.rand(1, 2, 4, 4) + 0.1, torch.zeros(1, 3, 3, 8, 1)
    coupling[0, 1, 2, 5] = 0.3  # type 1, row 0, column 1 of the field at (1, 2)
    amount = torch.zeros(1, 1, 1, 3, 3)
    amount[0, 0, 0, 1, 2] = 2.0
    handed = propagate_responsibility(amount, activation, coupling, (2, 2), (1, 1))
    assert handed.nonzero().tolist() == [[0, 0, 1, 1, 3]]
    assert handed.max() == 2


def test_a_parent_that_took_nothing_shares_equally():
    handed = propagate_responsibility(
        torch.ones(1, 1, 1, 1, 1), torch.zeros(1, 1, 2, 2), torch.ones(1, 1, 1, 4, 1), (2, 2), (1, 1)
    )
    assert handed.flatten().tolist() == [0.25] * 4


@torch.no_grad()
@pytest.mark.parametrize("options", [{}, {"pose": "vector", "coordinates": None}, {"routing": "dynamic"}])
def test_maps_hold_all_that_the_classes_were_given(options):
    model, x = tiny(**options), torch.rand(2, *SHAPE)
    found = part_maps(model, x)
    *_, lower, upper = model(x, return_coupling=True).capsules
    given = torch.einsum("bi,bij->bj", lower.activation.flatten(1), upper.coupling)
    assert found.maps.shape == (2, 3, 10, 11)  # of the primary capsules
    torch.testing.assert_close(found.maps.sum(dim=(2, 3)), given)
    torch.testing.assert_close(found.scores, upper.activation)
    assert found.extent == (1.0, 23.0, 21.0, 1.0)  # 11 columns and 10 rows, 2 pixels each, from pixel 2 on


@torch.no_grad()
def test_a_place_is_traced_by_a_slow_loop():
    model, x = tiny(), torch.rand(1, *SHAPE)
    primary, first, second, classes = model(x, return_coupling=True).capsules
    label, expected = 1, torch.zeros(10, 11)

    def trace(amount: float, upper: int, j: int, row: int, column: int) -> None:
        if upper == 0:
            expected[row, column] += amount
            return
        lower, routed, stride = ((primary, first, 2), (first, second, 1))[upper - 1]
        share = {}
        for t in range(lower.activation.shape[1]):
            for dy in range(3):
                for dx in range(3):
                    y, x = stride * row + dy, stride * column + dx
                    r = routed.coupling[0, row, column, 9 * t + 3 * dy + dx, j]
                    share[t, y, x] = float(r * lower.activation[0, t, y, x])
        for (t, y, x), part in share.items():
            trace(amount * part / sum(share.values()), upper - 1, t, y, x)

    _, types, height, width = second.activation.shape
    for j in range(types):
        for row in range(height):
            for column in range(width):
                i = (j * height + row) * width + column
                trace(float(second.activation[0, j, row, column] * classes.coupling[0, i, label]), 2, j, row, column)
    torch.testing.assert_close(part_maps(model, x).maps[0, label], expected)


def test_without_layers_between_the_parts_are_the_couplings():
    model = CapsNet((1, 22, 26), 3, channels=4, n_types=2, decoder=None).eval()
    x = torch.rand(2, 1, 22, 26)
    torch.testing.assert_close(part_maps(model, x).maps, 2 * coupling_maps(model, x, 3).maps[-1])  # 2 types
    stacked = CapsNet((1, 22, 26), 3, channels=4, n_types=2, decoder=None, hidden=({"kernel_size": 2},)).eval()
    assert part_maps(stacked, x).maps.shape == (2, 3, *model.map_shape[1:])


def test_what_does_not_fit_is_named():
    with pytest.raises(ValueError, match="model must have a routed layer, .* got a Linear"):
        part_maps(torch.nn.Linear(1, 1), torch.rand(1, *SHAPE))
    with pytest.raises(ValueError, match=r"model must have no padding between its capsules, got \(1, 1\)"):
        part_maps(with_padded_capsules(), torch.rand(1, 1, 28, 28))
    with pytest.raises(ValueError, match=r"images must be \[B, C, H, W\]"):
        part_maps(tiny(), torch.rand(*SHAPE))
    with pytest.raises(ValueError, match="coupling must be of N=T·K_h·K_w=4 children, got 3"):
        propagate_responsibility(
            torch.ones(1, 1, 1, 1, 1), torch.zeros(1, 1, 2, 2), torch.ones(1, 1, 1, 3, 1), (2, 2), (1, 1)
        )
