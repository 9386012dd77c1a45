"""Your own images: a folder with one sub-folder for each class, or with a table of labels."""

from __future__ import annotations

import hashlib
import logging
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from torchcaps.checks import check_at_least, check_flag, check_two
from torchcaps.data.image_file import Frames, check_reading, read_image
from torchcaps.data.images import Dataset, Images, fixed_order
from torchcaps.data.layout import SUFFIXES, File, Layout, find_images
from torchcaps.data.pixels import Pixels, put_in_order, read_files
from torchcaps.data.splits import SPLITS, TEST, VALIDATION, check_apart, find_groups, find_splits, stratify

#: Broken files that are named in an error.
_NAMED = 100
#: 16-bit files no brighter than this are taken for ones of 10, 12 or 14 bits.
_DARK = 2**14


def load_folder(
    root: Path | None = None,
    image_size: tuple[int, int] | None = None,
    groups: str | None = None,
    labels: str | None = None,
    split: str | None = None,
    *,
    skip_bad: bool = False,
    max_value: int | None = None,
    frames: Frames = "one",
    n_each: int | None = None,
    store: str | Path | None = None,
) -> Dataset:
    """Images of any size in one sub-folder a class, or with a table of labels; colour if any image has colour.

    Of each class about 70 % train, 10 % validate and 20 % test; of three images one each. Which do follows from their
    content alone: so images that are added later move at most their nearest few, those that are renamed or given other
    metadata (in PNG and JPEG) none, and exact copies of one stay together. Images with several labels are shared out by
    the rarest of theirs.

    Images of one patient, object or camera are more alike than others, and belong into one split. ``groups`` says which
    those are; classes are shared out as evenly as whole groups allow, and the place of a group follows from its name.

    A folder that holds ``train`` and ``test``, perhaps ``val``, and no others, with the classes' sub-folders in each,
    is split as it says; without ``val`` a tenth of ``train`` validates. Images of ``test`` or ``val`` that are copies
    of training images stay there, are counted in the data's note (which results keep), and logged. (``validation``,
    ``valid`` and ``dev`` are ``val``.) Where there are no folders of classes, ``metadata.csv`` or ``metadata.jsonl`` in
    the folder, or in each split, names the labels, as in Hugging Face's image folders.

    Args:
        root: the folder.
        image_size: (height, width) that all are resized to, whatever their proportions; by default 28×28.
        groups: whose image each is: a regular expression on its file name, such as ``"^(p[0-9]+)_"``, or a ``.csv``
            table with the columns ``file`` and ``group`` (:func:`~torchcaps.data.splits.find_groups`). With it the
            classes' folders may have sub-folders. The groups' numbers become ``Images.factors["group"]``.
        labels: a ``.csv`` or ``.jsonl`` table with the columns ``file`` and ``label`` (``cat;dog`` are two labels), or
            with a column of 0 and 1 for each label (:func:`~torchcaps.data.labels.read_labels`). Folders then name no
            classes, and may be of any depth.
        split: a ``.csv`` table with the columns ``file`` and ``split``, which is train, val or test.
        skip_bad: pass over files that cannot be read, or are of formats that are not, and say so in a warning and in
            the data's note. By default all of them are named in an error.
        max_value: the value that is white in grey files of more than 8 bits: 4095 where 12 bits lie in 16. By default
            65535 of 16 bits; a warning says when all are nearly black so.
        frames: "one" refuses files of several pictures (TIFF, GIF, WebP, APNG), "first" takes the first of each.
        n_each: read only so many images of each class, of as many groups as can be, to try something out.
        store: a folder of a disk with room for the pixels, for more images than fit into memory. They lie in a file
            there, of which the batches are read; it has no name, and goes with the process. (A GPU still takes a split
            as a whole.)

    Raises:
        ValueError: no such folder, fewer than two classes, folders within those of the classes, a class without
            images to train on, no images to validate or test on, or images that cannot be read or are of a format
            that is not; images without a group, a label or a split in their table, or a group in two splits that are
            given.
    """
    if not isinstance(root, str | Path) or "\0" in str(root) or not Path(root).is_dir():
        raise ValueError(f"data.root must be a folder with one sub-folder a class, got {root}")
    root = Path(root)
    if image_size is not None:
        check_two("data.image_size", image_size, 1)
    check_reading(max_value, frames)
    check_flag("data.options.skip_bad", skip_bad)
    if n_each is not None:
        check_at_least("data.options.n_each", n_each, 3)
    if store is not None and not Path(store).expanduser().is_dir():
        raise ValueError(f"data.options.store must be a folder, got {store}")
    place = None if store is None else Path(store).expanduser()
    layout = find_images(root, labels, deeper=groups is not None)
    _refuse_unread(root, layout.unread, skip_bad)
    whose = [""] * len(layout.files)
    if groups is not None:
        whose = find_groups(groups, root, [(file.path, file.home) for file in layout.files])
    files = _with_splits(root, layout, split)
    if n_each is not None:
        chosen = _some_of_each(files, whose, n_each)
        files, whose = [files[k] for k in chosen], [whose[k] for k in chosen]
    paths = [file.path for file in files]
    pixels = read_files(paths, image_size or (28, 28), max_value=max_value, frames=frames, store=place)
    _refuse_broken(root, pixels, skip_bad)
    if max_value is None:
        _warn_of_dark(root, pixels)
    files, whose = [files[k] for k in pixels.good], [whose[k] for k in pixels.good]
    split_of = _split(files, pixels.digests, whose)
    _require_all(root, layout, files, split_of)
    train, val, test = _parts(layout, files, pixels.images, whose if groups is not None else None, split_of)
    note = _how_split(layout, files, groups, split)
    if any(file.split for file in files):
        note += _copies(root, pixels.digests, split_of)
    left_out = len(layout.unread) + len(pixels.broken)
    note += f"; {left_out} files that cannot be read are left out" if left_out else ""
    note += f"; {n_each} images of each class at most" if n_each is not None else ""
    return Dataset(root.resolve().name, layout.classes, train, val, test, note=note)


