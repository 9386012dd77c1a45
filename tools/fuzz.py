"""Read mutated files by every reader: each ends in a result or in a ``ValueError``, within bounded memory.

``python tools/fuzz.py --cases 100000 --seed 0 --out runs/fuzz.json`` writes how many cases ended how, and the first
faults of each kind with the number that makes the case again: ``--only READER --first NUMBER --cases 1``.
"""

from __future__ import annotations

import gzip
import io
import random
import struct
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

from study import records
from tools.cases import run_fuzzer
from tools.trained import run_files
from torchcaps.data.arrays import load_arrays
from torchcaps.data.binary_matrix import read_matrix
from torchcaps.data.cifar10 import read_batch
from torchcaps.data.image_file import read_image
from torchcaps.data.labels import read_labels
from torchcaps.data.matlab import read_mat
from torchcaps.data.mnist import read_idx
from torchcaps.data.nifti import read_volume
from torchcaps.data.tables import read_table
from torchcaps.training.checkpoint import load_model
from torchcaps.training.run import Run

#: What errors call a file that has another name than "case", or none.
NAMES = ("config.json", "result.json", "checks.jsonl", "a batch of CIFAR")
INTERESTING = (
    b"\x00",
    b"\xff",
    b"\x7f",
    b"\x80",
    b"\xff\xff\xff\xff",
    b"\x00\x00\x00\x00",
    b"\xff\xff\xff\x7f",
    b"\x80",
)
TEXTS = (
    b"null",
    b"[]",
    b"{}",
    b"NaN",
    b"1e999",
    b'"',
    b",",
    b"\n",
    b"-1",
    b"true",
    b"\xef\xbb\xbf",
    b"\x00",
    b"99999999",
)


class Subject(NamedTuple):
    """Hold a reader and whole files of it.

    Attributes:
        suffix: how its files are called.
        files: what whole ones hold.
        read: reads the file; returns what says that it is right, or True.
        packed: files are gzip, and half of the mutations are of what is inside.
    """

    suffix: str
    files: list[bytes]
    read: Callable[[Path], Any]
    packed: bool = False


def mutated(content: bytes, draw: random.Random) -> bytes:
    """Return the content with one to six places changed, removed, doubled or cut off."""
    found = bytearray(content)
    for _ in range(draw.randint(1, 6)):
        at = draw.randrange(len(found) + 1) if draw.random() < 0.6 else draw.randrange(min(len(found), 64) + 1)
        kind = draw.randrange(7)
        if kind == 0 and at < len(found):
            found[at] ^= 1 << draw.randrange(8)
        elif kind == 1 and at < len(found):
            found[at] = draw.randrange(256)
        elif kind == 2:
            piece = draw.choice(INTERESTING)
            found[at : at + len(piece)] = piece
        elif kind == 3:
            found[at:at] = draw.choice(TEXTS + INTERESTING)
        elif kind == 4:
            del found[at : at + draw.randint(1, 16)]
        elif kind == 5:
            found[at:at] = found[at : at + draw.randint(1, 64)]
        elif draw.random() < 0.3:
            del found[at:]
    return bytes(found)


def case_of(subject: Subject, draw: random.Random) -> bytes:
    """Make the bytes of one case; the same every time."""
    content = draw.choice(subject.files)
    if subject.packed and draw.random() < 0.5:
        return gzip.compress(mutated(gzip.decompress(content), draw), 1, mtime=0)
    return mutated(content, draw)


def read_case(subject: Subject, draw: random.Random, folder: Path) -> str:
    """Read one case, and say how it ended: "result", "ValueError", or what is wrong."""
    path = folder / f"case{subject.suffix}"
    path.write_bytes(case_of(subject, draw))
    try:
        right = subject.read(path)
    except ValueError as error:
        named = any(each in str(error) for each in (path.name, *NAMES))
        return "ValueError" if named else f"fault: does not name the file: {error!r:.80}"
    return "result" if right is None or right is True else f"fault: a result that is not as promised: {right}"


def _sound(tensor: torch.Tensor) -> str | None:
    wrong = tensor.is_floating_point() and not torch.isfinite(tensor).all()
    return "not finite" if wrong else None


def _idx(dims: tuple[int, ...]) -> bytes:
    body = np.arange(np.prod(dims), dtype=np.uint8).tobytes()
    return gzip.compress(struct.pack(f">HBB{len(dims)}I", 0, 8, len(dims), *dims) + body, mtime=0)


def _matrix() -> bytes:
    return struct.pack("<Iiiii", 0x1E3D4C55, 3, 2, 4, 4) + bytes(range(32))


def _mat() -> list[bytes]:
    from scipy.io import savemat

    found = []
    for compressed in (False, True):
        buffer = io.BytesIO()
        content = {"x": np.arange(48, dtype=np.uint8).reshape(4, 12), "s": {"a": 1.5, "b": "text", "c": [1, 2]}}
        savemat(buffer, content, do_compression=compressed)
        found.append(buffer.getvalue())
    return found


def _batch() -> bytes:
    """Pickle as Python 2 did, whose texts were bytes."""
    import pickle

    class Python2(pickle._Pickler):  # type: ignore[name-defined, misc]
        def save_bytes(self, value: bytes) -> None:
            self.write(  # type: ignore[attr-defined]
                pickle.BINSTRING + len(value).to_bytes(4, "little") + value
            )

        dispatch = pickle._Pickler.dispatch | {bytes: save_bytes}  # type: ignore[attr-defined]

    buffer = io.BytesIO()
    Python2(buffer, protocol=2).dump({"data": np.zeros((2, 3072), np.uint8), "labels": [3, 4]})
    return buffer.getvalue().replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


