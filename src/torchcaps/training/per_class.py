"""What an error hides: how many images each class has, how many are recognized, and how sure the network is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from torchcaps.training.probabilities import area_under_roc, calibration_error, confidences

#: Classes that are named one by one; of more only the range is given.
_FEW = 10
#: Classes count as unequal from this ratio of their images.
_UNEQUAL = 2
#: What the splits are for.
_TASKS = {"train": "to train", "val": "to validate", "test": "to test"}


def count_classes(labels: Tensor, classes: Sequence[str]) -> dict[str, int]:
    """Count the images of each class, by labels ``[N]``, or ``[N, J]`` where images have several."""
    if labels.dim() == 2:
        return dict(zip(classes, labels.sum(dim=0).tolist(), strict=True))
    return dict(zip(classes, torch.bincount(labels.cpu(), minlength=len(classes)).tolist(), strict=True))


def class_scores(labels: Tensor, predicted: Tensor, classes: Sequence[str]) -> dict[str, Any]:
    """Compute recall and precision of each class, and the balanced error.

    Args:
        labels: ``[N]``.
        predicted: ``[N]``, the classes that the images were taken for.
        classes: their names.

    Returns:
        ``recall``: by class the share of its images that were recognized, None where it has no image; ``precision``: by
        class the share of the images predicted as it that show it, None where it was never predicted;
        ``error_balanced``: 1 minus the mean recall (the balanced accuracy), the error if all classes had as many
        images.
    """
    right = count_classes(labels[labels == predicted], classes)
    recall = _shares(right, count_classes(labels, classes))
    known = [value for value in recall.values() if value is not None]
    precision = _shares(right, count_classes(predicted, classes))
    return {"recall": recall, "precision": precision, "error_balanced": 1 - sum(known) / len(known)}


def _shares(part: Mapping[str, int], whole: Mapping[str, int]) -> dict[str, float | None]:
    """Divide counts class by class; None where there is nothing to divide by."""
    return {name: part[name] / n if n else None for name, n in whole.items()}


def label_scores(labels: Tensor, wrong: Tensor, classes: Sequence[str]) -> dict[str, Any]:
    """Compute recall, precision and F1 of each label, where images have several.

    Args:
        labels: ``[N, J]`` bool.
        wrong: ``[N, J]`` bool, which were missed or predicted where they are not.
        classes: their names.

    Returns:
        ``recall`` and ``precision``: by class, None where it has no image or was never predicted; ``f1``: the mean over
        the classes that have an image of 2 · right / (true + predicted).
    """
    predicted = labels ^ wrong
    right, true, said = (count_classes(x, classes) for x in (labels & predicted, labels, predicted))
    known = [2 * right[name] / (true[name] + said[name]) for name in classes if true[name]]
    return {
        "recall": _shares(right, true),
        "precision": _shares(right, said),
        "f1": sum(known) / len(known) if known else None,
    }


def are_unequal(counts: Mapping[str, int]) -> bool:
    """Return whether the largest class has more than twice the images of the smallest."""
    return max(counts.values()) > _UNEQUAL * min(counts.values())


def balanced_in_words(scores: Mapping[str, Any], counts: Mapping[str, int]) -> str:
    """Say the balanced error and the class that fares worst, where classes are unequal.

    Args:
        scores: as :func:`class_scores` gives them; older results lack them, and nothing is said.
        counts: images of each class.
    """
    if scores.get("f1") is not None:
        return f" (images with a label missed or too many; mean F1 of the labels {scores['f1']:.3f})"
    if "error_balanced" not in scores or not are_unequal(counts):
        return ""
    known = {name: value for name, value in scores["recall"].items() if value is not None}
    worst = min(known, key=lambda name: known[name])
    n = counts[worst]
    said = f"of class {worst} {round(known[worst] * n)} of {n} recognized"
    missing = [name for name, value in scores["recall"].items() if value is None]
    if missing:
        said += f"; no image of {', '.join(missing)}"
    return f" (balanced over the classes {scores['error_balanced']:.2%}; {said})"


def probability_scores(labels: Tensor, probabilities: Tensor, classes: Sequence[str]) -> dict[str, Any]:
    """Compute the area under the ROC curve, and the calibration error.

    Args:
        labels: ``[N]``, or ``[N, J]`` bool where images have several.
        probabilities: ``[N, J]``.
        classes: their names.

    Returns:
        ``auc`` by class and ``auc_macro``, as :func:`~torchcaps.training.probabilities.area_under_roc` gives them;
        ``ece``, as :func:`~torchcaps.training.probabilities.calibration_error` does.
    """
    there = labels if labels.dim() == 2 else F.one_hot(labels, len(classes)).bool()
    calibration = calibration_error(*confidences(labels, probabilities))
    return {**area_under_roc(there, probabilities, classes), "ece": calibration}


#: What :func:`scores_of` takes from a result.
_SCORES = ("recall", "precision", "error_balanced", "f1", "auc", "auc_macro", "ece")


def scores_of(result: Mapping[str, Any], split: str) -> dict[str, Any]:
    """Take what a result has of the classes of a split; older results have less."""
    return {name: result[f"{split}_{name}"] for name in _SCORES if result.get(f"{split}_{name}") is not None}


def as_lines(scores: Mapping[str, Any], counts: Mapping[str, int]) -> list[str]:
    """Lay out recall, precision and AUC of each class as a table, and their means below; nothing of older results.

    Args:
        scores: as :func:`class_scores` or :func:`label_scores`, and :func:`probability_scores` give them.
        counts: images of each class. Of more than ten classes those with the lowest recall are shown.
    """
    if not {"recall", "precision", "auc"} <= scores.keys():
        return []
    recall = scores["recall"]
    shown = list(counts)
    if len(shown) > _FEW:
        known = [name for name in shown if recall[name] is not None]
        shown = sorted(known, key=lambda name: recall[name])[:_FEW]
    rows = [("class", "images", "recall", "precision", "AUC")]
    rows += [(name, f"{counts[name]:,}", *numbers_of(scores, name)) for name in shown]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join((name.ljust(widths[0]), *(cell.rjust(n) for cell, n in zip(cells, widths[1:], strict=True))))
        for name, *cells in rows
    ]
    if len(shown) < len(counts):
        lines.append(f"these {len(shown)} of {len(counts)} classes have the lowest recall")
    return [*lines, means_in_words(scores)]


def lines_of(result: Mapping[str, Any], split: str) -> list[str]:
    """:func:`as_lines` of a split of a result, where classes are unequal or images have several labels."""
    scores, counts = scores_of(result, split), result.get("images_per_class", {}).get(split)
    shown = counts and ("f1" in scores or are_unequal(counts))
    return [f"{split}:", *as_lines(scores, counts)] if shown and "auc" in scores else []


def numbers_of(scores: Mapping[str, Any], name: str) -> tuple[str, str, str]:
    """Write recall, precision and AUC of a class; "–" for one that is undefined."""
    recall, precision, auc = (scores[kind][name] for kind in ("recall", "precision", "auc"))
    recall, precision = ("–" if value is None else f"{100 * value:.1f}%" for value in (recall, precision))
    return recall, precision, "–" if auc is None else f"{auc:.3f}"


def means_in_words(scores: Mapping[str, Any]) -> str:
    """Say the balanced accuracy, the mean AUC and the calibration error, and which are undefined."""
    said = []
    if "error_balanced" in scores:
        said.append(f"balanced accuracy {1 - scores['error_balanced']:.2%}")
    auc = scores.get("auc_macro")
    said.append("AUC undefined (no class has images with and without it)" if auc is None else f"mean AUC {auc:.3f}")
    calibration = scores.get("ece")
    return ", ".join(said) + ("" if calibration is None else f", calibration error {calibration:.2%}")


def error_words(result: Mapping[str, Any], split: str) -> str:
    """:func:`balanced_in_words` of a split of a result."""
    counts = result.get("images_per_class", {}).get(split)
    return balanced_in_words(scores_of(result, split), counts) if counts else ""


def split_in_words(result: Mapping[str, Any]) -> str:
    """Say how many images of each class train, validate and test.

    It says so where somebody's own folder was split or classes are unequal; else nothing.
    """
    counts = result.get("images_per_class", {})
    shown = [split for split in _TASKS if split in counts]
    own = result["config"]["data"]["name"] == "folder"
    if not shown or not (own or any(are_unequal(counts[split]) for split in shown)):
        return ""
    names = list(counts[shown[0]])
    if len(names) <= _FEW:
        each = "; ".join(f"{name} {', '.join(str(counts[split][name]) for split in shown)}" for name in names)
    else:
        spans = [f"{min(counts[split].values())} to {max(counts[split].values())}" for split in shown]
        each = f"{', '.join(spans)} ({len(names)} classes)"
    *first, last = (_TASKS[split] for split in shown)
    return f"images of each class {', '.join(first)} and {last}: {each}"
