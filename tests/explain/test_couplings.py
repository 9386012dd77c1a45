from __future__ import annotations

import pytest
import torch

from torchcaps.explain import class_votes, coupling_maps, parse_tree
from torchcaps.layers import EMRouting
from torchcaps.models import MatrixCapsNet, build

SHAPE = (1, 22, 26)


def tiny(**options):
    return build("capsnet", SHAPE, 3, **{"channels": 4, "n_types": 2, "decoder": None} | options).eval()


@torch.no_grad()
@pytest.mark.parametrize("options", [{}, {"hidden": ({"n_types": 3, "kernel_size": 2},)}])
def test_maps_share_the_mean_activity_out_among_the_classes(options):
    model, x = tiny(**options), torch.rand(2, *SHAPE)
    found = coupling_maps(model, x, n_iters=3)
    activity = model(x).capsules[-2].activation.mean(dim=1)  # [B, H, W]
    assert found.maps.shape == (3, 2, 3, *model.map_shape[1:])
    for t in range(3):
        torch.testing.assert_close(found.maps[t].sum(dim=1), activity)
    torch.testing.assert_close(found.maps[0], (activity / 3)[:, None].expand(-1, 3, -1, -1))
    assert (found.maps[2] - found.maps[0]).abs().max() > 1e-4
    torch.testing.assert_close(found.scores[2], model(x).scores)


@torch.no_grad()
def test_by_default_the_model_iterates_as_it_does_itself():
    model, x = tiny(n_iters=2), torch.rand(1, *SHAPE)
    assert len(coupling_maps(model, x).maps) == parse_tree(model, x[0]).n_iters == 2
    torch.testing.assert_close(parse_tree(model, x[0]).scores, model(x).scores[0])
    matrices = MatrixCapsNet((1, 24, 26), 3, A=4, B=2, C=3, D=2, routing=EMRouting(2)).eval()
    assert len(class_votes(matrices, torch.rand(1, 24, 26), 0).mean) == 2


@torch.no_grad()
def test_matrix_capsules_have_maps_and_a_tree_too():
    model, x = MatrixCapsNet((1, 24, 26), 3, A=4, B=2, C=3, D=2).eval(), torch.rand(2, 1, 24, 26)
    found = coupling_maps(model, x, n_iters=3)
    output = model(x, return_coupling=True)
    below, above = output.capsules[-2:]
    assert found.extent == (6.0, 18.0, 14.0, 6.0)  # 3 columns, 2 rows, 4 pixels each, from pixel 8 on
    torch.testing.assert_close(found.maps[0], (below.activation.mean(dim=1) / 3)[:, None].expand(-1, 3, -1, -1))
    cell = (below.activation[1, :, 1, 2] * above.coupling[1, [5, 11], 0]).mean()
    torch.testing.assert_close(found.maps[2, 1, 0, 1, 2], cell)
    torch.testing.assert_close(found.scores[2], output.scores)
    tree = parse_tree(model, x[1], n_iters=3)
    torch.testing.assert_close(tree.scores, output.scores[1])
    assert len(tree.places) == 12


@torch.no_grad()
def test_a_cell_of_a_map_is_worked_by_hand():
    model, x = tiny(), torch.rand(1, *SHAPE)
    below, above = model(x, n_iters=2, return_coupling=True).capsules
    height, width = model.map_shape[1:]
    i, j, k = 1, 2, 1
    first = i * width + j
    expected = sum(
        float(below.activation[0, t, i, j] * above.coupling[0, t * height * width + first, k]) for t in range(2)
    )
    assert float(coupling_maps(model, x, 2).maps[1, 0, k, i, j]) == pytest.approx(expected / 2)


def test_the_map_lies_about_the_centres_of_the_fields():
    assert coupling_maps(tiny(), torch.rand(1, *SHAPE), 1).extent == (7.0, 17.0, 13.0, 7.0)  # 5 columns, 3 rows


def test_with_leaky_routing_some_activity_goes_nowhere():
    found = coupling_maps(tiny(leaky=True), torch.rand(1, *SHAPE), 1)
    total = coupling_maps(tiny(), torch.rand(1, *SHAPE), 1).maps.sum()
    assert found.maps.sum() < 0.9 * total


def test_in_the_first_iteration_all_classes_are_parents():
    model, x = tiny(), torch.rand(*SHAPE)
    tree = parse_tree(model, x, n_iters=1, n_capsules=7)
    assert tree.parents().all()
    assert tree.coupling.shape == (7, 3)


@torch.no_grad()
def test_the_tree_holds_the_most_active_capsules_and_their_parents():
    model, x = tiny(), torch.rand(*SHAPE)
    tree = parse_tree(model, x, n_iters=3, n_capsules=5)
    below, above = model(x[None], n_iters=3, return_coupling=True).capsules
    order = below.activation.flatten().argsort(descending=True)[:5]
    torch.testing.assert_close(tree.coupling, above.coupling[0, order])
    assert tree.types.tolist() == [int(i) // 15 for i in order]
    assert tree.places.tolist() == [[8 + 2 * (int(i) % 15 // 5), 8 + 2 * (int(i) % 5)] for i in order]
    assert tree.parents().sum(dim=1).tolist() == [1] * 5
    assert tree.parents().int().argmax(dim=1).tolist() == tree.coupling.argmax(dim=1).tolist()
    assert len(parse_tree(model, x, n_capsules=1000).places) == 30


def test_what_does_not_fit_is_named():
    with pytest.raises(ValueError, match="n_iters must be an integer of at least 1"):
        coupling_maps(tiny(), torch.rand(1, *SHAPE), 0)
    with pytest.raises(ValueError, match="n_capsules must be an integer of at least 1"):
        parse_tree(tiny(), torch.rand(*SHAPE), n_capsules=0)
    with pytest.raises(ValueError, match=r"images must be \[B, C, H, W\]"):
        coupling_maps(tiny(), torch.rand(*SHAPE))
