#!/usr/bin/env bash
# pydicom 3.0.2: apply_modality_lut leaves an enhanced CT in stored numbers, which pass for Hounsfield units.
#
# Guess: apply_modality_lut(file.pixel_array, file) gives Hounsfield units of a CT, whether it is a classic file of one
# slice or an enhanced one of many. apply_voi_lut then shows the window that the file names.
# Seen: an enhanced file has its slope, intercept and window in functional groups, as the standard wants. They are not
# looked for: both functions return the numbers as they are. There is no error and no warning. The same numbers with the
# same fields at the top are rescaled. Upstream it is known and open: pydicom/pydicom#2353.
# What we do: torchcaps.data.dicom takes both from the first frame's functional groups; tests/data/test_dicom.py.
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cat > "$place/try.py" <<'PY'
import sys
import warnings

import numpy as np
import pydicom
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.pixels import apply_modality_lut, apply_voi_lut
from pydicom.uid import CTImageStorage, EnhancedCTImageStorage, ExplicitVRLittleEndian, generate_uid

warnings.simplefilter("error")
RESCALE = {"RescaleSlope": 1, "RescaleIntercept": -1024, "RescaleType": "HU"}
WINDOW = {"WindowCenter": 40, "WindowWidth": 400}


def with_fields(dataset, fields):
    for name, value in fields.items():
        setattr(dataset, name, value)
    return dataset


def values(enhanced):
    file = Dataset()
    file.file_meta = FileMetaDataset()
    file.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    file.SOPClassUID = EnhancedCTImageStorage if enhanced else CTImageStorage
    file.SOPInstanceUID = generate_uid()
    file.Rows, file.Columns, file.SamplesPerPixel, file.PhotometricInterpretation = 1, 2, 1, "MONOCHROME2"
    file.BitsAllocated, file.BitsStored, file.HighBit, file.PixelRepresentation = 16, 12, 11, 0
    stored = np.array([24, 1064] * (2 if enhanced else 1), np.uint16)  # air and soft tissue
    file.PixelData = stored.tobytes()
    if enhanced:
        group, file.NumberOfFrames = Dataset(), 2
        group.PixelValueTransformationSequence = [with_fields(Dataset(), RESCALE)]
        group.FrameVOILUTSequence = [with_fields(Dataset(), WINDOW)]
        file.SharedFunctionalGroupsSequence = [group]
    else:
        with_fields(file, RESCALE | WINDOW)
    file.save_as(sys.argv[1], enforce_file_format=True)
    read = pydicom.dcmread(sys.argv[1])
    units = apply_modality_lut(read.pixel_array, read)
    return units.ravel()[:2].tolist(), apply_voi_lut(units, read).ravel()[:2].round().tolist()


got = {"classic": values(False), "enhanced": values(True)}
print("pydicom", pydicom.__version__, "air and tissue (in units, in the window):", got)
want = {"classic": ([-1000.0, 40.0], [-1024.0, 1029.0]), "enhanced": ([24, 1064], [24, 1064])}
sys.exit(0 if got == want else "the behaviour has changed")
PY
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install --quiet pydicom==3.0.2 numpy==2.4.6
"$place/venv/bin/python" "$place/try.py" "$place/ct.dcm"
