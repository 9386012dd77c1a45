"""Length and pose as an image is turned, shifted, scaled, thickened.

Sabour et al. 2017, section 1: the length of a class capsule is to stay while its pose follows the viewpoint.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from study.analysis import pose_follows, responses
from study.data.transform import NEUTRAL, TRANSFORMATIONS
from study.draw.charts import Bars, Lines, draw_charts
from study.measures.said import Said
from study.measures.sample import bar, name_of, networks, number, numbers, sample
from torchcaps import explain
from torchcaps.report import EvaluatedRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Values of each parameter; of a whole turn only the middle is probed, for it ends where it began.
VALUES: dict[str, tuple[float, ...]] = {
    "rotate": tuple(range(-180, 181, 15)),
    "shift": tuple(range(-6, 7, 2)),
    "scale": tuple(k / 10 for k in range(6, 15)),
    "thicken": tuple(k / 4 for k in range(-2, 5)),
}
PROBED = {"rotate": (-45, 45), "shift": (-6, 6), "scale": (0.6, 1.4), "thicken": (-0.5, 1)}
UNITS = {"rotate": "degrees", "shift": "pixels to the right", "scale": "factor", "thicken": "pixels"}
N_IMAGES = 500
#: Principal components at which networks compare, where the run has no pose to take their number from.
N_COMPONENTS = 16


def measure(tested: EvaluatedRun, *, beside: EvaluatedRun | None = None, n: int | None = None) -> dict[str, Any]:
    """Show both networks the same images at every value of every parameter.

    Args:
        tested: the run.
        beside: another on the same data, such as a CNN.
        n: test images; :data:`N_IMAGES` by default.

    Returns:
        For "run" and "beside", by parameter: its ``values``; mean ``confidence`` in the true class and ``accuracy``
        at each; means over classes of R² of a probe, by what it sees: ``pose``, its ``change`` from the image as it
        is, and both reduced to ``n_components``. None where no class has enough images.

    Raises:
        ValueError: a run on pairs, or runs on different images.
    """
    every = networks(tested, beside)
    images, labels = sample(tested, n, N_IMAGES)
    features = explain.extract_features(tested.model, images[:1]).features
    n_components = features.shape[2] if features.dim() == 3 else N_COMPONENTS
    values: dict[str, Any] = {"n": len(images), "n_components": n_components}
    for part, each in every.items():
        values[part] = {}
        for name, transform in TRANSFORMATIONS.items():
            steps = bar(VALUES[name], f"{name_of(each)}: {name}")
            found = responses(each.model, images, labels, transform, steps, neutral=NEUTRAL[name])
            probed = found.within(*PROBED[name])
            values[part][name] = {
                "values": list(VALUES[name]),
                "confidence": numbers(found.confidence.mean(dim=1)),
                "accuracy": numbers(found.right.float().mean(dim=1)),
                "r2": {
                    what + suffix: number(pose_follows(probed, change=change, n_components=k).nanmean())
                    for what, change in (("pose", False), ("change", True))
                    for suffix, k in (("", None), ("_reduced", n_components))
                },
            }
    return values


def headline(values: dict[str, Any], part: str) -> dict[str, Said]:
    """What to read first: R² over the probed range, and accuracy at its ends."""
    made = {}
    for name, (low, high) in PROBED.items():
        found = values[part][name]
        probed = [k for k, x in enumerate(found["values"]) if low <= x <= high]
        ends = [(found["values"][k], found["accuracy"][k]) for k in (probed[0], probed[-1])]
        for what, of in (("pose", ""), ("change", " of the change")):
            for suffix, which in (("_reduced", f"{values['n_components']} components"), ("", "all features")):
                made[f"{name}: R² of a probe{of}, {which}"] = Said("{:.2f}", (found["r2"][what + suffix],))
        text = ", ".join(f"{{:.1%}} at {x}" for x, _ in ends)
        made[f"{name}: accuracy at the ends, {UNITS[name]}"] = Said(text, tuple(read for _, read in ends))
    return made


def draw(values: dict[str, Any], tested: EvaluatedRun, beside: EvaluatedRun | None = None) -> Figure:
    """Curves of confidence over each parameter, then bars of R²."""
    every = networks(tested, beside)
    charts: list[Lines | Bars] = []
    for name, x in VALUES.items():
        lines = {name_of(each): values[part][name]["confidence"] for part, each in every.items()}
        charts.append(Lines(f"{name}: confidence in the true class", UNITS[name], x, lines))
    for what, title in (("pose", "features"), ("change", "their change")):
        for suffix, of in (("", "all"), ("_reduced", f"{values['n_components']} components")):
            bars = {
                name_of(each): [values[part][name]["r2"][what + suffix] for name in VALUES]
                for part, each in every.items()
            }
            charts.append(Bars(f"R² from {title}, {of}", tuple(VALUES), bars))
    return draw_charts(charts)
