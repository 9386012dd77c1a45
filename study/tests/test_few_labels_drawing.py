"""The figure of few labels shows the numbers that it is given."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("matplotlib")

from study.draw.few_labels import draw_few_labels


def test_errors_are_per_cent_over_numbers_of_labels() -> None:
    errors = {n: {"val_error": 0.9, "test_error": e, "test_std": None} for n, e in (("10", 0.5), ("25", 0.25))}
    axes: Any = draw_few_labels([{"code": "a", "readout": "b", "errors": errors}]).axes[0]
    assert list(axes.lines[0].get_xdata()) == [10, 25] and list(axes.lines[0].get_ydata()) == [50, 25]


def test_no_error_at_all_is_drawn_too() -> None:
    errors = {"10": {"test_error": 0.01, "test_std": None}, "100": {"test_error": 0.0, "test_std": None}}
    axes: Any = draw_few_labels([{"code": "a", "readout": "b", "errors": errors}]).axes[0]
    assert list(axes.lines[0].get_ydata()) == [1, 0.1] and axes.get_ylim()[0] < 0.1


def test_every_code_has_a_colour_of_its_own() -> None:
    errors = {"10": {"test_error": 0.1, "test_std": 0.01}}
    rows = [{"code": f"code {k}", "readout": "b", "errors": errors} for k in range(12)]
    axes: Any = draw_few_labels(rows).axes[0]
    assert len({str(line.get_color()) for line in axes.lines[:12]}) == 12