def _refuse_unread(root: Path, unread: Sequence[Path], skip_bad: bool) -> None:
    """Name the files of formats that are not read."""
    if not unread:
        return
    homes = sorted({path.parent for path in unread})
    where = homes[0] if len(homes) == 1 else root
    said = f"got {len(unread)} others, such as {unread[0].name}"
    if not skip_bad:
        raise ValueError(
            f"{where} must hold images as {', '.join(SUFFIXES)}, {said}: convert or move them, or pass over them by "
            "data.options.skip_bad=true"
        )
    logging.getLogger("torchcaps").warning(
        "%s: passed over %d files of other formats: %s", root, len(unread), _named(unread)
    )


def _refuse_broken(root: Path, pixels: Pixels, skip_bad: bool) -> None:
    """Name all files that cannot be read."""
    if not pixels.broken:
        return
    lines = pixels.broken[:_NAMED]
    more = len(pixels.broken) - len(lines)
    listed = "\n  ".join([*lines, *([f"and {more} more"] if more else [])])
    if not skip_bad:
        if len(lines) == 1:
            raise ValueError(f"{lines[0]} (data.options.skip_bad=true passes over it)")
        raise ValueError(
            f"{root} must hold images that can be read, got {len(pixels.broken)} that cannot "
            f"(data.options.skip_bad=true passes over them):\n  {listed}"
        )
    logging.getLogger("torchcaps").warning("%s: passed over %d files:\n  %s", root, len(pixels.broken), listed)


def _named(paths: Sequence[Path]) -> str:
    more = f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
    return ", ".join(str(path) for path in paths[:_NAMED]) + more


def _warn_of_dark(root: Path, pixels: Pixels) -> None:
    """Say that 16-bit images are nearly black, as those of 12 bits in 16 are."""
    if pixels.brightest is not None and pixels.brightest < _DARK:
        bits = max(8, pixels.brightest.bit_length())
        logging.getLogger("torchcaps").warning(
            "%s: its %d images of 16 bits are nearly black, as none has more than %d of 65535: "
            "data.options.max_value=%d would make %d bits of them",
            *(root, pixels.n_deep, pixels.brightest, 2**bits - 1, bits),
        )


def _with_splits(root: Path, layout: Layout, table: str | None) -> list[File]:
    """Give the files the splits that a table names."""
    if table is None:
        return layout.files
    if any(file.split for file in layout.files):
        raise ValueError(f"data.options.split must be left alone where folders or labels give the splits, got {table}")
    found = find_splits(table, root, [file.path for file in layout.files])
    return [file._replace(split=split) for file, split in zip(layout.files, found, strict=True)]


def _some_of_each(files: Sequence[File], whose: Sequence[str], n: int) -> list[int]:
    """Choose ``n`` files of each class and given split: of every group one, then a second, and so on."""
    of_class: dict[tuple[str, tuple[str, ...]], list[int]] = defaultdict(list)
    for k, file in enumerate(files):
        of_class[file.split, file.labels[:1]].append(k)
    chosen = list[int]()
    for places in of_class.values():
        seen = Counter[str]()
        ranks = {}
        for k in places:
            ranks[k] = seen[whose[k]]
            seen[whose[k]] += 1
        chosen += sorted(places, key=lambda k: ranks[k])[:n] if len(seen) > 1 else _evenly(places, n)
    return sorted(chosen)


