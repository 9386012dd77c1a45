"""Charts and examples show the numbers that they were given."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("matplotlib")

from study.draw.charts import Bars, Lines, draw_charts
from study.draw.examples import draw_examples


def test_one_name_has_one_colour_in_all_charts():
    lines = Lines("accuracy", "ε", [0.0, 0.1], {"caps": [1.0, 0.5], "cnn": [0.9, None]})
    bars = Bars("R²", ["rotate", "scale"], {"cnn": [0.25, None], "pixels": [-0.5, 0.75]})
    figure = draw_charts([lines, bars])
    first, second = list[Any](figure.axes)
    assert list(first.lines[0].get_ydata()) == [1.0, 0.5] and np.isnan(first.lines[1].get_ydata()[1])
    heights = [bar.get_height() for bar in second.patches]
    assert heights[0] == 0.25 and heights[2:] == [-0.5, 0.75] and np.isnan(heights[1])
    assert [text.get_text() for text in second.texts] == ["0.25", "-0.50", "0.75"]
    from matplotlib.colors import to_hex

    assert to_hex(second.patches[0].get_facecolor()) == first.lines[1].get_color()
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["caps", "cnn", "pixels"]
    assert [label.get_text() for label in second.get_xticklabels()] == ["rotate", "scale"]


def test_charts_stand_in_rows_of_three():
    figure = draw_charts([Bars(f"{k}", ["a"], {"x": [1.0]}) for k in range(4)])
    assert [axes.get_visible() for axes in figure.axes] == [True] * 4 + [False] * 2


def test_examples_are_rows_of_pictures_with_notes():
    images = torch.rand(2, 3, 1, 4, 5)
    figure = draw_examples(images, ["as it is", "halves", "tiles"], [["a", "b", "c"], ["d", "e", "f\ng"]])
    grid: Any = np.array(figure.axes).reshape(2, 3)
    assert [axes.get_title() for axes in grid[0]] == ["as it is", "halves", "tiles"]
    assert grid[1, 2].get_xlabel() == "f\ng" and grid[1, 0].get_title() == ""
    np.testing.assert_allclose(np.asarray(grid[1, 1].images[0].get_array())[..., 0], images[1, 1, 0])


def test_what_does_not_fit_is_named():
    with pytest.raises(ValueError, match="charts must hold at least one, got none"):
        draw_charts([])
    with pytest.raises(ValueError, match="cnn must have 2 values in 'accuracy', got 1"):
        draw_charts([Lines("accuracy", "ε", [0.0, 0.1], {"cnn": [1.0]})])
    with pytest.raises(ValueError, match=r"columns and notes must be for R=1, K=2 pictures, got \(1, 1, 2\)"):
        draw_examples(torch.rand(1, 2, 1, 4, 4), ["a", "b"], [["x"]])
