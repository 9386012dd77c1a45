"""Predictions of many image files, as a table or JSON."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torchcaps.data.folder import SUFFIXES
from torchcaps.data.medical import is_unnamed_dicom, suffix_of
from torchcaps.progress import with_time_left
from torchcaps.training.checkpoint import load_model
from torchcaps.training.files import write_atomically
from torchcaps.training.predict import predictions


def image_files(paths: Sequence[str | Path], suffixes: Sequence[str] = SUFFIXES, *, scans: bool = False) -> list[str]:
    """List image files: those that are named, and all that lie in named folders and the folders in them.

    Args:
        paths: files and folders.
        suffixes: of the files in folders that are images.
        scans: take DICOM files without an ending, too.

    Raises:
        ValueError: a folder without any.
    """
    found = list[str]()
    for path in map(Path, paths):
        if not path.is_dir():
            found.append(str(path))
            continue
        files = (each for each in path.rglob("*") if each.is_file())
        inside = sorted(
            str(each) for each in files if suffix_of(each) in suffixes or (scans and is_unnamed_dicom(each))
        )
        if not inside:
            raise ValueError(f"{path} must hold images ({', '.join(suffixes)}), got a folder without any")
        found += inside
    return found


def write_predictions(
    run: str | Path, paths: Sequence[str | Path], to: Sequence[str | Path], *, invert: bool = False
) -> dict[str, str]:
    """Predict image files and write a row for each: its most probable class, and the score of every class.

    Scores are lengths or activations of the class capsules, each 0 … 1 by itself: they need not sum to 1.

    Args:
        run: a finished run's folder.
        paths: image files, and folders of such.
        to: new files, ``.csv`` or ``.json``.
        invert: exchange light and dark first.

    Returns:
        What is wrong with each file that could not be read; it has a row too.

    Raises:
        ValueError: no finished run, no image, or a file to write that is there already or of another kind.
    """
    for file in map(Path, to):
        if file.suffix.lower() not in _WRITERS:
            raise ValueError(f"predictions must be written to {' or '.join(_WRITERS)}, got {file}")
        if file.exists():
            raise ValueError(f"predictions must be written to a new file, got {file}, which is there")
    files, classes = image_files(paths), load_model(run).classes
    rows = list(_rows(run, files, classes, invert))
    for file in map(Path, to):
        write = _WRITERS[file.suffix.lower()]
        write_atomically(file, lambda path, write=write: write(path, rows, classes))
    return {row["image"]: row["error"] for row in rows if row["error"]}


def _rows(run: str | Path, files: Sequence[str], classes: Sequence[str], invert: bool) -> Iterator[dict[str, Any]]:
    found = predictions(run, files, invert=invert, top=len(classes))
    for path, named in with_time_left(found, "predict", len(files)):
        if isinstance(named, ValueError):
            yield {"image": path, "class": None, "score": None, "error": str(named), "scores": {}}
            continue
        (name, score), *_ = named
        yield {"image": path, "class": name, "score": score, "error": "", "scores": dict(named)}


def _write_csv(path: Path, rows: Sequence[dict[str, Any]], classes: Sequence[str]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["image", "class", "score", *(f"score of {name}" for name in classes), "error"])
        for row in rows:
            scores = [row["scores"].get(name) for name in classes]
            writer.writerow([row["image"], row["class"], row["score"], *scores, row["error"]])


def _write_json(path: Path, rows: Sequence[dict[str, Any]], classes: Sequence[str]) -> None:
    del classes  # each row names them
    path.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


_WRITERS = {".csv": _write_csv, ".json": _write_json}
