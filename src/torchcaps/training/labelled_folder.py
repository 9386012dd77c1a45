"""Measure a trained model on a folder of labelled images that it has never met, one sub-folder a class."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import torch

from torchcaps.data.folder import SUFFIXES
from torchcaps.progress import with_time_left
from torchcaps.training.checkpoint import load_model
from torchcaps.training.objective import Answer
from torchcaps.training.predict import predictions
from torchcaps.training.prediction_table import image_files
from torchcaps.training.run import Run


def answers_for_folder(run: Run, folder: str | Path, *, invert: bool = False) -> tuple[Answer, list[str]]:
    """Predict the images of a folder, and say beside what their sub-folders call them.

    Args:
        run: a finished run of one label an image.
        folder: has a sub-folder for each class, or for some of them, named as the run names its classes. Images are
            read as ``torchcaps predict`` reads them.
        invert: exchange light and dark first.

    Returns:
        What the model said, of labels ``[N, 1]``; and what is wrong with each file that could not be read.

    Raises:
        ValueError: the run is of another task; the folder has sub-folders of other names, none, or no image that can be
            read.
    """
    if not run.classifier().data.task.one_class:
        raise ValueError(f"{run.path} must be a run of one label an image to be measured on a folder, got another task")
    classes = load_model(run).classes
    files = _labelled_files(Path(folder).expanduser(), classes)
    labels, probabilities, broken = list[int](), list[list[float]](), list[str]()
    found = predictions(run, list(files), invert=invert, top=len(classes))
    for path, named in with_time_left(found, "predict", len(files)):
        if isinstance(named, ValueError):
            broken.append(str(named))
            continue
        scores = dict(named)
        labels.append(files[path])
        probabilities.append([scores[name] for name in classes])
    if not labels:
        raise ValueError(f"{folder} must hold an image that can be read: {'; '.join(broken)}")
    true, scores = torch.tensor(labels), torch.tensor(probabilities, dtype=torch.float64)
    predicted = scores.topk(1, dim=1).indices
    return Answer(true.unsqueeze(1), scores, predicted, predicted[:, 0] != true), broken


def _labelled_files(folder: Path, classes: Sequence[str]) -> dict[str, int]:
    """List the image files of the sub-folders, with the class of each."""
    if not folder.is_dir():
        raise ValueError(f"folder must be a folder with one sub-folder a class, got {folder}")
    inside = sorted(each.name for each in folder.iterdir() if each.is_dir() and not each.name.startswith((".", "__")))
    unknown = [name for name in inside if name not in classes]
    if unknown or not inside:
        raise ValueError(
            f"{folder} must have sub-folders named as classes of the run, {', '.join(classes)}; "
            f"got {', '.join(unknown) or 'none'}"
        )
    loose = [each.name for each in folder.iterdir() if each.is_file() and each.suffix.lower() in SUFFIXES]
    if loose:
        logging.getLogger("torchcaps").warning(
            "%s: %d images lie in no sub-folder, so their class is not known; they are left out, such as %s",
            folder, len(loose), min(loose),
        )  # fmt: skip
    return {file: classes.index(name) for name in inside for file in image_files([folder / name])}
