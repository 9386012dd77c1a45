"""What an error hides where classes are unequal: how many images each class has, and how many are recognized."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

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


def recalls(labels: Tensor, wrong: Tensor, classes: Sequence[str]) -> dict[str, Any]:
    """Return the recall of each class, and the balanced error.

    Args:
        labels: ``[N]``.
        wrong: ``[N]`` bool, which were taken for another class.
        classes: their names.

    Returns:
        ``recall``: by class the share of its images that were recognized, None where it has no image;
        ``error_balanced``: 1 minus their mean, the error if all classes had as many images.
    """
    counts = count_classes(labels, classes)
    right = count_classes(labels[~wrong], classes)
    recall = {name: right[name] / n if n else None for name, n in counts.items()}
    known = [value for value in recall.values() if value is not None]
    return {"recall": recall, "error_balanced": 1 - sum(known) / len(known)}


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
        "recall": {name: right[name] / true[name] if true[name] else None for name in classes},
        "precision": {name: right[name] / said[name] if said[name] else None for name in classes},
        "f1": sum(known) / len(known) if known else None,
    }


def are_unequal(counts: Mapping[str, int]) -> bool:
    """Return whether the largest class has more than twice the images of the smallest."""
    return max(counts.values()) > _UNEQUAL * min(counts.values())


def balanced_in_words(scores: Mapping[str, Any], counts: Mapping[str, int]) -> str:
    """Say the balanced error and the class that fares worst, where classes are unequal.

    Args:
        scores: as :func:`recalls` gives them; older results lack them, and nothing is said.
        counts: images of each class.
    """
    if scores.get("f1") is not None:
        return f" (images with a label missed or too many; mean F1 of the labels {scores['f1']:.3f})"
    if "error_balanced" not in scores or not are_unequal(counts):
        return ""
    known = {name: value for name, value in scores["recall"].items() if value is not None}
    worst = min(known, key=lambda name: known[name])
    n = counts[worst]
    said = f"of {worst} {round(known[worst] * n)} of {n} recognized"
    missing = [name for name, value in scores["recall"].items() if value is None]
    if missing:
        said += f"; no image of {', '.join(missing)}"
    return f" (balanced over the classes {scores['error_balanced']:.2%}; {said})"


def scores_of(result: Mapping[str, Any], split: str) -> dict[str, Any]:
    """Recalls and balanced error that a result has of a split."""
    found = {name: result.get(f"{split}_{name}") for name in ("recall", "error_balanced", "f1")}
    return {name: value for name, value in found.items() if value is not None}


def error_words(result: Mapping[str, Any], split: str) -> str:
    """:func:`balanced_in_words` of a split of a result."""
    counts = result.get("images_per_class", {}).get(split)
    return balanced_in_words(scores_of(result, split), counts) if counts else ""


def split_in_words(result: Mapping[str, Any]) -> str:
    """Say how many images of each class train, validate and test.

    It says so where somebody's own folder was split or classes are unequal; else nothing.
    """
    counts = result.get("images_per_class", {})
    told = [split for split in _TASKS if split in counts]
    own = result["config"]["data"]["name"] == "folder"
    if not told or not (own or any(are_unequal(counts[split]) for split in told)):
        return ""
    names = list(counts[told[0]])
    if len(names) <= _FEW:
        each = "; ".join(f"{name} {', '.join(str(counts[split][name]) for split in told)}" for name in names)
    else:
        spans = [f"{min(counts[split].values())} to {max(counts[split].values())}" for split in told]
        each = f"{', '.join(spans)} ({len(names)} classes)"
    *first, last = (_TASKS[split] for split in told)
    return f"images of each class {', '.join(first)} and {last}: {each}"
