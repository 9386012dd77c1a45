"""The figures show the numbers that they were given."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch

from torchcaps import analysis

pytest.importorskip("matplotlib")

from torchcaps.analysis.draw.canvas import pixels, shortened, tiled

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


def test_curves_show_every_run():
    rows = [{"epoch": k, "lr": 0.1, "train_loss": 2.0 / k, "val_loss": 3.0 / k, "val_error": 0.1 / k} for k in (1, 2)]
    figure = analysis.draw_curves({"one": rows, "two": rows[:1]})
    axes: list[Any] = figure.axes  # matplotlib's types are wider than what it gives
    loss, error, rate = axes
    assert [list(line.get_ydata()) for line in loss.lines[:4]] == [[2.0, 1.0], [3.0, 1.5], [2.0], [3.0]]
    assert [list(line.get_ydata()) for line in error.lines] == [[10.0, 5.0], [10.0]]
    assert [text.get_text() for text in error.get_legend().get_texts()] == ["one (5.00 %)", "two (10.00 %)"]
    assert list(rate.lines[0].get_ydata()) == [0.1, 0.1]
    with pytest.raises(ValueError, match="runs must have at least one row each"):
        analysis.draw_curves({"one": []})


@pytest.mark.parametrize("n", [2, 50])
def test_confusion_is_drawn_for_few_and_many_classes(n):
    matrix = 4 * torch.eye(n, dtype=torch.int64)
    matrix[0, 1] = 3
    figure = analysis.draw_confusion(matrix, [f"class {k}" for k in range(n)])
    colours = picture(figure.axes[0])
    assert colours[1, 0].tolist() == [1, 1, 1]
    assert colours[0, 1, 0] > colours[0, 1, 2]  # red
    assert colours[1, 1, 2] > colours[1, 1, 0]  # blue
    assert f"3 of {4 * n + 3} wrong" in texts(figure)
    assert ("3" in [text.get_text() for text in figure.axes[0].texts]) == (n == 2)
    with pytest.raises(ValueError, match=r"matrix must be \[J, J\] with J=1"):
        analysis.draw_confusion(matrix, ["one"])


def test_reconstructions_mark_right_and_wrong():
    images = torch.rand(2, 1, 4, 6)
    labels, predicted = torch.tensor([0, 1]), torch.tensor([0, 2])
    found = analysis.Reconstructions(images, labels, predicted, images / 2, images / 4)
    figure = analysis.draw_reconstructions(found, NAMES)
    grid = np.array(figure.axes).reshape(3, 2)
    assert [axes.get_title() for axes in grid[0]] == ["✓ cat", "✗ dog\nread as\nhippopot…"]
    np.testing.assert_allclose(picture(grid[1, 0])[..., 0], images[0, 0] / 2)
    np.testing.assert_allclose(picture(grid[2, 1])[..., 0], images[1, 0] / 4)
    assert not grid[2, 0].images  # a right one needs no third picture


def test_only_mistakes_are_shown():
    images, labels = torch.rand(3, 3, 4, 4), torch.tensor([0, 1, 2])
    figure = analysis.draw_mistakes(images, labels, torch.tensor([0, 1, 0]), NAMES)
    assert [axes.get_title() for axes in figure.axes] == ["✗ hippopot…\nread as\ncat"]
    np.testing.assert_allclose(picture(figure.axes[0]), images[2].permute(1, 2, 0))
    assert "no image was taken for another class" in texts(analysis.draw_mistakes(images, labels, labels, NAMES))


def test_perturbations_are_rows_of_dimensions():
    grid = torch.rand(2, 3, 1, 4, 5)
    figure = analysis.draw_perturbations(grid, (-1.0, 0.0, 1.0))
    sheet = picture(figure.axes[0])
    assert sheet.shape == (4 + 1 + 4, 3 * 5 + 2, 3)
    np.testing.assert_allclose(sheet[5:, 6:11, 0], grid[1, 1, 0])
    with pytest.raises(ValueError, match="offsets must be K=3"):
        analysis.draw_perturbations(grid)


def test_the_strongest_dimensions_come_first():
    grids = torch.zeros(1, 4, 2, 1, 3, 3)
    grids[0, 2, 1], grids[0, 0, 1] = 0.9, 0.4
    figure = analysis.draw_strongest(grids, ["cat"], (0.0, 1.0), n=2)
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["3", "1"]
    assert picture(figure.axes[0])[0, -1, 0] == pytest.approx(0.9)
    with pytest.raises(ValueError, match="names must be B=1"):
        analysis.draw_strongest(grids, NAMES, (0.0, 1.0))


def test_couplings_have_a_row_an_iteration_and_a_column_a_class():
    maps = torch.rand(2, 1, 3, 2, 4)
    couplings = analysis.Couplings(maps, torch.tensor([[[0.1, 0.2, 0.3]], [[0.1, 0.2, 0.9]]]), (2.0, 10.0, 6.0, 2.0))
    figure = analysis.draw_couplings(torch.rand(1, 8, 12), couplings, NAMES, n_classes=2)
    grid = np.array(figure.axes[:6]).reshape(2, 3)
    assert [axes.get_title() for axes in grid[0]] == ["input", "dog", "hippopo…"]
    heat = grid[1, 2].images[1]
    np.testing.assert_allclose(np.asarray(heat.get_array())[1:-1, 1:-1], maps[1, 0, 2])
    assert heat.get_extent() == [0.0, 12.0, 8.0, 0.0]  # one place wider on every side
    assert heat.get_clim()[1] == pytest.approx(float(maps[:, :, 1:].max()))
    assert grid[1, 2].get_xlabel() == "0.90"


def test_lines_lead_from_capsules_to_their_parents():
    coupling = torch.tensor([[0.1, 0.8, 0.1], [1 / 3, 1 / 3, 1 / 3]])
    places = torch.tensor([[2.0, 3.0], [4.0, 5.0]])
    tree = analysis.ParseTree(3, places, torch.tensor([0, 0]), torch.ones(2), coupling, torch.tensor([0.1, 0.9, 0.2]))
    figure = analysis.draw_parse_tree(torch.rand(3, 8, 8), [tree], NAMES, [1])
    drawn: list[Any] = list(figure.axes[0].lines)
    lines = [line for line in drawn if len(line.get_xdata()) == 2]
    assert [(line.get_xdata()[0], line.get_ydata()[0]) for line in lines] == [(3, 2), (5, 4), (5, 4), (5, 4)]
    assert lines[0].get_color() == analysis.HIGHLIGHT[0]
    assert lines[0].get_ydata()[1] == pytest.approx(lines[2].get_ydata()[1])  # both end at the dog
    assert lines[0].get_alpha() > lines[1].get_alpha()


def test_segmentation_is_red_and_green():
    parts = torch.rand(2, 2, 1, 4, 5)
    labels, predicted = torch.tensor([[0, 1], [1, 2]]), torch.tensor([[0, 1], [0, 2]])
    found = analysis.Segmentation(parts.sum(dim=1).clamp_max(1), labels, parts, predicted, parts / 2)
    figure = analysis.draw_segmentation(found, NAMES)
    grid = np.array(figure.axes).reshape(3, 2)
    assert [axes.get_title() for axes in grid[0]] == ["✓", "✗"]
    np.testing.assert_allclose(picture(grid[2, 1])[..., 0], parts[1, 0, 0] / 2)
    np.testing.assert_allclose(picture(grid[2, 1])[..., 1], parts[1, 1, 0] / 2)
    assert not picture(grid[2, 1])[..., 2].any()
    assert [(text.get_text(), text.get_color()) for text in grid[2, 1].texts] == [
        ("cat", analysis.FIRST),
        ("hippopota…", analysis.SECOND),
    ]


def test_nothing_but_drawing_needs_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="drawing needs matplotlib"):
        analysis.draw_confusion(torch.eye(2, dtype=torch.int64), ("a", "b"))
