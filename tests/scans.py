"""Medical files for tests: valid ones, written by the packages that read them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest


def require_medical() -> None:
    """Skip where the extra ``medical`` is not installed."""
    for name in ("pydicom", "nibabel"):
        pytest.importorskip(name, reason=f"{name} is not installed: pip install 'torchcaps[medical]'")


def write_dicom(
    path: Path,
    pixels: np.ndarray,
    *,
    kind: str = "MONOCHROME2",
    bits: int | None = None,
    n_frames: int | None = None,
    groups: dict[str, Any] | None = None,
    **fields: Any,
) -> Path:
    """Write a DICOM file of ``[H, W]``, ``[H, W, 3]`` or ``[N, H, W]``; ``groups`` are those that all frames share."""
    from pydicom.dataset import Dataset, FileMetaDataset
    from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid

    file = Dataset()
    file.file_meta = FileMetaDataset()
    file.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    file.SOPClassUID = CTImageStorage
    file.SOPInstanceUID = generate_uid()
    file.SeriesInstanceUID, file.StudyInstanceUID, file.Modality = generate_uid(), generate_uid(), "CT"
    colours = pixels.ndim == 3 and n_frames is None
    file.Rows, file.Columns = pixels.shape[:2] if colours else pixels.shape[-2:]
    file.SamplesPerPixel, file.PhotometricInterpretation = (3, "RGB") if colours else (1, kind)
    if colours:
        file.PlanarConfiguration = 0
    if n_frames is not None:
        file.NumberOfFrames = n_frames
    file.BitsAllocated = 8 * pixels.itemsize
    file.BitsStored = bits or file.BitsAllocated
    file.HighBit, file.PixelRepresentation = file.BitsStored - 1, int(pixels.dtype.kind == "i")
    if groups is not None:
        shared = Dataset()
        for name, values in groups.items():
            item = Dataset()
            for field, value in values.items():
                setattr(item, field, value)
            setattr(shared, name, [item])
        file.SharedFunctionalGroupsSequence = [shared]
    for name, value in fields.items():
        setattr(file, name, value)
    file.PixelData = pixels.tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    file.save_as(path, enforce_file_format=True)
    return path


def write_nifti(path: Path, values: np.ndarray, affine: np.ndarray | None = None, **fields: Any) -> Path:
    """Write a NIfTI volume; ``fields`` are some of its header."""
    import nibabel

    file = nibabel.Nifti1Image(values, np.diag([1.0, 1, 2, 1]) if affine is None else affine)
    for name, value in fields.items():
        file.header[name] = value
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(file, path)
    return path


def write_volumes(root: Path, n: int = 6, shape: tuple[int, int, int] = (20, 16, 5)) -> Path:
    """Write volumes with a bright box in each, where its mask is 1; the first slice shows nothing."""
    rng = np.random.default_rng(0)
    for k in range(n):
        mask = np.zeros(shape, np.uint8)
        mask[2 + k % 7 : 9 + k % 7, 3 + k % 4 : 10 + k % 4, 1:] = 1
        values = rng.integers(-1000, -900, shape).astype(np.int16)
        values[mask == 1] = 60
        write_nifti(root / "images" / f"p{k}.nii.gz", values)
        write_nifti(root / "masks" / f"p{k}.nii.gz", mask)
    return root
