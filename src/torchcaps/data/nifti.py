"""NIfTI volumes as axial slices, and masks as volumes of the same form."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from torchcaps.data.mask_file import check_numbers
from torchcaps.data.medical import Window, reader_of, scale_of, suffix_of

#: The largest step of stored numbers that can still stand for whole ones.
_STEP = 0.2
#: How far corners of an image and its mask may be apart, in voxels: writers round.
_APART = 0.1


class Volume(NamedTuple):
    """Hold a volume cut into axial slices, from the feet to the head, as radiologists look at them.

    A slice's top is anterior, and its left is the patient's right. Volumes that lie obliquely are not resampled: their
    axes are those nearest to the body's.

    Attributes:
        slices: ``[Z, H, W]``, greys or numbers of classes, uint8.
        path: the file.
        shape: of the file, [X, Y, Z].
        affine: from voxels to millimetres, ``[4, 4]``.
        orientation: of each of the file's axes, which of the body's it is (to the right, the front, the head) and 1 or
            −1 for its direction, ``[3, 2]``.
        digest: of the file's content.
    """

    slices: np.ndarray
    path: Path
    shape: tuple[int, ...]
    affine: np.ndarray
    orientation: np.ndarray
    digest: bytes = b""

    def in_file(self, slices: np.ndarray) -> np.ndarray:
        """Put slices ``[Z, H, W]`` back together, ``[X, Y, Z]`` in the order of the file's axes."""
        from nibabel.orientations import apply_orientation, ornt_transform  # pyright: ignore[reportMissingImports]

        as_the_body = np.array([[0, 1], [1, 1], [2, 1]])
        back = ornt_transform(as_the_body, self.orientation)
        return apply_orientation(slices.transpose(2, 1, 0)[::-1, ::-1], back)


def read_volume(path: Path, window: Window = None, *, first: bool = False) -> Volume:
    """Read a NIfTI volume as greys.

    Args:
        path: a ``.nii`` or ``.nii.gz`` file of three dimensions, or of two, which is one slice; of more with ``first``.
        window: centre and width in the file's units, after its slope and intercept; "file" for the range that the file
            names (cal_min, cal_max); None for the 0.5th to 99.5th percentile of the whole volume.
        first: take the first of several volumes, instead of refusing them.

    Raises:
        ValueError: naming the file; it cannot be read, has another form, or names no range where it has to.

    Source of the form: NIfTI-1, https://nifti.nimh.nih.gov/nifti-1.
    """
    file = _opened(path)
    values = _values(path, file, first=first)
    scale = scale_of(values, window if window != "file" else _own_window(path, file))
    # Slice by slice, as floats of the whole take much memory.
    orientation = _orientation(path, file)
    greys = np.stack([scale.greys(each) for each in _slices(values, orientation)])
    digest = hashlib.sha256(np.ascontiguousarray(values.T).data).digest()
    return Volume(greys, path, values.shape, file.affine, orientation, digest)


def read_label_volume(path: Path, n_classes: int) -> Volume:
    """Read a NIfTI volume of numbers of classes; arguments and errors are those of ``read_mask``.

    Numbers may be stored as floats that are whole. Where a file stores floats as integers with a slope, half of the
    slope is rounding (findings/nibabel-label-scaling.sh).
    """
    file = _opened(path)
    values = _values(path, file, first=False)
    if values.dtype.kind == "f":
        values = _whole(path, values, _rounding(file, values))
    known, orientation = check_numbers(path, values, n_classes), _orientation(path, file)
    return Volume(_slices(known, orientation), path, values.shape, file.affine, orientation)


def _whole(path: Path, values: np.ndarray, rounding: float) -> np.ndarray:
    finite = np.isfinite(values)
    whole = np.rint(np.where(finite, values, 0))
    apart = ~finite | (np.abs(np.where(finite, values, 0) - whole) > rounding)
    if apart.any():
        place = np.argwhere(apart)[0]
        raise ValueError(
            f"{path} must hold whole numbers, of classes, got {values[tuple(place)]:.6g} "
            f"(voxel {', '.join(map(str, place))})"
        )
    return whole.astype(np.int64)