def _npz() -> list[bytes]:
    found = []
    draw = np.random.default_rng(0)
    for save in (np.savez, np.savez_compressed):
        buffer = io.BytesIO()
        save(buffer, images=draw.integers(0, 255, (40, 4, 4), np.uint8), labels=np.arange(40) % 2)
        found.append(buffer.getvalue())
    return found


def _pictures(kind: str, **options: Any) -> list[bytes]:
    draw, found = np.random.default_rng(0), []
    modes = {"JPEG": ("L", "RGB", "CMYK"), "WEBP": ("RGB", "RGBA"), "BMP": ("L", "RGB"), "PPM": ("L", "RGB")}
    for mode in modes.get(kind, ("L", "RGB", "RGBA", "P", "I;16")):
        if kind == "GIF" and mode == "I;16":
            continue
        if mode == "I;16":
            image = Image.fromarray(draw.integers(0, 65535, (9, 7), np.uint16))
        else:
            image = Image.fromarray(draw.integers(0, 255, (9, 7, 3), np.uint8)).convert(mode)
        buffer = io.BytesIO()
        image.save(buffer, kind, **options)
        found.append(buffer.getvalue())
    return found


def _read_config(path: Path) -> None:
    run = Run(path.parent / "run")
    run.path.mkdir(exist_ok=True)
    path.replace(run.config)
    run.experiment()


def _read_result(path: Path) -> None:
    run = Run(path.parent / "run")
    run.path.mkdir(exist_ok=True)
    path.replace(run.result)
    run.read_result()


def _read_records(path: Path) -> None:
    path.replace(path.with_name("checks.jsonl"))
    records.every("checks", path.parent)


def _read_picture(path: Path) -> str | None:
    read_image(path, (8, 8))
    return None


def _medical() -> dict[str, Subject]:
    """Return the readers of medical files, where their packages are installed."""
    if not all(find_spec(name) for name in ("nibabel", "pydicom")):
        return {}
    import nibabel  # pyright: ignore[reportMissingImports]

    from tests.scans import write_dicom

    values = np.arange(60, dtype=np.int16).reshape(3, 4, 5)
    volume = nibabel.Nifti1Image(values, np.diag([1.0, 1, 2, 1])).to_bytes()
    with tempfile.TemporaryDirectory() as folder:
        paths = [
            write_dicom(Path(folder) / "a.dcm", values[0], RescaleSlope="1", WindowCenter="4", WindowWidth="9"),
            write_dicom(Path(folder) / "b.dcm", values, n_frames=3),
            write_dicom(Path(folder) / "c.dcm", np.zeros((3, 4, 3), np.uint8)),
        ]
        files = [path.read_bytes() for path in paths]
    return {
        "dicom": Subject(".dcm", files, _read_picture),
        "nifti": Subject(".nii", [volume], lambda path: (read_volume(path), None)[1]),
        "nifti-gz": Subject(
            ".nii.gz", [gzip.compress(volume, mtime=0)], lambda path: (read_volume(path), None)[1], packed=True
        ),
    }


def subjects() -> dict[str, Subject]:
    """Return every reader by its name."""
    files = run_files()
    config, model, result = (files[name] for name in ("config.json", "model.pt", "result.json"))
    with_suffix = {"png": "PNG", "tif": "TIFF", "jpg": "JPEG", "gif": "GIF", "bmp": "BMP", "webp": "WEBP", "ppm": "PPM"}
    table = b"file,label,group\na.png,cat,1\nb.png,dog,2\nc.png,cat|dog,3\n"
    lines = b'{"file_name": "a.png", "label": "cat"}\n{"file_name": "b.png", "label": 2}\n'
    wide = b"file,cat,dog\na.png,1,0\nb.png,0,1\n"
    batch = Subject(".pickle", [_batch()], lambda path: (read_batch(io.BytesIO(path.read_bytes())), None)[1])
    return {
        "idx": Subject(".gz", [_idx((3, 4, 4)), _idx((5,))], lambda path: _sound(read_idx(path)), packed=True),
        "matrix": Subject(".mat", [_matrix()], lambda path: (read_matrix(path), None)[1]),
        "matrix-gz": Subject(
            ".mat.gz", [gzip.compress(_matrix(), mtime=0)], lambda path: (read_matrix(path), None)[1], packed=True
        ),
        "matlab": Subject(".mat", _mat(), lambda path: (read_mat(path, path), None)[1]),
        "cifar-batch": batch,
        "npz": Subject(".npz", _npz(), lambda path: (load_arrays(path), None)[1]),
        "csv": Subject(".csv", [table, wide], lambda path: (read_table(path), None)[1]),
        "jsonl": Subject(".jsonl", [lines], lambda path: (read_table(path), None)[1]),
        "labels": Subject(".csv", [table, wide], lambda path: (read_labels(path), None)[1]),
        "config": Subject(".json", [config], _read_config),
        "result": Subject(".json", [result], _read_result),
        "records": Subject(".jsonl", [b'{"key": "a", "x": 1}\n{"key": "b", "y": [2.5]}\n'], _read_records),
        "model": Subject(".pt", [model], lambda path: (load_model(path), None)[1]),
        **{name: Subject(f".{name}", _pictures(kind), _read_picture) for name, kind in with_suffix.items()},
        **_medical(),
    }


if __name__ == "__main__":
    sys.exit(run_fuzzer(__doc__, lambda: {name: partial(read_case, each) for name, each in subjects().items()}))
