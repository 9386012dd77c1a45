"""What a trained network says of every pixel of image files, written as masks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from torchcaps.data.image_file import as_pixels, read_image
from torchcaps.data.images import to_float
from torchcaps.data.mask_file import as_numbers, shown_size, write_mask
from torchcaps.data.mask_pairs import MASKED_SUFFIXES
from torchcaps.data.medical import is_volume, stem_of, suffix_of
from torchcaps.data.nifti import label_volume, read_volume
from torchcaps.progress import with_time_left
from torchcaps.training.checkpoint import Trained, load_model
from torchcaps.training.files import write_atomically
from torchcaps.training.prediction_table import image_files
from torchcaps.training.run import Run
from torchcaps.typed import typed


@typed
def predict_masks(
    run: Run | str | Path, paths: Sequence[str | Path], *, invert: bool = False
) -> Iterator[tuple[str, Tensor | ValueError]]:
    """Segment image files, one after the other.

    Args:
        run: a finished run that segments, or its folder.
        paths: image files of any size, DICOM files and NIfTI volumes, whose slices are segmented one by one. The
            network sees them at the size that it was trained on. Its scores are enlarged to the image's own size before
            classes are chosen. A network that was trained on crops sees whole images, resized as in training.
        invert: exchange light and dark first.

    Returns:
        For each path, as text, the number of the class at each pixel, ``[H, W]`` uint8, or at each voxel, ``[X, Y, Z]``
        in the order of the volume's axes: 0 is background, 1 the first class, that with the highest score above ½. Or
        what is wrong with a file that cannot be read.

    Raises:
        ValueError: no finished run, or one that does not segment.
    """
    run = run if isinstance(run, Run) else Run(run)
    trained, data = _trained(run), run.experiment().data
    channels = 3 if trained.image_shape[0] == 3 else 1
    reading = {name: data.options[name] for name in ("max_value", "frames", "window") if name in data.options}

    def numbers(path: Path) -> Tensor:
        if is_volume(path):
            volume = read_volume(path, reading.get("window"), first=reading.get("frames") == "first")
            found = _of_slices(trained, volume.slices, f"segment {path.name}", channels, invert=invert)
            return torch.from_numpy(volume.in_file(found).copy())
        image, size = read_image(path, trained.uncropped, channels, **reading), shown_size(path)
        return _segmented(trained, image, size, invert=invert)

    def each() -> Iterator[tuple[str, Tensor | ValueError]]:
        for path in map(str, paths):
            try:
                yield path, numbers(Path(path))
            except ValueError as error:
                yield path, error

    return each()


def _trained(run: Run) -> Trained:
    task = run.experiment().data.task
    if not task.segments:
        raise ValueError(f"{run.path} must hold a network that segments to write masks, got {task.kind}")
    return load_model(run)


@torch.no_grad()
def _segmented(trained: Trained, image: Tensor, size: tuple[int, int], *, invert: bool) -> Tensor:
    image = image.expand(trained.image_shape[0], -1, -1).unsqueeze(0)
    scores = trained.model(to_float(255 - image if invert else image)).scores.float()
    enlarged = F.interpolate(scores, size=size, mode="bilinear", align_corners=False)
    return as_numbers(enlarged)[0].to(torch.uint8)


def _of_slices(trained: Trained, slices: np.ndarray, what: str, channels: int, *, invert: bool) -> np.ndarray:
    """Segment slices ``[Z, H, W]``, one by one."""
    found = np.empty_like(slices)
    for k, each in enumerate(with_time_left(slices, what, len(slices))):
        image = as_pixels(each, trained.uncropped, channels)
        found[k] = _segmented(trained, image, (each.shape[0], each.shape[1]), invert=invert).numpy()
    return found


def write_masks(
    run: str | Path, paths: Sequence[str | Path], folder: str | Path, *, invert: bool = False
) -> tuple[list[Path], list[str]]:
    """Segment image files, and write ``NAME.png`` for each: numbers of classes, with a palette for people.

    Of a NIfTI volume ``NAME.nii`` or ``NAME.nii.gz``, as it is called itself, with its shape and affine.

    Args:
        run: a finished run's folder.
        paths: image files, and folders of such.
        folder: where masks go; nothing there is overwritten.
        invert: exchange light and dark first.

    Returns:
        The masks that were written, and what is wrong with files that cannot be read.

    Raises:
        ValueError: no finished run that segments; no image; two images of one name; or a mask that is there already.
    """
    _trained(Run(run))
    place, files = Path(folder).expanduser(), image_files(paths, MASKED_SUFFIXES, scans=True)
    if place.exists() and not place.is_dir():
        raise ValueError(f"masks must be written to a folder, got {place}, which is a file")
    masks = {file: place / _mask_name(Path(file)) for file in files}
    name, n = Counter(masks.values()).most_common(1)[0]
    if n > 1:
        raise ValueError(f"images must have different names, got {n} whose mask would be {name}")
    there = [mask for mask in masks.values() if mask.exists()]
    if there:
        raise ValueError(f"masks must be written to new files, got {there[0]}, which is there")
    written, wrong = list[Path](), list[str]()
    for path, found in with_time_left(predict_masks(run, files, invert=invert), "segment", len(files)):
        if isinstance(found, ValueError):
            wrong.append(str(found))
            continue
        if is_volume(Path(path)):
            content = label_volume(found.numpy(), Path(path))
            write_atomically(masks[path], lambda to, content=content: to.write_bytes(content))
        else:
            write_atomically(masks[path], lambda to, found=found: write_mask(to, found))
        written.append(masks[path])
    return written, wrong


def _mask_name(image: Path) -> str:
    return stem_of(image) + (suffix_of(image) if is_volume(image) else ".png")
