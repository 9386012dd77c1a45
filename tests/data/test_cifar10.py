"""CIFAR-10: batches pickled as the official ones were, by Python 2, and the subsets."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import struct
import tarfile
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from tests.conftest import SHARED_DATA
from torchcaps.data import cifar10, load
from torchcaps.data.cifar10 import read_batch


class Python2(pickle._Pickler):  # type: ignore[name-defined, misc]
    """Writes bytes and text as Python 2 wrote its strings, and numpy's modules by their old names."""

    dispatch: ClassVar = dict(pickle._Pickler.dispatch)  # type: ignore[attr-defined]

    def save_string(self, text: str | bytes) -> None:
        raw = text.encode() if isinstance(text, str) else text
        self.write(b"T" + struct.pack("<i", len(raw)) + raw)
        self.memoize(text)

    dispatch[bytes] = dispatch[str] = save_string


def pickled(content: Any) -> bytes:
    file = io.BytesIO()
    Python2(file, protocol=2).dump(content)
    return file.getvalue().replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


def batch(n: int, seed: int) -> dict[str, Any]:
    pixels = np.random.default_rng(seed).integers(0, 256, (n, 3072), np.uint8)
    return {"batch_label": "a batch", "labels": [k % 10 for k in range(n)], "data": pixels, "filenames": ["a.png"] * n}


def test_reads_what_python_2_wrote() -> None:
    content = batch(5, 0)
    raw = pickled(content)
    assert b"cnumpy.core.multiarray\n_reconstruct\n" in raw and b"_codecs" not in raw  # as in the official files
    # numpy's types were called with numbers there, which numpy warns of by now.
    old = raw.replace(b"\x89\x88\x87", b"K\x00K\x01\x87")
    assert old != raw
    for written in (raw, old):
        images, labels = read_batch(io.BytesIO(written))
        assert images.dtype == torch.uint8 and labels.tolist() == [0, 1, 2, 3, 4]
        assert torch.equal(images.flatten(1), torch.from_numpy(content["data"]))  # reds, greens, blues; rows first


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("exit 0",)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (pickled({"data": Evil(), "labels": []}), "must hold numpy's arrays alone, got posix.system"),
        (pickled({"data": np.float64(1)}), "must hold numpy's arrays alone, got .*multiarray.scalar"),
        (pickled({"labels": [1]}), "must hold data and labels: KeyError"),
        (pickled([1]), "must hold data and labels: TypeError"),
        (pickled(batch(2, 0))[:-9], "must hold data and labels"),
        (b"", "must hold data and labels: EOFError"),
    ],
)
def test_other_pickles_are_refused(raw: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=f"a batch of CIFAR(-10)? {message}"):
        read_batch(io.BytesIO(raw))


def write_archive(folder: Path, monkeypatch: pytest.MonkeyPatch, without: str = "") -> Path:
    path = folder / "cifar-10-python.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        names = [
            "batches.meta",
            "data_batch_4",
            "readme.html",
            "test_batch",
            *(f"data_batch_{k}" for k in (3, 1, 2, 5)),
        ]
        for name in names:
            raw = pickled(batch(20, ord(name[-1]))) if "_batch" in name else b"something else"
            info = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            info.size = len(raw)
            if name != without:
                archive.addfile(info, io.BytesIO(raw))
    monkeypatch.setattr(cifar10, "_SHA256", hashlib.sha256(path.read_bytes()).hexdigest())
    return path


def test_the_official_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_archive(tmp_path, monkeypatch)
    data = load("cifar10", tmp_path)
    assert (len(data.train), len(data.val), len(data.test)) == (90, 10, 20) and data.note == ""
    assert data.image_shape == (3, 32, 32) and data.classes[9] == "truck"
    wanted = np.concatenate([batch(20, ord(k))["data"] for k in "12345"])
    found = torch.cat((data.train.images, data.val.images)).flatten(1)
    assert sorted(found[:, 0].tolist()) == sorted(wanted[:, 0].tolist()) and len(found.unique(dim=0)) == 100
    held_out = [int((wanted == image.numpy()).all(axis=1).nonzero()[0][0]) for image in data.val.images.flatten(1)]
    assert held_out == [44, 19, 93, 90, 71, 69, 37, 95, 53, 91]  # the split is the same for good
    first = (found == torch.from_numpy(wanted[7])).all(dim=1).nonzero().item()
    assert torch.cat((data.train.labels, data.val.labels))[first] == 7
    assert torch.equal(data.test.images.flatten(1), torch.from_numpy(batch(20, ord("h"))["data"]))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match="cifar-10-python.tar.gz must have the sha256"):
        load("cifar10", tmp_path)


def test_an_archive_without_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_archive(tmp_path, monkeypatch, without="test_batch")
    with pytest.raises(ValueError, match=r"must be a whole archive .*KeyError\('test_batch'\)"):
        load("cifar10", tmp_path)
    path.write_bytes(b"\x1f\x8b no archive")
    monkeypatch.setattr(cifar10, "_SHA256", hashlib.sha256(path.read_bytes()).hexdigest())
    with pytest.raises(ValueError, match="must be a whole archive"):
        load("cifar10", tmp_path)


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"data.root must hold cifar-10-python.tar.gz, but .* is not there"):
        load("cifar10", tmp_path)


def test_subsets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (40, 32, 32, 3), np.uint8)
    shas = {}
    for half in ("train", "test"):
        path = tmp_path / f"cifar10_{half}_subset.npz"
        np.savez(path, images=pixels, labels=np.arange(40, dtype=np.uint8) % 10)
        shas[half] = hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setattr(cifar10, "_NPZ", shas)
    data = load("cifar10", tmp_path)
    assert (len(data.train), len(data.val), len(data.test)) == (36, 4, 40)
    assert data.note == "subsets: 40 of 50,000 training images and 40 of 10,000 test images"
    assert torch.equal(data.test.images, torch.from_numpy(pixels).permute(0, 3, 1, 2))
    assert load("cifar10", tmp_path, image_size=(24, 24)).image_shape == (3, 24, 24)
    (tmp_path / "cifar10_test_subset.npz").write_bytes(b"something else")
    with pytest.raises(ValueError, match="cifar10_test_subset.npz must have the sha256"):
        load("cifar10", tmp_path)


def test_the_shared_subsets() -> None:
    folder = SHARED_DATA / "cifar10"
    if not folder.is_dir():
        pytest.skip(f"the CIFAR-10 files are not in {folder}")
    data = load("cifar10", folder)
    assert (len(data.train), len(data.val), len(data.test)) == (4500, 500, 5000)
    assert data.test.labels.bincount().tolist() == [500] * 10 and "5,000 of 50,000" in data.note
