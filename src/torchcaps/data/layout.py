"""How a folder of images is laid out: its files, with the labels and splits that folders and tables give."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from torchcaps.data.labels import Labels, read_labels
from torchcaps.data.medical import is_unnamed_dicom
from torchcaps.data.splits import SPLIT_NAMES, named_splits
from torchcaps.data.tables import find_table, match_files

SUFFIXES = (".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".mpo")
#: Images and arrays that are not read are refused, instead of passed over.
_OTHERS = (
    *(".heic", ".heif", ".avif", ".jxl", ".jp2", ".j2k", ".svg", ".tga", ".ppm", ".pgm", ".pbm", ".pnm"),
    *(".ico", ".pcx", ".exr", ".hdr", ".psd", ".apng"),
    *(".dng", ".cr2", ".cr3", ".nef", ".arw", ".raf", ".orf", ".rw2"),  # raw
    *(".dcm", ".dicom", ".nii", ".nii.gz", ".nrrd", ".mha", ".mhd"),  # medical
    *(".czi", ".lif", ".nd2", ".svs", ".ndpi", ".mrxs"),  # microscopes
    *(".npy", ".npz", ".mat", ".h5", ".hdf5", ".zarr", ".pt", ".pth", ".pkl", ".parquet", ".arrow", ".tfrecord"),
    *(".zip", ".tar", ".tar.gz", ".tgz", ".7z", ".rar", ".mp4", ".avi", ".mov", ".mkv"),
)
#: What lies beside images and is meant for others: passed over without a word.
_BESIDE = (
    *("", ".csv", ".tsv", ".txt", ".md", ".rst", ".pdf", ".json", ".jsonl", ".xml", ".yaml", ".yml", ".html", ".xlsx"),
    *(".db", ".ini", ".log", ".py", ".ipynb", ".sh", ".lnk", ".url", ".xmp", ".aae", ".doc", ".docx"),
)
#: Folders that other programs leave behind.
_LEFT_BEHIND = ("__MACOSX", "@eaDir", "lost+found")
#: Tables of labels by Hugging Face's convention.
_METADATA = ("metadata.csv", "metadata.jsonl")


class File(NamedTuple):
    """Hold what is known of an image file.

    Attributes:
        path: of the file.
        home: the folder below which its name says whose it is: that of its class, or of its split.
        labels: its classes: one, or any number where images have several.
        split: the split that folders or a table give it; "" where none is given.
    """

    path: Path
    home: Path
    labels: tuple[str, ...]
    split: str


class Layout(NamedTuple):
    """Hold what there is in a folder.

    Attributes:
        classes: their names, in order.
        files: the images.
        by_folders: the splits that folders give; empty where they give none.
        several: whether an image may have several labels.
        table: the table that names the labels, or None.
        unread: files that are or may be images and are not read.
    """

    classes: tuple[str, ...]
    files: list[File]
    by_folders: list[str]
    several: bool
    table: Path | None
    unread: list[Path]


def find_images(root: Path, labels: str | None, *, deeper: bool) -> Layout:
    """Find the images of a folder, and what is given of them.

    Args:
        root: the folder.
        labels: a table of labels (:func:`~torchcaps.data.labels.read_labels`), in ``root`` or where its name says; None
            takes the sub-folders' names, or ``metadata.csv`` or ``metadata.jsonl`` where there are no such folders.
        deeper: whether the folders of classes may have sub-folders.

    Raises:
        ValueError: folders that are neither classes nor splits; fewer than two classes; a table that does not fit.
    """
    splits = _folders_of_splits(root)
    homes = {root / name: split for name, split in splits.items()} or {root: ""}
    if labels is not None:
        return _by_tables(root, homes, {root: read_labels(find_table("data.options.labels", labels, root))})
    classes = {home: _folders(home) for home in homes}
    tables = {place: path for place in (root, *homes) if (path := _metadata(place)) is not None}
    if all(classes.values()):
        if tables:
            logging.getLogger("torchcaps").warning(
                "%s is not read, as folders name the classes: data.options.labels takes labels from a table",
                next(iter(tables.values())),
            )
        return _by_folders(root, homes, classes, deeper=deeper)
    if not any(classes.values()) and (root in tables or (tables and set(tables) == set(homes))):
        here = {root: tables[root]} if root in tables else tables
        return _by_tables(root, homes, {place: read_labels(path) for place, path in here.items()})
    if splits:
        flat = [home.name for home in homes if not classes[home]]
        raise ValueError(
            f"{root} must have a sub-folder for each class in {' and '.join(splits)}, got none in "
            f"{' and '.join(flat)}: these are splits, not classes. Put images into folders of their classes, or name a "
            "table of labels by data.options.labels (or metadata.csv in each split); classes of such names are to be "
            "renamed"
        )
    return _by_folders(root, homes, classes, deeper=deeper)  # which says what is wrong


def _folders_of_splits(root: Path) -> dict[str, str]:
    """Find the folders that are splits, by their names; none where folders are classes.

    Raises:
        ValueError: two folders of one split; no train or no test.
    """
    names = _folders(root)
    known = {name: SPLIT_NAMES[name.lower()] for name in names if name.lower() in SPLIT_NAMES}
    if not names or len(known) < len(names):
        return {}
    twice = [split for split, n in Counter(known.values()).items() if n > 1]
    if twice:
        found = " and ".join(name for name, split in known.items() if split == twice[0])
        raise ValueError(f"{root} must have one folder of the {twice[0]} split, got {found}")
    if not {"train", "test"} <= set(known.values()):
        missing = "test" if "train" in known.values() else "train"
        advice = f"; to have it split, name {root / names[0]} as data.root" if len(names) == 1 else ""
        raise ValueError(
            f"{root} must have the folders train and test, perhaps val, or a folder for each class; "
            f"got {', '.join(names)}, and no {missing}{advice}"
        )
    return known


def _metadata(folder: Path) -> Path | None:
    return next((folder / name for name in _METADATA if (folder / name).is_file()), None)


def _by_folders(root: Path, homes: dict[Path, str], classes: dict[Path, list[str]], *, deeper: bool) -> Layout:
    """Take each image's class from its folder."""
    train = next((home for home, split in homes.items() if split in ("train", "")), root)
    names = classes[train]
    if len(names) < 2:
        raise ValueError(f"{train} must have at least two sub-folders, one a class; got {len(names)}: {names}")
    for home, others in classes.items():
        more = sorted(set(others) - set(names))
        if more:
            raise ValueError(f"{home} must have the classes of train, got {', '.join(more)} too")
    found, unread = list[File](), list[Path]()
    for place in {root, *homes}:
        stray = sorted(path.name for path in place.iterdir() if path.suffix.lower() in SUFFIXES and path.is_file())
        if stray:
            logging.getLogger("torchcaps").warning(
                "%s: %d images lie beside the folders of classes, such as %s, and are not read",
                *(place, len(stray), stray[0]),
            )
    for home, split in homes.items():
        for name in classes[home]:
            here = _files(home / name, unread, deeper=deeper)
            found += [File(path, home / name, (name,), split) for path in here]
    return Layout(
        tuple(names), found, [split for split in homes.values() if split], several=False, table=None, unread=unread
    )


