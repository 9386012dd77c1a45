"""Your own images with masks: a folder with ``images`` and ``masks``, a file of the same name in each."""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor

from torchcaps.checks import check_choice, check_two
from torchcaps.data.dicom import identities_of
from torchcaps.data.image_file import Frames, check_reading
from torchcaps.data.images import Dataset, Images, fixed_order, labels_of
from torchcaps.data.mask_file import MOST_CLASSES
from torchcaps.data.mask_pairs import find_pairs, read_pairs
from torchcaps.data.medical import Window, find_patients, is_medical
from torchcaps.data.splits import SPLITS, TEST, VALIDATION, check_apart, find_groups, find_splits, stratify

#: Sides of the images by default.
_SIZE = (64, 64)
#: What happens to images without any class: they are kept, or left out of training.
Empty = Literal["keep", "drop"]


def load_mask_folder(
    root: Path | None = None,
    image_size: tuple[int, int] | None = None,
    classes: Sequence[str] | None = None,
    groups: str | None = None,
    split: str | None = None,
    *,
    max_value: int | None = None,
    frames: Frames = "one",
    window: Window = None,
    empty: Empty = "keep",
) -> Dataset:
    """Images of any size and their masks: ``images/NAME.jpg`` and ``masks/NAME.png``, perhaps in sub-folders.

    A mask has the size of its image. Its pixels are numbers of classes: 0 is background, 1 the first class. With one
    class 255 will do for 1. A mask is grey or has a palette, whose colours do not count.

    With the extra ``medical``, DICOM files (``.dcm``, or without an ending) and NIfTI volumes (``.nii``, ``.nii.gz``)
    are read too. A volume is cut into axial slices, with the patient's right on the left; its mask is a volume of the
    same shape and affine. All slices of a patient come into one split. A sub-folder of such files is a patient, and so
    is a volume beside others. Other DICOM files go by the patients that they name, or by their series.

    About 70 % train, 10 % validate and 20 % test. Which do follows from the images' content alone, as in
    :func:`~torchcaps.data.folder.load_folder`; images are shared out by the rarest class that they show.

    Args:
        root: the folder.
        image_size: (height, width) that all are resized to, whatever their proportions; by default 64×64. Masks
            take the nearest pixel.
        classes: names of the classes 1, 2, …; by default one, "foreground".
        groups: whose image each is, such as one patient's: a regular expression on its path below ``images``, or a
            ``.csv`` table (:func:`~torchcaps.data.splits.find_groups`). Each group comes into one split.
        split: a ``.csv`` table with the columns ``file`` and ``split``, which is train, val or test.
        max_value: the value that is white in grey images of more than 8 bits, of DICOM and NIfTI none.
        frames: "one" refuses images of several pictures, "first" takes the first of each.
        window: values that DICOM files and volumes show, as centre and width in their own units, such as [40, 400] in
            Hounsfield's; "file" for those that each file names; by default from the 0.5th to the 99.5th percentile of
            each file. What lies outside is black or white.
        empty: "drop" leaves images without any class out of training. Validation and test keep them.

    Raises:
        ValueError: no such folders; an image without a mask or a mask without an image; another size or affine; values
            of no class; files that cannot be read. All of them are named. Besides, a package that is not installed, too
            few patients, a split without images, and a class in no mask to train on.
    """
    folders = [Path(root) / name for name in ("images", "masks")] if isinstance(root, str | Path) else []
    if not folders or "\0" in str(root) or not all(folder.is_dir() for folder in folders):
        raise ValueError(f"data.root must be a folder with the sub-folders images and masks, got {root}")
    assert root is not None
    if image_size is not None:
        check_two("data.image_size", image_size, 1)
    check_reading(max_value, frames, window)
    check_choice("data.options.empty", empty, get_args(Empty))
    names = _names(classes)
    pairs = find_pairs(*folders)
    files = [image for image, _ in pairs]
    if window is not None and not any(map(is_medical, files)):
        raise ValueError(f"data.options.window must be left alone without DICOM or NIfTI images, got {window}")
    if groups is not None:
        whose = find_groups(groups, Path(root), [(file, folders[0]) for file in files])
    else:
        whose = find_patients(files, folders[0], identities_of) if split is None else None
    named = None if split is None else find_splits(split, Path(root), files)
    if named is not None:
        check_apart(whose or (), named if whose else ())
    read = read_pairs(pairs, len(names), image_size or _SIZE, max_value=max_value, frames=frames, window=window)
    images, masks = read.images, read.masks
    whose = None if whose is None else [whose[k] for k in read.files]
    rarest = _rarest(labels_of(masks), masks)
    split_of = [named[k] for k in read.files] if named is not None else _shared_out(rarest, read.digests, whose)
    parts = _parts(images, masks, whose, split_of, drop=empty == "drop")
    _require_all(Path(root), names, parts)
    by = "by content" if split is None else f"by {split}"
    by += "" if whose is None else " in patients" if groups is None else f" in the groups of {groups}"
    note = f"split {by}"
    return Dataset(Path(root).resolve().name, names, parts["train"], parts["val"], parts["test"], note=note)


