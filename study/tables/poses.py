"""How the poses of auto-encoders follow the image, as Markdown: what they make no errors in, as no one told them."""

from __future__ import annotations

import inspect
import statistics
from collections.abc import Mapping, Sequence

from study.markdown import markdown_table
from study.recipes import RECIPES
from study.tables.table import Result

_SHIFT, _SCALE = ("shift x", "shift y"), ("scale x", "scale y")
HEAD = (
    "slope of shift",
    "R² of shift",
    "R² of rotation",
    "R² of scale",
    "R² of shear",
    "slope of shift, one capsule",
    "R² of shift, one capsule",
    "error told T",
    "minutes",
)
_TEXT = """## Poses without labels

Hinton et al. 2011. Of each test image two copies are shown, each transformed at random; from the poses found in both,
A(Tx)·A(x)⁻¹ of all capsules together says what leads from one to the other. R² is 1 − Σ(said − true)² /
Σ(true − mean)², of shift and scale the mean over x and y. "One capsule": the lowest … the highest of those that are
active, each asked alone. "Error told T": squared error of what is painted for (x, T) against what is painted for
(T x, identity), as a share of that error when the network is not told T. Nine free numbers need not
make a matrix that has an inverse: hence R² far below 0. All but `mnist-translation` and `mnist-affine` were trained,
besides, to make the poses of a transformed image the transformed poses, which is what R² measures. With few labels:
[claims.md](claims.md#poses-without-labels).
"""


def cells(result: Result) -> list[str]:
    """What a row of the table says of one run of :func:`~torchcaps.training.pose_metrics.following`, under HEAD."""
    found, alone = result["test_follows"], result["test_capsules"]

    def mean(key: str, *names: str) -> str:
        return f"{statistics.mean(found[name][key] for name in names):.2f}" if names[0] in found else "–"

    def ends(key: str) -> str:
        if not alone["active"] or _SHIFT[0] not in alone:
            return "–"
        every = [value for name in _SHIFT for value in alone[name][key]]
        return f"{min(every):.2f} … {max(every):.2f}"

    r2 = [mean("r2", *names) for names in (_SHIFT, ("rotation",), _SCALE, ("shear",))]
    told = "–" if result["test_consistency"] is None else f"{100 * result['test_consistency']:.0f} %"
    minutes = f"{result['seconds'] / 60:.0f}"
    return [mean("slope", *_SHIFT), *r2, ends("slope"), ends("r2"), told, minutes]


def poses_as_markdown(results: Mapping[str, Sequence[Result]]) -> str:
    """The table of all kept runs whose poses were compared with what was done to the images."""
    rows = [
        [f"`{recipe}`", (inspect.getdoc(RECIPES[recipe]) or "").splitlines()[0], str(run["epochs"]), *cells(run)]
        for recipe, runs in results.items()
        for run in runs
        if "test_follows" in run
    ]
    return "\n".join([_TEXT, *markdown_table(("recipe", "what", "epochs", *HEAD), rows)]) + "\n"
