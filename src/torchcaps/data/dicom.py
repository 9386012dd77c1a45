"""DICOM files as pictures: values in their units, a window of them as greys, and whose they are."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from torchcaps.data.medical import Scale, Window, reader_of, scale_of

#: What holds pixels.
_PIXELS = ("PixelData", "FloatPixelData", "DoubleFloatPixelData")
_IDENTITIES = ["PatientID", "SeriesInstanceUID"]


class _OfTheFile(ValueError):
    """Say what is wrong with which file."""


def read_dicom(path: Path, window: Window = None, *, first: bool = False) -> tuple[np.ndarray, bytes]:
    """Read a DICOM file as a viewer shows it.

    Values are rescaled to their units, such as Hounsfield's, before the window is applied. MONOCHROME1, where large
    values are dark, is inverted. What is padding is black, and does not count for the default window. Colours have no
    window.

    Args:
        path: the file.
        window: centre and width in the file's units; "file" for the first one that the file names; None for its 0.5th
            to 99.5th percentile.
        first: take the first of several frames, instead of refusing them.

    Returns:
        The picture, ``[H, W]`` or ``[H, W, 3]`` uint8, and a digest of what is stored. Of pictures that are the same
        everywhere, such as air, the digest is the file's own: they make no two patients one.

    Raises:
        ValueError: naming the file; no picture, several of them, or no window where the file's own is wanted.

    Source of the formulas: DICOM PS3.3, C.11.2.1.2.
    """
    with _opened(path) as file:
        stored = _stored(path, file, first=first)
        content = stored.tobytes() if (stored != stored.flat[0]).any() else str(path).encode()
        return _shown(path, file, stored, window), hashlib.sha256(f"{stored.shape}".encode() + content).digest()


def read_dicom_numbers(path: Path, *, first: bool = False) -> np.ndarray:
    """Read the values of a DICOM file in its units, ``[H, W]``.

    Raises:
        ValueError: naming the file; no picture, several of them, or colours.
    """
    with _opened(path) as file:
        stored = _stored(path, file, first=first)
        if stored.ndim != 2:
            raise _OfTheFile(f"{path} must be grey to name classes by numbers, got {file.PhotometricInterpretation}")
        return _in_units(file, stored)


def dicom_size(path: Path) -> tuple[int, int]:
    """Return (height, width) of a DICOM file's picture.

    Raises:
        ValueError: naming the file, which has none.
    """
    with _opened(path, stop_before_pixels=True) as file:
        return int(file.Rows), int(file.Columns)


def identities_of(path: Path) -> tuple[str, str]:
    """Return the patient that a DICOM file names, and its series; "" where it names none.

    Raises:
        ValueError: the file cannot be read.
    """
    with _opened(path, specific_tags=_IDENTITIES) as file:
        patient, series = (str(file.get(name) or "").strip() for name in _IDENTITIES)
        return patient, series


@contextmanager
def _opened(path: Path, **options: Any) -> Iterator[Any]:
    """Read a file: whatever is broken in it is named."""
    reader = reader_of(path)
    try:
        yield reader.dcmread(path, **options)
    except (_OfTheFile, MemoryError):
        raise
    except Exception as error:  # pydicom raises whatever broken bytes lead it to, and for codecs that are not there
        raise ValueError(f"{path} cannot be read as a DICOM image: {error}") from error


def _stored(path: Path, file: Any, *, first: bool) -> np.ndarray:
    """Return the stored numbers of the first frame, ``[H, W]``, or its colours ``[H, W, 3]``."""
    if not any(name in file for name in _PIXELS):
        raise _OfTheFile(f"{path} must hold a picture, got {file.get('Modality') or 'a file'} without pixels")
    n = int(file.get("NumberOfFrames") or 1)
    if n > 1 and not first:
        raise _OfTheFile(
            f"{path} must hold one picture, got {n}: save each as a file, or data.options.frames=first takes the first"
        )
    pixels = file.pixel_array  # YBR is RGB by then, and signs are extended
    return pixels[0] if n > 1 else pixels


def _shown(path: Path, file: Any, stored: np.ndarray, window: Window) -> np.ndarray:
    kind, bits = str(file.PhotometricInterpretation), int(file.BitsStored)
    if kind == "PALETTE COLOR":
        from pydicom.pixels.processing import apply_color_lut  # pyright: ignore[reportMissingImports]

        stored = apply_color_lut(stored, file)[..., :3]
        bits = 8 * stored.itemsize
    if stored.ndim == 3:
        return (stored >> max(0, bits - 8)).astype(np.uint8)
    values, padding = _in_units(file, stored), _padding(file, stored)
    scale = _own_scale(path, file) if window == "file" else scale_of(values[~padding], window)
    greys = scale.greys(values)
    return np.where(padding, 0, 255 - greys if kind == "MONOCHROME1" else greys).astype(np.uint8)


def _in_units(file: Any, stored: np.ndarray) -> np.ndarray:
    """Apply the rescale, which enhanced files have in a functional group (findings/pydicom-enhanced-rescale.sh)."""
    if file.get("ModalityLUTSequence"):
        from pydicom.pixels.processing import apply_modality_lut  # pyright: ignore[reportMissingImports]

        return apply_modality_lut(stored, file)
    of = file if "RescaleSlope" in file else _of_first_frame(file, "PixelValueTransformationSequence")
    return stored if of is None else stored * float(of.RescaleSlope) + float(of.RescaleIntercept)


def _own_scale(path: Path, file: Any) -> Scale:
    """Return the scale of the first window that the file names."""
    of = file if "WindowCenter" in file else _of_first_frame(file, "FrameVOILUTSequence")
    if of is None or of.get("WindowCenter") is None or of.get("WindowWidth") is None:
        raise _OfTheFile(f"{path} must name a window for data.options.window=file, got none")
    centre, width = _first(of.WindowCenter), _first(of.WindowWidth)
    kind = str(of.get("VOILUTFunction") or "LINEAR")
    if kind == "LINEAR":
        return Scale(centre - width / 2, centre + width / 2 - 1)
    return Scale(centre - width / 2, centre + width / 2, sigmoid=kind == "SIGMOID")


def _first(value: Any) -> float:
    """Return a number, or the first of several."""
    return float(value if isinstance(value, int | float | str) else value[0])


def _of_first_frame(file: Any, name: str) -> Any:
    """Return the functional group of this name: the first frame's own, or that of all frames."""
    for place in ("PerFrameFunctionalGroupsSequence", "SharedFunctionalGroupsSequence"):
        groups = file.get(place)
        if groups and groups[0].get(name):
            return groups[0].get(name)[0]
    return None


def _padding(file: Any, stored: np.ndarray) -> np.ndarray:
    """Return where nothing was measured, ``[H, W]`` bool."""
    if file.get("PixelPaddingValue") is None:
        return np.zeros(stored.shape, bool)
    ends = sorted((int(file.PixelPaddingValue), int(file.get("PixelPaddingRangeLimit", file.PixelPaddingValue))))
    return (stored >= ends[0]) & (stored <= ends[1])
