"""Adversarial images: accuracy and success against ε, white box, by transfer, and a check for masked gradients.

Hinton, Sabour, Frosst 2018, section 5.2: capsules are far more resistant in the white-box case than a CNN, and no
better on images that were made against a CNN.
"""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from study.analysis import (
    accuracy_under_attack,
    bim,
    cross_entropy,
    fgsm,
    margin_gap,
    pgd,
    random_targets,
    robust_accuracy,
    zero_gradients,
)
from study.draw.charts import Lines, draw_charts
from study.measures.said import Said, per_cent
from study.measures.sample import bar, name_of, networks, number, numbers, sample
from torchcaps.report import EvaluatedRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EPSILONS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4)
#: Of the check, which costs most.
CHECKED = (0.02, 0.05, 0.1, 0.2, 0.3)
#: Where protocols.md judges the claim.
JUDGED = 0.1
#: How much less the check may leave than BIM, and how many images may have no gradient: beyond, curves are masked.
MASKED_BY, WITHOUT_GRADIENT = 0.1, 0.01
N_IMAGES = 100


def measure(tested: EvaluatedRun, *, beside: EvaluatedRun | None = None, n: int | None = None) -> dict[str, Any]:
    """Attack both networks, and show the first one what was made against the other.

    Args:
        tested: the run.
        beside: another on the same data, such as a CNN.
        n: test images; :data:`N_IMAGES` by default.

    Returns:
        ``epsilons`` and ``checked``; for "run" and "beside" ``fgsm`` and ``bim``, each with ``accuracy`` (untargeted)
        and ``success`` (targeted) at every ε, under that of two losses which fools an image; the ``robust`` accuracy
        at those checked, the share of ``zero_gradients``, and whether the curves are ``masked``; ``transferred``:
        accuracies of "run" on images made against "beside".

    Raises:
        ValueError: a run on pairs, or runs on different images.
    """
    every = networks(tested, beside)
    images, labels = sample(tested, n, N_IMAGES)
    targets = random_targets(labels, len(tested.classes))
    # Cross-entropy over lengths pushes all classes down to raise one, and is flat for a CNN that is sure of itself.
    losses = (cross_entropy, margin_gap)
    weak = {
        name: tuple(partial(attack, loss=loss) for loss in losses) for name, attack in (("fgsm", fgsm), ("bim", bim))
    }
    strong = [*chain(*weak.values()), *(partial(pgd, loss=loss, seed=k) for k, loss in enumerate(losses))]
    values: dict[str, Any] = {"n": len(images), "epsilons": list(EPSILONS), "checked": list(CHECKED)}
    for part, each in every.items():
        stuck = zero_gradients(each.model, images, labels, losses)
        found: dict[str, Any] = {"zero_gradients": number(stuck)}
        for name, attack in weak.items():
            epsilons = bar(EPSILONS, f"{name_of(each)}: {name}")
            raised = accuracy_under_attack(each.model, images, labels, epsilons, attack)
            epsilons = bar(EPSILONS, f"{name_of(each)}: {name}, targeted")
            aimed = accuracy_under_attack(each.model, images, labels, epsilons, attack, targets=targets)
            assert aimed.success is not None
            found[name] = {"accuracy": numbers(raised.accuracy), "success": numbers(aimed.success)}
        checked = bar(CHECKED, f"{name_of(each)}: 40 steps with restarts")
        found["robust"] = numbers(robust_accuracy(each.model, images, labels, checked, strong).accuracy)
        found["masked"] = _masked(found)
        values[part] = found
    if beside is not None:
        values["transferred"] = {
            name: numbers(
                accuracy_under_attack(
                    tested.model, images, labels, bar(EPSILONS, f"transfer: {name}"), attack, source=beside.model
                ).accuracy
            )
            for name, attack in weak.items()
        }
    return values


def _masked(found: dict[str, Any]) -> bool:
    """Whether the white-box curves flatter the network, by the protocol's rule."""
    bim = dict(zip(EPSILONS, found["bim"]["accuracy"], strict=True))
    gaps = [bim[at] - left for at, left in zip(CHECKED, found["robust"], strict=True)]
    # Rounded: shares of images that lie just 10 points apart differ by more or less than 0.1 in binary.
    return round(max(gaps), 6) > MASKED_BY or found["zero_gradients"] > WITHOUT_GRADIENT


def headline(values: dict[str, Any], part: str) -> dict[str, Said]:
    """What to read first: at the ε that is judged."""
    found, at = values[part], JUDGED
    k = values["epsilons"].index(at)
    made = {
        "unchanged images: accuracy": per_cent(found["fgsm"]["accuracy"][0]),
        f"FGSM, ε = {at}: accuracy": per_cent(found["fgsm"]["accuracy"][k]),
        f"BIM, ε = {at}: accuracy": per_cent(found["bim"]["accuracy"][k]),
        f"the strongest of all attacks, ε = {at}: accuracy": per_cent(found["robust"][values["checked"].index(at)]),
        "images without a gradient": per_cent(found["zero_gradients"]),
    }
    if "masked" in found:
        made["curves masked, by the protocol"] = Said("yes" if found["masked"] else "no")
    if part == "run" and "transferred" in values:
        made[f"on images made against the other (BIM), ε = {at}: accuracy"] = per_cent(values["transferred"]["bim"][k])
    return made


def draw(values: dict[str, Any], tested: EvaluatedRun, beside: EvaluatedRun | None = None) -> Figure:
    """Curves against ε: untargeted, targeted, transferred, and the check."""
    every = networks(tested, beside)
    titles = {"fgsm": "FGSM", "bim": "BIM"}
    x = "ε, pixels in 0 … 1"

    def lines(attack: str, what: str) -> dict[str, Any]:
        return {name_of(each): values[part][attack][what] for part, each in every.items()}

    charts = [Lines(f"{titles[a]}: accuracy", x, values["epsilons"], lines(a, "accuracy")) for a in titles]
    robust = {name_of(each): values[part]["robust"] for part, each in every.items()}
    charts.append(Lines("Under the strongest of all: accuracy", x, values["checked"], robust))
    charts += [Lines(f"{titles[a]}: success, targeted", x, values["epsilons"], lines(a, "success")) for a in titles]
    if beside is not None:
        moved = {f"{titles[a]}, from {name_of(beside)}": y for a, y in values["transferred"].items()}
        charts.append(Lines("Black box: accuracy", x, values["epsilons"], moved))
    return draw_charts(charts)
