"""affNIST and SVHN: small files in their official form, and what is refused."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.io import savemat

from study.data import affnist
from study.data.affnist import load_affnist
from torchcaps.data import load, svhn


def mat(**variables: Any) -> bytes:
    file = io.BytesIO()
    savemat(file, variables, do_compression=True)
    return file.getvalue()


def digits(n: int) -> np.ndarray:
    return np.arange(n * 1600).reshape(n, 40, 40).astype(np.uint8)


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], Path]:
    """A zip file of affNIST's name with one variable in it, and with the checksum that is asked for."""

    def write(found: Any) -> Path:
        path = tmp_path / "test.mat.zip"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("test.mat", found if isinstance(found, bytes) else mat(affNISTdata=found))
        monkeypatch.setattr(affnist, "_SHA256", hashlib.sha256(path.read_bytes()).hexdigest())
        return path

    return write


def official() -> dict[str, np.ndarray]:
    """As the official file has it: a struct of 1600 × N pixels, one-hot labels, and labels of 1 × N."""
    labels = np.array([[7, 2, 1]], np.uint8)
    one_of_n = np.zeros((10, 3))
    one_of_n[labels[0], range(3)] = 1
    pixels = digits(3).reshape(3, 1600).T
    return {"vec": np.zeros((16, 3)), "image": pixels, "label_one_of_n": one_of_n, "label_int": labels}


def test_affnist(write: Callable[[Any], Path]) -> None:
    path = write(official())
    found = load_affnist(path.parent)
    assert torch.equal(found.images, torch.from_numpy(digits(3))[:, None]) and found.labels.tolist() == [7, 2, 1]
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (b"not a mat file", "must be a whole .mat file of version 7 or below"),
        (np.zeros(3), "must hold image as uint8 of 1600 × N, got NoneType"),
        ({"image": np.zeros((784, 3), np.uint8)}, r"must hold image as uint8 of 1600 × N, got uint8 of \[784, 3\]"),
        (
            {"image": np.zeros((1600, 3), np.uint8), "label_int": np.zeros((1, 2), np.uint8)},
            r"must hold label_int as uint8 of 3, got uint8 of \[2\]",
        ),
    ],
)
def test_other_content_is_refused(write: Callable[[Any], Path], found: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"test.mat.zip {message}"):
        load_affnist(write(found).parent)


def test_another_affnist_is_refused(write: Callable[[Any], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """The same site has the digits unchanged under this name, too."""
    path = write(official())
    monkeypatch.undo()
    with pytest.raises(ValueError, match="test.mat.zip must have the sha256 2cde38ec.*: it is damaged or another file"):
        load_affnist(path.parent)
    with pytest.raises(ValueError, match=r"data.root must hold test.mat.zip, but .* is not there"):
        load_affnist(path.parent / "other")
    assert affnist._ADDRESS.startswith("https://")


def test_too_little_memory_is_not_called_damage(write: Callable[[Any], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(official())

    def loadmat(*_: Any, **__: Any) -> None:
        raise MemoryError

    monkeypatch.setattr("scipy.io.loadmat", loadmat)
    with pytest.raises(MemoryError):
        load_affnist(path.parent)
    assert path.is_file()


@pytest.fixture
def house_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files in the official form, pixels of 32 × 32 × 3 × N and labels 1 … 10, with checksums of their own."""
    random, known = np.random.default_rng(0), {}
    for name, n in (("train_32x32.mat", 30), ("test_32x32.mat", 20)):
        pixels = random.integers(0, 256, (32, 32, 3, n), np.uint8)
        pixels[0, 1, 2] = range(n)
        raw = mat(X=pixels, y=(np.arange(n, dtype=np.uint8) % 10 + 1)[:, None])
        (tmp_path / name).write_bytes(raw)
        known[name] = hashlib.sha256(raw).hexdigest()
    monkeypatch.setattr(svhn, "_SHA256", known)
    monkeypatch.setattr(svhn, "N_VALIDATION", 10)
    return tmp_path


def test_svhn(house_numbers: Path) -> None:
    data = load("svhn", house_numbers)
    assert (len(data.train), len(data.val), len(data.test)) == (20, 10, 20) and data.image_shape == (3, 32, 32)
    assert data.classes[0] == "0" and data.test.labels.tolist() == [*range(1, 10), 0] * 2
    assert data.test.images[:, 2, 0, 1].tolist() == list(range(20))  # [N, colour, row, column]
    order = torch.cat((data.train.images, data.val.images))[:, 2, 0, 1]
    assert sorted(order.tolist()) == list(range(30)) and order.tolist() != list(range(30))
    assert torch.equal((order + 1) % 10, torch.cat((data.train.labels, data.val.labels)))
    assert data.val.images[:, 2, 0, 1].tolist() == [
        14,
        13,
        23,
        27,
        29,
        9,
        25,
        4,
        6,
        21,
    ]  # the split is the same for good
    assert load("svhn", house_numbers, image_size=(28, 24)).image_shape == (3, 28, 24)


def test_damaged_svhn(house_numbers: Path) -> None:
    path = house_numbers / "test_32x32.mat"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match="test_32x32.mat must have the sha256"):
        load("svhn", house_numbers)
    path.unlink()
    with pytest.raises(ValueError, match="data.root must hold test_32x32.mat"):
        load("svhn", house_numbers)


def test_scipy_sees_no_file_of_another_checksum(
    house_numbers: Path, write: Callable[[Any], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken bytes can end the process inside SciPy's reader, which no ``except`` meets."""
    zipped = write(official())
    monkeypatch.setattr(affnist, "_SHA256", "0" * 64)
    monkeypatch.setattr(svhn, "_SHA256", dict.fromkeys(svhn._SHA256, "0" * 64))
    monkeypatch.setattr("scipy.io.loadmat", lambda *_, **__: pytest.fail("SciPy read it"))
    with pytest.raises(ValueError, match="must have the sha256"):
        load_affnist(zipped.parent)
    with pytest.raises(ValueError, match="must have the sha256"):
        load("svhn", house_numbers)


def test_svhn_of_other_shapes(house_numbers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = mat(X=np.zeros((32, 32, 4), np.uint8), y=np.ones((4, 1), np.uint8))
    (house_numbers / "train_32x32.mat").write_bytes(raw)
    monkeypatch.setitem(svhn._SHA256, "train_32x32.mat", hashlib.sha256(raw).hexdigest())
    with pytest.raises(
        ValueError, match=r"train_32x32.mat must hold X as uint8 of 32 × 32 × 3 × N, got uint8 of \[32,"
    ):
        load("svhn", house_numbers)