def _by_tables(root: Path, homes: dict[Path, str], tables: dict[Path, Labels]) -> Layout:
    """Take each image's labels from tables, of which each is of the images below its place."""
    found, unread = list[File](), list[Path]()
    for place, labels in tables.items():
        own = homes if place == root else {place: homes[place]}
        every = [(path, home, split) for home, split in own.items() for path in _files(home, unread, deeper=True)]
        paths = [path for path, _, _ in every]
        named = match_files(labels.path, place, paths, labels.of, "label")
        given = [split for _, _, split in every]
        if labels.split:
            given = _splits_of(labels, place, paths, given)
        found += [
            File(path, home, names, split) for (path, home, _), names, split in zip(every, named, given, strict=True)
        ]
    first, several = next(iter(tables.values())), any(labels.several for labels in tables.values())
    classes = _common(list(tables.values()))
    return Layout(classes, found, [split for split in homes.values() if split], several, first.path, unread)


def _splits_of(labels: Labels, place: Path, paths: Sequence[Path], given: Sequence[str]) -> list[str]:
    found = named_splits(labels.path, match_files(labels.path, place, paths, labels.split, "split"))
    if any(folder and folder != split for folder, split in zip(given, found, strict=True)):
        raise ValueError(f"{labels.path} must name the splits of the images' folders, got others in its column split")
    return found


def _common(tables: Sequence[Labels]) -> tuple[str, ...]:
    """Return the classes of several tables: those of train's, which the others must not exceed."""
    first = max(tables, key=lambda labels: SPLIT_NAMES.get(labels.path.parent.name.lower()) == "train")
    for labels in tables:
        more = sorted(set(labels.classes) - set(first.classes))
        if more:
            raise ValueError(f"{labels.path} must have the labels of {first.path}, got {', '.join(more)} too")
    return first.classes


def _folders(folder: Path) -> list[str]:
    return sorted(
        path.name
        for path in folder.iterdir()
        if path.is_dir() and not path.name.startswith(".") and path.name not in _LEFT_BEHIND
    )


def _files(folder: Path, unread: list[Path], *, deeper: bool) -> list[Path]:
    """List the images of a folder, and of sub-folders where these may be; ``unread`` gets what is not read."""
    if not folder.is_dir():
        return []
    every = sorted(path for path in folder.iterdir() if not path.name.startswith(".") and path.name not in _LEFT_BEHIND)
    folders = [path for path in every if path.is_dir()]
    if folders and not deeper:  # train/dog and test/dog, perhaps, instead of dog
        raise ValueError(
            f"{folder} must hold the images of one class, got the folders {', '.join(path.name for path in folders)}: "
            "data.root has one level of sub-folders, one a class, or above these the folders train, test and perhaps "
            "val alone; folders of patients or objects below a class's want data.options.groups, such as '^(.+)/'"
        )
    files = [path for path in every if not path.is_dir()]
    here = [path for path in files if path.suffix.lower() in SUFFIXES]
    rest = [path for path in files if path.suffix.lower() not in SUFFIXES]
    scans = [path for path in rest if path.name.lower().endswith(_OTHERS) or is_unnamed_dicom(path)]
    unread += scans
    strange = [path for path in sorted(set(rest) - set(scans)) if path.suffix.lower() not in _BESIDE]
    if strange:
        logging.getLogger("torchcaps").warning(
            "%s: %d files are taken for no images, such as %s", folder, len(strange), strange[0].name
        )
    return here + [path for below in folders for path in _files(below, unread, deeper=True)]
