"""What an error hides: recall, precision and AUC of each class, and whether confidence is to be believed."""

from __future__ import annotations

from torchcaps import explain
from torchcaps.report import page
from torchcaps.report.evaluated import EvaluatedRun
from torchcaps.report.page import Album
from torchcaps.training.per_class import are_unequal, count_classes, means_in_words, numbers_of
from torchcaps.training.probabilities import as_probabilities, calibration_error, confidences

#: With more classes than this the table is folded, and those with the lowest recall stand above it.
_MANY, _WORST = 20, 10


def class_table(tested: EvaluatedRun) -> str:
    """Show recall, precision and AUC of each class."""
    several = tested.several_labels
    counts = count_classes(tested.labels if several else tested.labels[:, 0], tested.classes)
    scores = tested.scores()
    words = means_in_words(scores).replace("%", " %")
    text = [f"{words[:1].upper()}{words[1:]}."]
    if not several and are_unequal(counts):
        text.append(
            "The classes have unequal numbers of images, so the large ones dominate the error. The balanced accuracy "
            "is the mean recall over the classes that have test images; the balanced error is 100 % minus it."
        )
    thing = "label" if several else "class"
    text.append(
        f"Recall is the share of a {thing}'s images that were recognized. Precision is the share of the images "
        f"predicted as it that show it. AUC is how often an image with the {thing} scores higher than one without; 0.5 "
        "is guessing."
    )
    if any(value is None for kind in ("recall", "precision", "auc") for value in scores[kind].values()):
        text.append(f"– is undefined: no test image has that {thing}, all have it, or it was never predicted.")
    head = (thing, "test images", "recall", "precision", "AUC")
    rows = {
        name: (name, f"{n:,}", *(cell.replace("%", " %") for cell in numbers_of(scores, name)))
        for name, n in counts.items()
    }
    title = "Labels one by one" if several else "Classes one by one"
    if len(rows) <= _MANY:
        return page.section(title, page.paragraph(" ".join(text)), page.table(head, [*rows.values()], numbers=True))
    known = [name for name, value in scores["recall"].items() if value is not None]
    worst = sorted(known, key=lambda name: scores["recall"][name])[:_WORST]
    text.append(f"These {len(worst)} have the lowest recall.")
    every = page.fold(f"All {len(rows)}", page.table(head, [*rows.values()], numbers=True))
    table = page.table(head, [rows[name] for name in worst], numbers=True)
    return page.section(title, page.paragraph(" ".join(text)), table, every)


def calibration(album: Album, tested: EvaluatedRun) -> str:
    """Show whether the network is right as often as it is sure."""
    several = tested.several_labels
    labels = tested.labels if several else tested.labels[:, 0]
    confidence, right = confidences(labels, as_probabilities(tested.probabilities))
    error = calibration_error(confidence, right)
    if error is None:
        return ""
    found = explain.reliability(confidence, right)
    if several:
        figure = explain.draw_reliability(found, "probability", "share of images that have the label")
    else:
        figure = explain.draw_reliability(found)
    return page.section("Calibration", album.add("calibration", figure, _calibration_text(tested, error)))


def _calibration_text(tested: EvaluatedRun, error: float) -> str:
    lengths = tested.has_lengths()
    if tested.several_labels:
        said = "length of its capsule" if lengths else "sigmoid of its logit"
        text = (
            f"The probability of a label is the {said}. On the dashed line as many images have the label as it says. "
            "Every label of every test image counts once."
        )
    elif lengths:
        text = (
            "Confidence is the length (or activation) of the predicted class capsule: the network's probability that "
            "the class is there. Lengths of an image need not sum to 1. On the dashed line the network is right as "
            "often as it is sure."
        )
    else:
        text = (
            "Confidence is the softmax of the predicted class. On the dashed line the network is right as often as it "
            "is sure."
        )
    text += f" The expected calibration error, the mean distance from that line over 15 bins, is {100 * error:.1f} %."
    if lengths and tested.config.loss == "margin":
        text += (
            " The margin loss asks for no more than 0.9 of a class that is there and 0.1 of one that is not, so even a "
            "perfect network lies beside the line."
        )
    return text
