"""affNIST and SVHN: small files in their official form, and what is refused."""

from __future__ import annotations

import hashlib
import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.io import savemat

from torchcaps.data import affnist, load, svhn
from torchcaps.data.affnist import load_affnist


def mat(**variables: Any) -> bytes:
    file = io.BytesIO()
    savemat(file, variables, do_compression=True)
    return file.getvalue()


def digits(n: int) -> np.ndarray:
    return np.arange(n * 1600).reshape(n, 40, 40).astype(np.uint8)


def write_affnist(folder: Path, content: bytes | None = None, name: str = "test.mat") -> Path:
    """As the official file has it: a struct of 1600 × N pixels, one-hot labels, and labels of 1 × N."""
    labels = np.array([[7, 2, 1]], np.uint8)
    one_of_n = np.zeros((10, 3))
    one_of_n[labels[0], range(3)] = 1
    fields = {"vec": np.zeros((16, 3)), "image": digits(3).reshape(3, 1600).T, "label_one_of_n": one_of_n}
    content = mat(affNISTdata={**fields, "label_int": labels}) if content is None else content
    with zipfile.ZipFile(folder / "test.mat.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    return folder / "test.mat.zip"


def test_affnist(tmp_path: Path) -> None:
    path = write_affnist(tmp_path)
    found = load_affnist(tmp_path)
    assert torch.equal(found.images, torch.from_numpy(digits(3))[:, None]) and found.labels.tolist() == [7, 2, 1]
    # Of no published checksum, it is held to the one it had when first read.
    pin = tmp_path / "test.mat.zip.sha256"
    assert pin.read_text() == f"{hashlib.sha256(path.read_bytes()).hexdigest()}  test.mat.zip\n"
    assert load_affnist(tmp_path).labels.tolist() == [7, 2, 1]
    pin.write_text("0" * 64)
    with pytest.raises(ValueError, match="test.mat.zip must have the sha256 0000"):
        load_affnist(tmp_path)


def test_affnist_in_a_folder_that_cannot_be_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_affnist(tmp_path)

    def refused(*_: Any, **__: Any) -> None:
        raise PermissionError("read-only")

    monkeypatch.setattr(Path, "write_text", refused)
    assert len(load_affnist(tmp_path)) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["test.mat.zip"]


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        (b"not a mat file", "test.mat", "must be a whole .mat file of version 7 or below"),
        (mat(x=np.zeros(3)), "training.mat", "must be a whole zip file with test.mat in it"),
        (mat(x=np.zeros(3)), "test.mat", "must hold image as uint8 of 1600 × N, got NoneType"),
        (mat(affNISTdata=np.zeros(3)), "test.mat", "must hold image as uint8 of 1600 × N, got NoneType"),
        (
            mat(affNISTdata={"image": np.zeros((784, 3), np.uint8)}),
            "test.mat",
            r"must hold image as uint8 of 1600 × N, got uint8 of \[784, 3\]",
        ),
        (
            mat(affNISTdata={"image": np.zeros((1600, 3), np.uint8), "label_int": np.zeros((1, 2), np.uint8)}),
            "test.mat",
            r"must hold label_int as uint8 of 3, got uint8 of \[2\]",
        ),
    ],
)
def test_other_content_is_refused_and_not_pinned(tmp_path: Path, content: bytes, name: str, message: str) -> None:
    path = write_affnist(tmp_path, content, name)
    with pytest.raises(ValueError, match=f"test.mat.zip {message}"):
        load_affnist(tmp_path)
    assert list(tmp_path.iterdir()) == [path]


def test_an_affnist_that_was_not_downloaded_whole_is_downloaded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "test.mat.zip"

    def download(*_: Any, **__: Any) -> Path:
        if not path.is_file():
            path.write_text("<html>Please log in</html>")
        return path

    monkeypatch.setattr(affnist, "require", download)
    with pytest.raises(ValueError, match="must be a whole zip file"):
        load_affnist()
    assert not path.exists()
    write_affnist(tmp_path)
    assert len(load_affnist()) == 3 and path.exists()
    # What was whole once is not removed: it says that it is damaged.
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(ValueError, match="must have the sha256"):
        load_affnist()
    assert path.exists()
    (tmp_path / "test.mat.zip.sha256").write_text("")
    with pytest.raises(
        ValueError, match=r"test.mat.zip.sha256 must hold the sha256 of test.mat.zip, got an empty file"
    ):
        load_affnist()


def test_damaged_affnist(tmp_path: Path) -> None:
    path = write_affnist(tmp_path)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(ValueError, match="must be a whole zip file"):
        load_affnist(tmp_path)
    with pytest.raises(ValueError, match=r"data.root must hold test.mat.zip, but .* is not there"):
        load_affnist(tmp_path / "other")
    assert affnist._ADDRESS.startswith("https://")


@pytest.fixture
def house_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files in the official form, pixels of 32 × 32 × 3 × N and labels 1 … 10, with checksums of their own."""
    random, md5s = np.random.default_rng(0), {}
    for name, n in (("train_32x32.mat", 30), ("test_32x32.mat", 20)):
        pixels = random.integers(0, 256, (32, 32, 3, n), np.uint8)
        pixels[0, 1, 2] = range(n)
        raw = mat(X=pixels, y=(np.arange(n, dtype=np.uint8) % 10 + 1)[:, None])
        (tmp_path / name).write_bytes(raw)
        md5s[name] = hashlib.md5(raw).hexdigest()
    monkeypatch.setattr(svhn, "_MD5", md5s)
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
    assert torch.equal(data.val.images, load("svhn", house_numbers).val.images)
    assert load("svhn", house_numbers, image_size=(28, 24)).image_shape == (3, 28, 24)


def test_damaged_svhn(house_numbers: Path) -> None:
    path = house_numbers / "test_32x32.mat"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match="test_32x32.mat must have the md5"):
        load("svhn", house_numbers)
    path.unlink()
    with pytest.raises(ValueError, match="data.root must hold test_32x32.mat"):
        load("svhn", house_numbers)


def test_svhn_of_other_shapes(house_numbers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = mat(X=np.zeros((32, 32, 4), np.uint8), y=np.ones((4, 1), np.uint8))
    (house_numbers / "train_32x32.mat").write_bytes(raw)
    monkeypatch.setitem(svhn._MD5, "train_32x32.mat", hashlib.md5(raw).hexdigest())
    with pytest.raises(
        ValueError, match=r"train_32x32.mat must hold X as uint8 of 32 × 32 × 3 × N, got uint8 of \[32,"
    ):
        load("svhn", house_numbers)
