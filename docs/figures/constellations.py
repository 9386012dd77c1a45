"""Sets of points, coloured by the capsule that explains them: `python docs/figures/constellations.py`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from drawing import HERE, recorded, save

from torchcaps.explain.canvas import INK, LINES, SERIES, TEXT, bare, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: A corner of each object and the next one, along its outline.
OUTLINES = ((0, 1), (1, 2), (2, 3), (3, 0)), ((0, 1), (1, 2), (2, 0))


def best_seed() -> dict[str, Any]:
    """Return what is recorded of the seed that the held-out likelihood chose."""
    return max(recorded("checks", "constellations")["seeds"], key=lambda row: row["held_out_nats"])


def draw_sets(sets: list[dict[str, Any]]) -> Figure:
    """Draw the true outlines in grey, and each point in the colour of its capsule."""
    figure = new_figure(8.0, 4.1)
    panels: Any = figure.subplots(2, len(sets) // 2)
    for axes, each in zip(panels.flat, sets, strict=True):
        wrong = _outlines(axes, each)
        for (x, y), capsule in zip(each["points"], each["capsule"], strict=True):
            axes.plot(x, y, "o", color=SERIES[capsule], markersize=5, zorder=3)
        axes.set(xlim=(-1.05, 1.05), ylim=(-1.05, 1.05), aspect="equal")
        axes.set_title(wrong, fontsize=TEXT, color=INK)
        bare(axes)
    return figure


def _outlines(axes: Any, each: dict[str, Any]) -> str:
    """Draw the objects; say how many of them have a capsule of their own."""
    whole, kinds = 0, sorted(set(each["object"]))
    for kind in kinds:
        rows = [i for i, owner in enumerate(each["object"]) if owner == kind]
        for pair in OUTLINES[len(rows) == 3]:
            x, y = zip(*(each["points"][rows[i]] for i in pair), strict=True)
            axes.plot(x, y, color=LINES, linewidth=1, zorder=1)
        capsules = {each["capsule"][i] for i in rows}
        others = {capsule for i, capsule in enumerate(each["capsule"]) if i not in rows}
        whole += len(capsules) == 1 and not capsules & others
    return f"{whole} of {len(kinds)} objects"


def make(folder: Path = HERE) -> list[Path]:
    """Make the picture."""
    return [save(draw_sets(best_seed()["sets"]), "constellations", folder)]


if __name__ == "__main__":
    for path in make():
        print(path)
