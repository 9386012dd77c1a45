"""``torchcaps evaluate``: on a split of a run's data, or on a folder of labelled images."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchcaps.training.objective import Answer
    from torchcaps.training.run import Run

#: What a confusion matrix can be written as.
_KINDS = (".csv", ".png")


def evaluate_command(parsed: argparse.Namespace) -> None:
    """Measure a trained model on one split of its data, or on a folder of labelled images."""
    from torchcaps.training.run import Run

    run = Run(parsed.run)
    confusion = None if parsed.confusion is None else Path(parsed.confusion).expanduser()
    if confusion is not None:
        _require_free(run, confusion)
    answers, wrong = list[Any](), list[str]()
    if parsed.folder is None:
        if parsed.invert:
            raise ValueError("--invert must be given with --folder: images of a split are as in training")
        classes = _evaluate_split(run, parsed, answers)
    else:
        classes, wrong = _evaluate_folder(run, parsed, answers)
    if confusion is not None:
        _write_confusion(confusion, answers, classes)
        print(f"wrote {confusion}")
    if wrong:
        raise ValueError(f"{len(wrong)} file{'s' * (len(wrong) > 1)} could not be read: {'; '.join(wrong)}")


def _evaluate_split(run: Run, parsed: argparse.Namespace, answers: list[Answer]) -> Sequence[str]:
    """Print loss and error of a split, and what is known of each class; returns their names."""
    from dataclasses import replace

    from torchcaps.checks import check_choice
    from torchcaps.training.batches import split
    from torchcaps.training.checkpoint import data_for, load_model
    from torchcaps.training.dice import dice_lines
    from torchcaps.training.environment import choose_device
    from torchcaps.training.objective import evaluate
    from torchcaps.training.per_class import as_lines, balanced_in_words, count_classes
    from torchcaps.training.run import with_data_in

    name = parsed.split or "test"
    config, trained = run.experiment(), load_model(run)
    if config.trial and name != "val":
        raise ValueError(f"split must be val for a trial, which has seen no test image; got {name}")
    config = with_data_in(config, parsed.root)
    if parsed.test_crops is not None:
        config = replace(config, data=replace(config.data, test_crops=parsed.test_crops))
    device = choose_device("auto")  # not necessarily where it was trained
    if not config.trial:  # before its data are loaded, or downloaded
        losses = [key for key in run.finished() if key.endswith("_loss")]
        check_choice("split", name, [key.removesuffix("_loss") for key in losses])
    dataset = data_for(config, trained, run.path)
    batches = split(config, dataset, name, device)
    shown = {"classes": dataset.classes, "progress": True, "answers": answers}
    scores = evaluate(config, trained.model.to(device), batches, **shown)
    counts = count_classes(batches.source.shown(), dataset.classes)
    error = f"error {scores['error']:.2%}{balanced_in_words(scores, counts)}, " if "error" in scores else ""
    error += f"Dice {scores['dice']:.4f}, " if "dice" in scores else ""
    print(f"{run.path}: {name} {error}loss {scores['loss']:.5f}, {batches.n:,} examples")
    lines = dice_lines(scores["dice_per_class"], counts) if "dice" in scores else as_lines(scores, counts)
    print("".join(f"{line}\n" for line in lines), end="")
    return dataset.classes


def _evaluate_folder(run: Run, parsed: argparse.Namespace, answers: list[Answer]) -> tuple[Sequence[str], list[str]]:
    """Print the error on a folder's images; returns the names of the classes, and which files cannot be read."""
    from torchcaps.training.checkpoint import load_model
    from torchcaps.training.labelled_folder import answers_for_folder
    from torchcaps.training.objective import scores_of_classes
    from torchcaps.training.per_class import as_lines, balanced_in_words, count_classes

    for option, value in (
        ("--split", parsed.split),
        ("--data.root", parsed.root),
        ("--data.test_crops", parsed.test_crops),
    ):
        if value is not None:
            raise ValueError(f"{option} must be left out with --folder, got {value}")
    classes = load_model(run).classes
    said, wrong = answers_for_folder(run, parsed.folder, invert=parsed.invert)
    answers.append(said)
    scores, counts = scores_of_classes(said, classes), count_classes(said.labels.squeeze(1), classes)
    error = said.mistaken.double().mean().item()
    print(f"{parsed.folder}: error {error:.2%}{balanced_in_words(scores, counts)}, {len(said.labels):,} images")
    print("".join(f"{line}\n" for line in as_lines(scores, counts)), end="")
    return classes, wrong


def _require_free(run: Run, file: Path) -> None:
    """See, before work is lost, that the confusion matrix can be written, and that there is one."""
    if file.suffix.lower() not in _KINDS:
        raise ValueError(f"--confusion must be a file {' or '.join(_KINDS)}, got {file}")
    if file.exists():
        raise ValueError(f"--confusion must be a new file, got {file}, which is there")
    if not run.experiment().data.task.one_class:
        raise ValueError(f"--confusion must be left out for {run.path}, which does not name one class for each image")


def _write_confusion(file: Path, answers: Sequence[Answer], classes: Sequence[str]) -> None:
    """Write how often each class (row) was taken for each (column), as a table or as a picture."""
    import csv

    from torchcaps.explain import confusion_matrix, draw_confusion
    from torchcaps.training.files import write_atomically, write_picture
    from torchcaps.training.objective import joined

    said = joined(answers)
    matrix = confusion_matrix(said.labels.squeeze(1), said.predicted[:, 0], len(classes))
    if file.suffix.lower() == ".png":
        write_picture(file, draw_confusion(matrix, classes))
        return

    def write(path: Path) -> None:
        with path.open("w", newline="", encoding="utf-8") as opened:
            rows = csv.writer(opened)
            rows.writerow(["true class", *(f"predicted {name}" for name in classes)])
            rows.writerows([name, *counts] for name, counts in zip(classes, matrix.tolist(), strict=True))

    write_atomically(file, write)