def _evenly(places: Sequence[int], n: int) -> list[int]:
    return [places[len(places) * k // n] for k in range(n)] if len(places) > n else list(places)


def _split(files: Sequence[File], digests: Sequence[bytes], whose: Sequence[str]) -> list[str]:
    """Find the split of each image: as given, or drawn from its content or group."""
    labels = _rarest(files)
    if not any(file.split for file in files):
        return _shared_out(labels, digests, whose, {"test": TEST, "val": VALIDATION})
    split_of = [file.split for file in files]
    grouped = [k for k, group in enumerate(whose) if group]
    check_apart([whose[k] for k in grouped], [split_of[k] for k in grouped])
    if "val" not in split_of:
        train = [k for k, split in enumerate(split_of) if split == "train"]
        few = [labels[k] for k in train], [digests[k] for k in train], [whose[k] for k in train]
        for k, split in zip(train, _shared_out(*few, {"val": VALIDATION}), strict=True):
            split_of[k] = split
    return split_of


def _rarest(files: Sequence[File]) -> list[str]:
    """Find the rarest label of each image."""
    counts = Counter(label for file in files for label in file.labels)
    return [min(file.labels, key=lambda label: (counts[label], label), default="") for file in files]


def _shared_out(
    labels: Sequence[str], digests: Sequence[bytes], whose: Sequence[str], shares: dict[str, float]
) -> list[str]:
    """Draw the split of each image; a group goes where its name leads it, however its images come and go."""
    pairs = list(zip(digests, whose, strict=True))
    ties = [(digest, group) if group else (digest,) for digest, group in pairs]
    draws = [hashlib.sha256(group.encode()).digest() if group else digest for digest, group in pairs]
    return stratify(labels, ties, draws, shares)


def _require_all(root: Path, layout: Layout, files: Sequence[File], split_of: Sequence[str]) -> None:
    """See that every class trains and every split has images; say which class a split lacks."""
    there = {(label, split) for file, split in zip(files, split_of, strict=True) for label in file.labels}
    homes = {file.labels[0]: file.home for file in files if file.labels and file.split in ("train", "")}
    for name in layout.classes:
        if (name, "train") not in there:
            where = f"{layout.table}, {name}," if layout.table else homes.get(name, root / name)
            raise ValueError(f"{where} must have more images ({', '.join(SUFFIXES)}): none came to the train split")
    for split in SPLITS:
        absent = [name for name in layout.classes if (name, split) not in there]
        if split not in split_of or (len(absent) == len(layout.classes) and not layout.several):
            raise ValueError(
                f"{root} must have more images: of {len(files)} none came to the {split} split, which takes three of a "
                "class that show something different, or of three groups"
            )
        if absent:
            logging.getLogger("torchcaps").warning(
                "%s: the %s split has no image of %s, so it says nothing of them", root, split, ", ".join(absent)
            )


def _parts(
    layout: Layout, files: Sequence[File], images: Tensor, whose: Sequence[str] | None, split_of: Sequence[str]
) -> list[Images]:
    """Put ``images`` into the order of the splits, in place, and return these."""
    places = {split: [k for k, each in enumerate(split_of) if each == split] for split in SPLITS}
    order = [here[int(k)] for here in places.values() for k in fixed_order(len(here), 0)]  # mixes the classes
    put_in_order(images, order)
    number = {name: k for k, name in enumerate(layout.classes)}
    if layout.several:
        labels = torch.zeros(len(files), len(number), dtype=torch.bool)
        for k, place in enumerate(order):
            labels[k, [number[name] for name in files[place].labels]] = True
    else:
        labels = torch.tensor([number[files[place].labels[0]] for place in order], dtype=torch.int64)
    factors = {}
    if whose is not None:
        rank = {group: k for k, group in enumerate(sorted(set(whose)))}
        factors["group"] = torch.tensor([rank[whose[place]] for place in order], dtype=torch.int64)
    every = Images(images, labels, factors)
    ends = torch.tensor([len(here) for here in places.values()]).cumsum(0).tolist()
    return [every.take(slice(end - len(here), end)) for here, end in zip(places.values(), ends, strict=True)]


def _how_split(layout: Layout, files: Sequence[File], groups: str | None, table: str | None) -> str:
    by = "" if groups is None else f" in the groups of {groups}"
    if not any(file.split for file in files):
        return f"split by content{by}, stratified by class"
    means = f"by {table}" if table else ("by its folders" if layout.by_folders else "by its table of labels")
    return f"split {means}{by}" + ("" if any(file.split == "val" for file in files) else ", a tenth of train validates")


def _copies(root: Path, digests: Sequence[bytes], split_of: Sequence[str]) -> str:
    """Count the images outside the train split that show what one in it does."""
    of_split = {
        name: [digest for digest, split in zip(digests, split_of, strict=True) if split == name] for name in SPLITS
    }
    trained_on = set(of_split["train"])
    said = ""
    for split in ("val", "test"):
        n = sum(digest in trained_on for digest in of_split[split])
        if n:
            said += f"; {n} of its {len(of_split[split])} {split} images are copies of training images"
    if said:
        logging.getLogger("torchcaps").warning("%s%s: their error says little of new ones", root, said)
    return said


__all__ = ["SUFFIXES", "load_folder", "read_image"]
