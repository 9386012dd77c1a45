"""Your own images with masks: a folder with ``images`` and ``masks``, a file of the same name in each."""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Hashable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from torchcaps.checks import check_two
from torchcaps.data.image_file import Frames, check_reading
from torchcaps.data.images import Dataset, Images, fixed_order, labels_of
from torchcaps.data.layout import SUFFIXES
from torchcaps.data.mask_file import MOST_CLASSES, as_bits, nearest, read_mask, shown_size
from torchcaps.data.pixels import read_files
from torchcaps.data.splits import SPLITS, TEST, VALIDATION, check_apart, find_groups, find_splits, stratify

#: Faults that are named in an error.
_NAMED = 20
#: Sides of the images by default.
_SIZE = (64, 64)


def load_mask_folder(
    root: Path | None = None,
    image_size: tuple[int, int] | None = None,
    classes: Sequence[str] | None = None,
    groups: str | None = None,
    split: str | None = None,
    *,
    max_value: int | None = None,
    frames: Frames = "one",
) -> Dataset:
    """Images of any size and their masks: ``images/NAME.jpg`` and ``masks/NAME.png``, perhaps in sub-folders.

    A mask has the size of its image. Its pixels are numbers of classes: 0 is background, 1 the first class. With one
    class 255 will do for 1. A mask is grey or has a palette, whose colours do not count.

    About 70 % train, 10 % validate and 20 % test. Which do follows from the images' content alone, as in
    :func:`~torchcaps.data.folder.load_folder`; images are shared out by the rarest class that they show.

    Args:
        root: the folder.
        image_size: (height, width) that all are resized to, whatever their proportions; by default 64×64. SegCaps wants
            multiples of 8. Masks take the nearest pixel.
        classes: names of the classes 1, 2, …; by default one, "foreground".
        groups: whose image each is, such as one patient's: a regular expression on its path below ``images``, or a
            ``.csv`` table (:func:`~torchcaps.data.splits.find_groups`). Each group comes into one split.
        split: a ``.csv`` table with the columns ``file`` and ``split``, which is train, val or test.
        max_value: the value that is white in grey images of more than 8 bits.
        frames: "one" refuses images of several pictures, "first" takes the first of each.

    Raises:
        ValueError: no such folders; an image without a mask or a mask without an image; another size; values of no
            class; files that cannot be read. All of them are named. Besides, a split without images, and a class in no
            mask to train on.
    """
    folders = [Path(root) / name for name in ("images", "masks")] if isinstance(root, str | Path) else []
    if not folders or "\0" in str(root) or not all(folder.is_dir() for folder in folders):
        raise ValueError(f"data.root must be a folder with the sub-folders images and masks, got {root}")
    assert root is not None
    if image_size is not None:
        check_two("data.image_size", image_size, 1)
    check_reading(max_value, frames)
    names = _names(classes)
    pairs = _pairs(*folders)
    files, size = [image for image, _ in pairs], image_size or _SIZE
    masks = _read_masks(pairs, len(names), size)
    pixels = read_files(files, size, max_value=max_value, frames=frames)
    _refuse(Path(root), pixels.broken)
    whose = None if groups is None else find_groups(groups, Path(root), [(file, folders[0]) for file in files])
    rarest = _rarest(labels_of(masks), masks)
    if split is not None:
        split_of = find_splits(split, Path(root), files)
        check_apart(whose or (), split_of if whose else ())
    else:
        split_of = _shared_out(rarest, pixels.digests, whose)
    parts = _parts(pixels.images, masks, whose, split_of)
    _require_all(Path(root), names, parts)
    by = "by content" if split is None else f"by {split}"
    note = f"split {by}" + (f" in the groups of {groups}" if groups is not None else "")
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


def _pairs(images: Path, masks: Path) -> list[tuple[Path, Path]]:
    """Find each image's mask by its name without the ending.

    Raises:
        ValueError: naming files without a partner, or two of one name.
    """
    found = [_by_name(images), _by_name(masks)]
    faults = [f"{path} has no mask {masks / name}.png" for name, path in found[0].items() if name not in found[1]]
    faults += [f"{path} has no image {images / name}.*" for name, path in found[1].items() if name not in found[0]]
    _refuse(images.parent, faults)
    return [(path, found[1][name]) for name, path in found[0].items()]


def _by_name(folder: Path) -> dict[str, Path]:
    inside = (path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
    found = dict[str, Path]()
    for path in sorted(path for path in inside if not path.name.startswith(".")):
        name = path.relative_to(folder).with_suffix("").as_posix()
        if name in found:
            raise ValueError(f"{folder} must have one file of a name, got {found[name].name} and {path.name}")
        found[name] = path
    if not found:
        raise ValueError(f"{folder} must hold images ({', '.join(SUFFIXES)}), got none")
    return found


def _read_masks(pairs: Sequence[tuple[Path, Path]], n_classes: int, size: tuple[int, int]) -> Tensor:
    """Read the masks of images, resized, ``[N, J, H, W]`` bool."""
    masks, faults = torch.zeros(len(pairs), n_classes, *size, dtype=torch.bool), list[str]()
    for k, (image, path) in enumerate(pairs):
        try:
            numbers, wanted = read_mask(path, n_classes), shown_size(image)
        except ValueError as error:
            faults.append(str(error))
            continue
        if numbers.shape != wanted:
            sizes = ["×".join(map(str, each)) for each in (wanted, numbers.shape)]
            faults.append(f"{path} must be {sizes[0]} as {image.name}, got {sizes[1]}")
            continue
        # Numbers are resized, not the masks of each class: that is as exact, and takes a fraction of the memory.
        resized = nearest(torch.from_numpy(np.ascontiguousarray(numbers))[None, None], size)
        masks[k] = as_bits(resized[0, 0], n_classes)
    _refuse(pairs[0][1].parent, faults)
    return masks


def _refuse(root: Path, faults: Sequence[str]) -> None:
    """Name all files that something is wrong with."""
    if len(faults) == 1:
        raise ValueError(faults[0])
    if faults:
        more = [f"and {len(faults) - _NAMED} more"] if len(faults) > _NAMED else []
        raise ValueError("\n  ".join([f"{root}: {len(faults)} files must be mended:", *faults[:_NAMED], *more]))


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


def _parts(images: Tensor, masks: Tensor, whose: Sequence[str] | None, split_of: Sequence[str]) -> dict[str, Images]:
    """Share images out to their splits, in a fixed random order."""
    rank = {group: k for k, group in enumerate(sorted(set(whose or ())))}
    groups = None if whose is None else torch.tensor([rank[group] for group in whose])
    parts = {}
    for split in SPLITS:
        places = torch.tensor([k for k, each in enumerate(split_of) if each == split], dtype=torch.int64)
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