def check_aligned(image: Volume, mask: Volume) -> None:
    """Refuse a mask that does not lie where its image does.

    Raises:
        ValueError: naming both files, and their shapes or affines.
    """
    if image.shape != mask.shape:
        shapes = ["×".join(map(str, each.shape)) for each in (image, mask)]
        raise ValueError(f"{mask.path} must be {shapes[0]} as {image.path}, got {shapes[1]}")
    corners = np.stack(np.meshgrid(*((0, n - 1) for n in image.shape), [1]), axis=-1).reshape(-1, 4)
    sides = np.linalg.norm(image.affine[:3, :3], axis=0)
    apart = np.linalg.norm(corners @ (image.affine - mask.affine).T, axis=1).max() / sides.min()
    if not apart <= _APART:
        raise ValueError(
            f"{mask.path} must lie where {image.path} does, got another affine: {_rows(mask.affine)} instead of "
            f"{_rows(image.affine)}"
        )


def label_volume(numbers: np.ndarray, like: Path) -> bytes:
    """Return numbers of classes as a NIfTI file with the affine of another, compressed if that is.

    Args:
        numbers: ``[X, Y, Z]`` uint8, in the order of the file's axes.
        like: the volume that they are of.

    Raises:
        ValueError: it cannot be read.
    """
    source = _opened(like)
    header = source.header.copy()
    header.set_data_dtype(np.uint8)
    header["cal_min"] = header["cal_max"] = 0
    shape = source.shape if np.prod(source.shape) == numbers.size else source.shape[:3]
    content = type(source)(numbers.reshape(shape), source.affine, header).to_bytes()
    return gzip.compress(content, mtime=0) if suffix_of(like) == ".nii.gz" else content


def _opened(path: Path) -> Any:
    nibabel = reader_of(path)
    try:
        file = nibabel.load(path)
    except Exception as error:  # nibabel raises errors of its own, of zlib and of the system
        raise ValueError(f"{path} cannot be read as a NIfTI volume: {error}") from error
    if not isinstance(file, nibabel.Nifti1Image):  # of Nifti2Image too; a pair of files has other endings
        raise ValueError(f"{path} must be a NIfTI volume, got {type(file).__name__}")
    return file


def _values(path: Path, file: Any, *, first: bool) -> np.ndarray:
    """Return the values ``[X, Y, Z]``: as they are stored, or float64 where the file has a slope."""
    shape = tuple(file.shape)
    if file.get_data_dtype().fields is not None or file.get_data_dtype().kind == "c":
        raise ValueError(f"{path} must hold one number a voxel, got {file.get_data_dtype()}")
    n = int(np.prod(shape[3:]))
    if len(shape) < 2 or 0 in shape or (n > 1 and not first):
        more = ": data.options.frames=first takes the first volume" if n > 1 else ""
        raise ValueError(f"{path} must be a volume [X, Y, Z], got {'×'.join(map(str, shape))}{more}")
    try:
        values = np.asanyarray(file.dataobj[(..., *(0 for _ in shape[3:]))] if len(shape) > 3 else file.dataobj)
    except Exception as error:
        raise ValueError(f"{path} cannot be read as a NIfTI volume: {error}") from error
    return values.reshape(*shape[:2], -1)


def _rounding(file: Any, values: np.ndarray) -> float:
    """Return how far a stored number can be from a whole one that was written: half a step, and a float32's rounding.

    0 where steps are none, or too large for whole numbers to be known by.
    """
    step = abs(float(file.dataobj.slope))
    is_stepped = file.get_data_dtype().kind in "iu" and step < _STEP
    return step / 2 + 2**-22 * float(np.abs(values).max()) if is_stepped else 0.0


def _own_window(path: Path, file: Any) -> tuple[float, float]:
    low, high = float(file.header["cal_min"]), float(file.header["cal_max"])
    if not low < high:
        raise ValueError(f"{path} must name a range (cal_min, cal_max) for data.options.window=file, got none")
    return (low + high) / 2, high - low


def _orientation(path: Path, file: Any) -> np.ndarray:
    """Return what :class:`Volume` calls the orientation."""
    from nibabel.orientations import io_orientation  # pyright: ignore[reportMissingImports]

    is_whole = bool(np.isfinite(file.affine).all())
    found = io_orientation(file.affine) if is_whole else np.full((3, 2), np.nan)
    if np.isnan(found).any():
        raise ValueError(f"{path} must have an affine that spans three axes, got {_rows(file.affine)}")
    return found


def _slices(values: np.ndarray, orientation: np.ndarray) -> np.ndarray:
    """Cut ``[X, Y, Z]`` into slices ``[Z, H, W]``."""
    from nibabel.orientations import apply_orientation  # pyright: ignore[reportMissingImports]

    right, front, head = 0, 1, 2
    return apply_orientation(values, orientation)[::-1, ::-1].transpose(head, front, right)


def _rows(affine: np.ndarray) -> str:
    return "; ".join(" ".join(f"{value:.4g}" for value in row) for row in affine[:3])