def _names(classes: Sequence[str] | None) -> tuple[str, ...]:
    if classes is None:
        return ("foreground",)
    wanted = f"data.options.classes must list 1 to {MOST_CLASSES} different names"
    if isinstance(classes, str) or not isinstance(classes, Sequence) or not 1 <= len(classes) <= MOST_CLASSES:
        raise ValueError(f"{wanted}, got {classes!r:.80}")
    names = tuple(map(str, classes))
    if len(set(names)) < len(names):
        raise ValueError(f"{wanted}, got {', '.join(names)}")
    return names


def _rarest(labels: Tensor, masks: Tensor) -> list[str]:
    """Name of each image the class that the fewest images show; "" of background alone."""
    shown = labels if labels.dim() == 2 else masks.flatten(2).any(dim=2)
    counts = shown.sum(dim=0)
    rarest = torch.where(shown, counts, len(shown) + 1).argmin(dim=1)
    return [str(int(k)) if there else "" for k, there in zip(rarest, shown.any(dim=1), strict=True)]


def _shared_out(rarest: Sequence[str], digests: Sequence[bytes], whose: Sequence[str] | None) -> list[str]:
    """Draw the split of each image by its content; of a group by its name."""
    if whose is None:
        return stratify(rarest, [(digest,) for digest in digests], digests, {"test": TEST, "val": VALIDATION})
    ties: list[Sequence[Hashable]] = list(zip(digests, whose, strict=True))
    draws = [hashlib.sha256(group.encode()).digest() for group in whose]
    return stratify(rarest, ties, draws, {"test": TEST, "val": VALIDATION})


def _parts(
    images: Tensor, masks: Tensor, whose: Sequence[str] | None, split_of: Sequence[str], *, drop: bool
) -> dict[str, Images]:
    """Share images out to their splits, in a fixed random order; ``drop`` leaves empty ones out of training."""
    shows = masks.flatten(1).any(dim=1).tolist()
    rank = {group: k for k, group in enumerate(sorted(set(whose or ())))}
    groups = None if whose is None else torch.tensor([rank[group] for group in whose])
    parts = {}
    for split in SPLITS:
        places = torch.tensor(
            [k for k, each in enumerate(split_of) if each == split and (shows[k] or not drop or split != "train")],
            dtype=torch.int64,
        )
        places = places[fixed_order(len(places), 0)]
        factors = {} if groups is None else {"group": groups[places]}
        parts[split] = Images(images[places], labels_of(masks[places]), factors, masks[places])
    return parts


def _require_all(root: Path, names: Sequence[str], parts: dict[str, Images]) -> None:
    """See that every split has images, and that every class trains; say which class another split lacks."""
    for split, part in parts.items():
        if not len(part):
            counts = Counter({name: len(each) for name, each in parts.items()})
            raise ValueError(
                f"{root} must have more images: of {counts.total()} none came to the {split} split, which takes three "
                "that show something different, or of three groups"
            )
        assert part.masks is not None
        shown = part.masks.flatten(2).any(dim=2).any(dim=0).tolist()
        absent = [name for name, there in zip(names, shown, strict=True) if not there]
        if absent and split == "train":
            raise ValueError(f"{root} must show {', '.join(absent)} in a mask to train on, got none that does")
        if absent:
            logging.getLogger("torchcaps").warning(
                "%s: no mask of the %s split has %s, so it says nothing of them", root, split, ", ".join(absent)
            )
