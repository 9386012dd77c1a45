"""Medical image files: what they are called, which package reads them, whose they are, and how values become greys."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from torchcaps.checks import check_number

DICOM = (".dcm", ".dicom")
NIFTI = (".nii", ".nii.gz")
MEDICAL_SUFFIXES = (*DICOM, *NIFTI)

#: Which values are shown: centre and width; those of the file; or None for most of what the file holds.
Window = tuple[float, float] | Literal["file"] | None
#: Per cent of a file's values that the greys span by default. Few extreme ones, such as of metal, do not count.
_SPAN = (0.5, 99.5)
#: Patients that the splits need.
_LEAST = 3


class Scale(NamedTuple):
    """Hold where values turn black and white.

    Attributes:
        black: this value and all below are black.
        white: this value and all above are white.
        sigmoid: whether the values between follow a sigmoid, as a DICOM file may want, instead of a line.
    """

    black: float
    white: float
    sigmoid: bool = False

    def greys(self, values: np.ndarray) -> np.ndarray:
        """Return values of any shape as uint8; what is no number is black."""
        known, width = np.nan_to_num(values.astype(np.float32), nan=self.black), self.white - self.black
        if self.sigmoid:
            shares = 1 / (1 + np.exp(-4 * np.clip((known - self.black) / width - 0.5, -9, 9)))
        elif width <= 0:
            shares = (known > self.white).astype(np.float32)
        else:
            shares = np.clip((known - self.black) / width, 0, 1)
        return (255 * shares).round().astype(np.uint8)


def check_window(window: object) -> None:
    """Refuse a window that is none.

    Raises:
        ValueError: neither None, "file", nor a centre and a width above 0.
    """
    if window is None or window == "file":
        return
    if not isinstance(window, Sequence) or isinstance(window, str) or len(window) != 2:
        raise ValueError(f"data.options.window must be a centre and a width, or file, got {window!r:.80}")
    for value in window:
        check_number("data.options.window", value)
    if not window[1] > 0:
        raise ValueError(f"data.options.window must have a width above 0, got {window[1]}")


def scale_of(values: np.ndarray, window: tuple[float, float] | None) -> Scale:
    """Return the scale of a window, or that of the values: from their 0.5th to their 99.5th percentile."""
    if window is not None:
        centre, width = window
        return Scale(centre - width / 2, centre + width / 2)
    finite = values[np.isfinite(values)]
    if not len(finite):
        return Scale(0, 0)
    black, white = np.percentile(finite, _SPAN)
    return Scale(float(black), float(white))


def suffix_of(path: Path) -> str:
    """Return a file's ending in small letters, ".nii.gz" as a whole; a number, as of "1.2.840.113619", is none."""
    if path.name.lower().endswith(".nii.gz"):
        return ".nii.gz"
    return "" if path.suffix[1:].isdecimal() else path.suffix.lower()


def stem_of(path: Path) -> str:
    """Return a file's name without its ending."""
    return path.name[: len(path.name) - len(suffix_of(path))]


def is_dicom(path: Path) -> bool:
    """Return whether a file is called as DICOM files are, or has no ending and begins as they do."""
    return suffix_of(path) in DICOM or is_unnamed_dicom(path)


def is_unnamed_dicom(path: Path) -> bool:
    """Return whether a file without an ending, as scanners name them ("IM000001"), begins as DICOM images do.

    Source: DICOM PS3.10, 7.1: 128 bytes for any use, then "DICM".
    """
    if suffix_of(path) or is_index(path):
        return False
    try:
        with path.open("rb") as file:
            return file.read(132)[128:] == b"DICM"
    except OSError:
        return False


def is_index(path: Path) -> bool:
    """Return whether a file is called as the index of a medium with DICOM files, which shows nothing itself."""
    return path.name.upper() == "DICOMDIR"


def is_medical(path: Path) -> bool:
    """Return whether a file is a DICOM file or a NIfTI volume."""
    return is_dicom(path) or is_volume(path)


def is_volume(path: Path) -> bool:
    """Return whether a file is called as NIfTI volumes are."""
    return suffix_of(path) in NIFTI


def reader_of(path: Path) -> Any:
    """Import the package that reads a medical file.

    Raises:
        ValueError: it is not installed.
    """
    name = "pydicom" if is_dicom(path) else "nibabel"
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ValueError(f"{path} needs {name}: pip install 'torchcaps[medical]' ({error})") from error


def find_patients(
    files: Sequence[Path], images: Path, identities: Callable[[Path], tuple[str, str]]
) -> list[str] | None:
    """Return whose each file is, where medical files are among them; None where none is.

    Files in a sub-folder are those of one patient, whatever folders are in it. Other DICOM files are of the patient
    that they name, if they name three or more, else of their series. Another file is a patient of its own.

    Args:
        files: the images.
        images: the folder that they lie in.
        identities: returns the patient and the series of a DICOM file.

    Raises:
        ValueError: there are fewer than three patients.
    """
    if not any(map(is_medical, files)):
        return None
    inside = {file: file.relative_to(images) for file in files}
    loose = {file: identities(file) for file in files if is_dicom(file) and len(inside[file].parts) == 1}
    are_named = len({patient for patient, _ in loose.values()} - {""}) >= _LEAST

    def whose(file: Path) -> str:
        if len(inside[file].parts) > 1 and is_medical(file):
            return f"{inside[file].parts[0]}/"
        patient, series = loose.get(file, ("", ""))
        return (patient if are_named else "") or series or str(inside[file])

    found = [whose(file) for file in files]
    if len(set(found)) < _LEAST:
        raise ValueError(
            f"{images} must have images of at least three patients, for one cannot be in two splits; got "
            f"{', '.join(sorted(set(found)))}: a sub-folder, a volume and a DICOM series count as one, unless "
            "data.options.groups says whose they are"
        )
    return found
