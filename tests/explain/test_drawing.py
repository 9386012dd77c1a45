"""The figures show the numbers that they were given."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch

from torchcaps import build, explain

pytest.importorskip("matplotlib")

from torchcaps.explain.canvas import pixels, shortened, tiled
from torchcaps.explain.pose_recovery import RecoveryPanel

NAMES = ("cat", "dog", "hippopotamus")


def picture(axes: Any) -> np.ndarray:
    return np.asarray(axes.images[0].get_array())


def texts(figure: Any) -> list[str]:
    """All that is written in a figure, titles and labels too."""
    from matplotlib.text import Text

    return [text.get_text() for text in figure.findobj(Text) if text.get_text() and text.get_visible()]


def test_pixels_are_grey_or_colours():
    grey, colour = torch.tensor([0.5, 2.0]).view(1, 1, 2), torch.tensor([0.1, 0.2, 0.3]).view(3, 1, 1)
    assert pixels(grey).tolist() == [[[0.5] * 3, [1.0] * 3]]
    np.testing.assert_allclose(pixels(colour), [[[0.1, 0.2, 0.3]]])
    np.testing.assert_allclose(pixels(torch.tensor([0.2, 0.4]).view(2, 1, 1)), [[[0.2] * 3]])  # the left eye
    np.testing.assert_allclose(pixels(torch.tensor([0.1, 0.2, 0.3, 0.4]).view(4, 1, 1)), [[[0.25] * 3]])


def test_tiles_stand_in_rows_with_white_between():
    rows = np.arange(4, dtype=np.float32).reshape(2, 2, 1, 1, 1).repeat(3, axis=4) / 10
    np.testing.assert_allclose(tiled(rows)[..., 0], [[0.0, 1.0, 0.1], [1.0, 1.0, 1.0], [0.2, 1.0, 0.3]])


def test_long_names_are_cut():
    assert shortened("hippopotamus", 8) == "hippopo…"
    assert shortened("hippo", 5) == "hippo"


def test_units_are_on_one_scale():
    units = torch.zeros(2, 2, 1, 1, 1)
    units[0, 0], units[1, 1] = 0.5, -0.25
    shown = picture(explain.draw_generative_units(units).axes[0])[..., 0]
    np.testing.assert_allclose(shown[::2, ::2], [[1.0, 0.5], [0.5, 0.25]])


def test_pose_recovery_shows_its_numbers():
    true, got = torch.tensor([-1.0, 0.0, 2.0]), torch.tensor([-0.5, 0.1, 1.0])
    axes: Any = explain.draw_pose_recovery([RecoveryPanel("shift x", true, got)]).axes[0]
    np.testing.assert_allclose(np.asarray(axes.collections[0].get_offsets()), torch.stack((true, got), dim=1))


def test_every_template_is_shown():
    units = torch.rand(100, 1, 1, 2, 2)
    shape = picture(explain.draw_generative_units(units).axes[0]).shape[:2]
    assert shape == (13 * 3 - 1, 8 * 3 - 1)  # rows of eight, and gaps
    units = torch.rand(20, 18, 1, 2, 2)
    assert picture(explain.draw_generative_units(units).axes[0]).shape[:2] == (12 * 3 - 1, 16 * 3 - 1)


def test_curves_show_every_run():
    rows = [{"epoch": k, "lr": 0.1, "train_loss": 2.0 / k, "val_loss": 3.0 / k, "val_error": 0.1 / k} for k in (1, 2)]
    figure = explain.draw_curves({"one": rows, "two": rows[:1]})
    axes: list[Any] = figure.axes  # matplotlib's types are wider than what it gives
    loss, error, rate = axes
    assert [list(line.get_ydata()) for line in loss.lines[:4]] == [[2.0, 1.0], [3.0, 1.5], [2.0], [3.0]]
    assert [list(line.get_ydata()) for line in error.lines] == [[10.0, 5.0], [10.0]]
    assert [text.get_text() for text in error.get_legend().get_texts()] == ["one (5.00 %)", "two (10.00 %)"]
    assert list(rate.lines[0].get_ydata()) == [0.1, 0.1]
    with pytest.raises(ValueError, match="runs must have at least one row each"):
        explain.draw_curves({"one": []})


def test_curves_of_auto_encoders_are_named_where_their_losses_are():
    rows = [{"epoch": 1, "lr": 0.1, "train_loss": 2.0, "val_loss": 3.0}]
    axes: list[Any] = explain.draw_curves({"one": rows, "two": rows}).axes
    assert [each.get_title(loc="left") for each in axes] == ["Loss", "Learning rate"]
    named = [text.get_text() for text in axes[0].get_legend().get_texts()]
    assert named == ["one", "two", "validation", "training"]


def test_every_curve_has_a_name_whatever_its_run_is_of():
    """Losses alone, beside errors; matplotlib leaves out names that begin with _."""
    losses = [{"epoch": 1, "lr": 0.1, "train_loss": 2.0, "val_loss": 3.0}]
    axes: list[Any] = explain.draw_curves({"_mine": losses, "_other": [losses[0] | {"val_error": 0.1}]}).axes
    loss, error = ([text.get_text().strip() for text in each.get_legend().get_texts()] for each in axes[:2])
    assert loss == ["_mine", "validation", "training"] and error == ["_other (10.00 %)"]


@pytest.mark.parametrize("n", [2, 50])
def test_confusion_is_drawn_for_few_and_many_classes(n):
    matrix = 4 * torch.eye(n, dtype=torch.int64)
    matrix[0, 1] = 3
    figure = explain.draw_confusion(matrix, [f"class {k}" for k in range(n)])
    colours = picture(figure.axes[0])
    assert colours[1, 0].tolist() == [1, 1, 1]
    assert colours[0, 1, 0] > colours[0, 1, 2]  # red
    assert colours[1, 1, 2] > colours[1, 1, 0]  # blue
    assert f"3 of {4 * n + 3} wrong" in texts(figure)
    assert ("3" in [text.get_text() for text in figure.axes[0].texts]) == (n == 2)
    with pytest.raises(ValueError, match=r"matrix must be \[J, J\] with J=1"):
        explain.draw_confusion(matrix, ["one"])


def test_reconstructions_mark_right_and_wrong():
    images = torch.rand(2, 1, 4, 6)
    labels, predicted = torch.tensor([0, 1]), torch.tensor([0, 2])
    found = explain.Reconstructions(images, labels, predicted, images / 2, images / 4)
    figure = explain.draw_reconstructions(found, NAMES)
    grid = np.array(figure.axes).reshape(3, 2)
    assert [axes.get_title() for axes in grid[0]] == ["✓ cat", "✗ dog\npredicted\nhippopot…"]
    np.testing.assert_allclose(picture(grid[1, 0])[..., 0], images[0, 0] / 2)
    np.testing.assert_allclose(picture(grid[2, 1])[..., 0], images[1, 0] / 4)
    assert not grid[2, 0].images  # a right one needs no third picture


def test_only_mistakes_are_shown():
    images, labels = torch.rand(3, 3, 4, 4), torch.tensor([0, 1, 2])
    figure = explain.draw_misclassified(images, labels, torch.tensor([0, 1, 0]), NAMES)
    assert [axes.get_title() for axes in figure.axes] == ["✗ hippopot…\npredicted\ncat"]
    np.testing.assert_allclose(picture(figure.axes[0]), images[2].permute(1, 2, 0))
    assert "no image is misclassified" in texts(explain.draw_misclassified(images, labels, labels, NAMES))


def test_perturbations_are_rows_of_dimensions():
    grid = torch.rand(2, 3, 1, 4, 5)
    figure = explain.draw_perturbations(grid, (-1.0, 0.0, 1.0))
    sheet = picture(figure.axes[0])
    assert sheet.shape == (4 + 1 + 4, 3 * 5 + 2, 3)
    np.testing.assert_allclose(sheet[5:, 6:11, 0], grid[1, 1, 0])
    with pytest.raises(ValueError, match="offsets must be K=3"):
        explain.draw_perturbations(grid)


def test_the_strongest_dimensions_come_first():
    grids = torch.zeros(1, 4, 2, 1, 3, 3)
    grids[0, 2, 1], grids[0, 0, 1] = 0.9, 0.4
    figure = explain.draw_strongest(grids, ["cat"], (0.0, 1.0), n=2)
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["2", "0"]
    assert picture(figure.axes[0])[0, -1, 0] == pytest.approx(0.9)
    with pytest.raises(ValueError, match="names must be B=1"):
        explain.draw_strongest(grids, NAMES, (0.0, 1.0))


def test_couplings_have_a_row_an_iteration_and_a_column_a_class():
    maps = torch.rand(2, 1, 3, 2, 4)
    couplings = explain.Couplings(maps, torch.tensor([[[0.1, 0.2, 0.3]], [[0.1, 0.2, 0.9]]]), (2.0, 10.0, 6.0, 2.0))
    figure = explain.draw_couplings(torch.rand(1, 8, 12), couplings, NAMES, n_classes=2)
    grid = np.array(figure.axes[:6]).reshape(2, 3)
    assert [axes.get_title() for axes in grid[0]] == ["input", "dog", "hippopo…"]
    heat = grid[1, 2].images[1]
    np.testing.assert_allclose(np.asarray(heat.get_array())[1:-1, 1:-1], maps[1, 0, 2])
    assert heat.get_extent() == [0.0, 12.0, 8.0, 0.0]  # one place wider on every side
    assert heat.get_clim()[1] == pytest.approx(float(maps[:, :, 1:].max()))
    assert grid[1, 2].get_xlabel() == "0.90"


def test_couplings_of_several_images_are_drawn_one_by_one():
    couplings = explain.Couplings(torch.rand(1, 2, 3, 2, 4), torch.rand(1, 2, 3), (2.0, 10.0, 6.0, 2.0))
    assert explain.draw_couplings(torch.rand(1, 8, 12), couplings, NAMES, index=1).axes
    with pytest.raises(ValueError, match=r"image must be \[C, H, W\], got shape \[2, 1, 8, 12\]"):
        explain.draw_couplings(torch.rand(2, 1, 8, 12), couplings, NAMES)
    with pytest.raises(ValueError, match="classes must be 3 names, got 2"):
        explain.draw_couplings(torch.rand(1, 8, 12), couplings, NAMES[:2])
    with pytest.raises(ValueError, match=r"index must be one of 0 … 1, got 2"):
        explain.draw_couplings(torch.rand(1, 8, 12), couplings, NAMES, index=2)


def test_lines_lead_from_capsules_to_their_parents():
    coupling = torch.tensor([[0.1, 0.8, 0.1], [1 / 3, 1 / 3, 1 / 3]])
    places = torch.tensor([[2.0, 3.0], [4.0, 5.0]])
    tree = explain.ParseTree(3, places, torch.tensor([0, 0]), torch.ones(2), coupling, torch.tensor([0.1, 0.9, 0.2]))
    figure = explain.draw_parse_tree(torch.rand(3, 8, 8), [tree], NAMES, [1])
    drawn: list[Any] = list(figure.axes[0].lines)
    lines = [line for line in drawn if len(line.get_xdata()) == 2]
    assert [(line.get_xdata()[0], line.get_ydata()[0]) for line in lines] == [(3, 2), (5, 4), (5, 4), (5, 4)]
    assert lines[0].get_color() == explain.HIGHLIGHT[0]
    assert lines[0].get_ydata()[1] == pytest.approx(lines[2].get_ydata()[1])  # both end at the dog
    assert lines[0].get_alpha() > lines[1].get_alpha()
    alone: list[Any] = list(explain.draw_parse_tree(torch.rand(3, 8, 8), tree, NAMES, [1]).axes[0].lines)
    assert [list(line.get_ydata()) for line in alone] == [list(line.get_ydata()) for line in drawn]
    with pytest.raises(ValueError, match="trees must hold at least one, got none"):
        explain.draw_parse_tree(torch.rand(3, 8, 8), [], NAMES)
    with pytest.raises(ValueError, match="classes must be 3 names, got 2"):
        explain.draw_parse_tree(torch.rand(3, 8, 8), tree, NAMES[:2])


@pytest.mark.parametrize("name", ["capsnet_small", "matrix_capsnet_small"])
def test_the_tree_of_one_image_is_drawn(name: str) -> None:
    model, image = build(name, (1, 28, 28), 3), torch.rand(1, 28, 28)
    (axes,) = explain.draw_parse_tree(image, explain.parse_tree(model, image), NAMES).axes
    assert len(axes.lines) > 80  # a dot for each of 80 capsules, and lines to their parents


def test_parts_lie_over_their_image_for_winner_and_runner_up():
    maps, scores = torch.rand(2, 3, 4, 5), torch.tensor([[0.1, 0.7, 0.9], [0.6, 0.5, 0.4]])
    images, labels = torch.rand(2, 2, 8, 10), torch.tensor([2, 1])
    figure = explain.draw_parts(images, explain.Parts(maps, scores, (1.0, 9.0, 7.0, 1.0)), labels, NAMES)
    grid = np.array(figure.axes[:6]).reshape(3, 2)
    assert [axes.get_title() for axes in grid[0]] == ["✓ hippopot…", "✗ dog\npredicted\ncat"]
    assert [axes.get_xlabel() for axes in grid[1:, 0]] == ["hippopot…: 0.90", "dog: 0.70"]
    np.testing.assert_allclose(picture(grid[0, 1])[..., 0], images[1, 0])  # the left eye
    heat = [np.asarray(axes.images[1].get_array())[1:-1, 1:-1] for axes in grid[1:, 1]]
    largest = maps[1, :2].max()
    np.testing.assert_allclose(heat, maps[1, :2] / largest)
    with pytest.raises(ValueError, match="classes must be J=3 names, at least 2, got 2"):
        explain.draw_parts(images, explain.Parts(maps, scores, (1.0, 9.0, 7.0, 1.0)), labels, NAMES[:2])


def two_clusters() -> explain.Votes:
    """Votes about (3, 4) and about (−3, −4), of which the first two are taken in the end."""
    votes = torch.tensor([[4.0, 4.0], [2.0, 4.0], [-3.0, -4.0]])
    coupling = torch.tensor([[0.5, 0.5, 0.5], [1.0, 1.0, 0.0]])
    mean, variance = torch.tensor([[1.0, 4 / 3], [3.0, 4.0]]), torch.tensor([[9.0, 14.0], [4.0, 0.0]])
    return explain.Votes(votes, torch.tensor([1.0, 1.0, 0.5]), coupling, mean, variance, torch.tensor([0.2, 0.8]))


def test_votes_have_a_column_an_iteration_and_are_as_large_as_their_responsibility():
    from matplotlib.collections import PathCollection

    figure = explain.draw_votes([two_clusters()], ["cat"])
    axes: list[Any] = figure.axes
    assert [each.get_title(loc="left") for each in axes] == [
        "iteration 1: activation 0.20",
        "iteration 2: activation 0.80",
    ]
    dots = [next(x for x in each.collections if isinstance(x, PathCollection)) for each in axes]
    first, last = (np.asarray(each.get_sizes()) for each in dots)
    np.testing.assert_allclose(first / last[0], [0.5, 0.5, 0.5])
    np.testing.assert_allclose(last / last[0], [1, 1, 0])
    for each in dots:  # the plane is that of the last iteration: its centre is (3, 4), its first axis (1, 0)
        np.testing.assert_allclose(np.asarray(each.get_offsets()), [[1, 0], [-1, 0], [-6, -8]], atol=1e-6)
    ellipse, cross = axes[1].lines
    np.testing.assert_allclose([cross.get_xdata()[0], cross.get_ydata()[0]], [0, 0], atol=1e-6)
    assert [max(ellipse.get_xdata()), max(ellipse.get_ydata())] == pytest.approx([2, 0], abs=1e-2)
    assert [max(x) for x in axes[0].lines[0].get_data()] == pytest.approx([-2 + 3, -8 / 3 + 14**0.5], abs=1e-2)


def test_votes_of_several_classes_have_rows_of_one_scale():
    votes = two_clusters()
    figure = explain.draw_votes([votes, votes._replace(votes=2 * votes.votes)], ["cat", 30 * "dog"])
    assert f"votes for {7 * 'dog'}…\n" in figure.axes[2].get_ylabel()
    axes: list[Any] = figure.axes
    assert len(axes) == 4
    assert len({each.get_xlim() for each in axes}) == 1
    assert axes[2].get_ylabel().startswith("votes for dog")
    first = {name: getattr(votes, name)[:1] for name in ("coupling", "mean", "variance", "scores")}
    with pytest.raises(ValueError, match=r"got 2 of \[1, 2\] iterations and 2 names"):
        explain.draw_votes([votes, votes._replace(**first)], ["cat", "dog"])
    with pytest.raises(ValueError, match=r"votes.mean must be \[r, D\] with r=1 as in votes.coupling"):
        explain.draw_votes([votes._replace(coupling=votes.coupling[:1])], ["cat"])
    with pytest.raises(ValueError, match=r"got 1 of \[2\] iterations and 2 names"):
        explain.draw_votes([votes], ["cat", "dog"])
    with pytest.raises(ValueError, match=r"votes must be Sequence\[Votes\], got Votes"):
        explain.draw_votes(votes, ["cat"])


def test_views_are_lines_over_azimuth_with_the_object_above():
    activation, moves = torch.rand(2, 3, 4), torch.randn(2, 3, 1)
    activation[1, 2], moves[1, 2] = float("nan"), float("nan")
    pose = torch.tensor([0.6, 0.8]) * moves + 5
    angles = torch.tensor([30, 35]), torch.tensor([0, 20, 60])
    found = explain.Views(1, *angles, activation, pose)
    images = torch.rand(5, 1, 6, 6)
    elevation, azimuth = torch.tensor([30, 30, 30, 35, 35]), torch.tensor([0, 20, 60, 20, 0])
    trained = torch.tensor([[True, False, False], [True, False, True]])
    axes: list[Any] = explain.draw_views(found, images, elevation, azimuth, "dog", trained).axes
    strip, first, second, third = axes
    assert [label.get_text() for label in strip.get_yticklabels()] == ["from 30°", "from 35°"]
    assert len(strip.images) == 5
    np.testing.assert_allclose(picture(strip)[..., 0], images[0, 0])
    assert strip.images[4].get_extent() == pytest.approx([10.4, 29.6, 1.02, 1.98])
    np.testing.assert_allclose(strip.images[4].get_array()[..., 0], images[3, 0])
    np.testing.assert_allclose(first.lines[1].get_ydata(), activation[1, :, 1])
    assert first.lines[1].get_markevery() == [0, 2]
    others = activation[:, :, [0, 2, 3]].amax(dim=2)
    expected = [*others[:, :2].mean(dim=0).tolist(), float(others[0, 2])]
    np.testing.assert_allclose(first.lines[2].get_ydata(), expected, rtol=1e-6)
    assert second.get_title(loc="left") == "Its pose along the 1st axis (100 % of its variance)"
    np.testing.assert_allclose(second.lines[0].get_ydata(), moves[0, :, 0] - moves.nanmean(), atol=1e-5)
    np.testing.assert_allclose(third.lines[0].get_ydata(), 0, atol=1e-5)
    with pytest.raises(ValueError, match=r"trained must be \[E, A\]"):
        explain.draw_views(found, images, elevation, azimuth, "dog", trained[:1])


def test_segmentation_is_red_and_green():
    parts = torch.rand(2, 2, 1, 4, 5)
    labels, predicted = torch.tensor([[0, 1], [1, 2]]), torch.tensor([[0, 1], [0, 2]])
    found = explain.Segmentation(parts.sum(dim=1).clamp_max(1), labels, parts, predicted, parts / 2)
    figure = explain.draw_segmentation(found, NAMES)
    grid = np.array(figure.axes).reshape(3, 2)
    assert [axes.get_title() for axes in grid[0]] == ["✓", "✗"]
    np.testing.assert_allclose(picture(grid[2, 1])[..., 0], parts[1, 0, 0] / 2)
    np.testing.assert_allclose(picture(grid[2, 1])[..., 1], parts[1, 1, 0] / 2)
    assert not picture(grid[2, 1])[..., 2].any()
    assert [(text.get_text(), text.get_color()) for text in grid[2, 1].texts] == [
        ("cat", explain.FIRST),
        ("hippopota…", explain.SECOND),
    ]


def test_models_of_bfloat16_are_drawn():
    model, images = build("capsnet_small", (1, 28, 28), 10).bfloat16(), torch.rand(2, 1, 28, 28).bfloat16()
    names, labels = [str(k) for k in range(10)], torch.tensor([1, 2])
    explain.draw_couplings(images[0], explain.coupling_maps(model, images[:1]), names)
    matrices = build("matrix_capsnet_small", (1, 28, 28), 10).bfloat16()
    explain.draw_parts(images, explain.part_maps(matrices, images), labels, names)
    explain.draw_votes([explain.class_votes(matrices, images[0], 1)], ["1"])
    found = explain.segment(model, images, labels[:, None] - torch.tensor([0, 1]), torch.rand(2, 2, 1, 28, 28))
    explain.draw_segmentation(found, names)
    values = torch.rand(2, 3, 4).bfloat16()
    views = explain.Views(1, torch.tensor([30, 35]), torch.tensor([0, 20, 60]), values, values)
    angles = torch.tensor([30, 30, 30, 35, 35]), torch.tensor([0, 20, 60, 20, 0])
    explain.draw_views(views, torch.rand(5, 1, 6, 6), *angles, "dog")


def test_nothing_but_drawing_needs_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="drawing needs matplotlib"):
        explain.draw_confusion(torch.eye(2, dtype=torch.int64), ("a", "b"))
