"""Readers of CIFAR-100, EMNIST, KMNIST, QMNIST and MedMNIST, on files that are made here as their formats say."""

from __future__ import annotations

import gzip
import hashlib
import io
import struct
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.data.test_cifar10 import Evil, pickled
from torchcaps.data import cifar100, emnist, load, medmnist, mnist
from torchcaps.data.medmnist_table import SUBSETS

RNG = np.random.default_rng(0)


def idx(array: np.ndarray) -> bytes:
    kind = b"\x0c" if array.dtype == np.int32 else b"\x08"
    body = array.astype(">i4").tobytes() if array.dtype == np.int32 else array.tobytes()
    return gzip.compress(b"\0\0" + kind + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + body, 1)


def pixels(n: int, *shape: int) -> np.ndarray:
    return RNG.integers(0, 256, (n, *shape), np.uint8)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def archived(path: Path, files: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:gz", compresslevel=1) as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(f"cifar-100/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


class Cifar:
    """5,100 training and 40 test images, and both archives of them."""

    def __init__(self) -> None:
        self.images = {"train": pixels(5100, 3, 32, 32), "test": pixels(40, 3, 32, 32)}
        self.fine = {half: RNG.integers(0, 100, len(x)).tolist() for half, x in self.images.items()}
        self.coarse = {half: [k // 5 for k in fine] for half, fine in self.fine.items()}
        self.names = {"fine": [f"kind{k}" for k in range(100)], "coarse": [f"group{k}" for k in range(20)]}

    def binary(self, half: str) -> bytes:
        labels = np.stack((self.coarse[half], self.fine[half]), axis=1).astype(np.uint8)
        return np.concatenate((labels, self.images[half].reshape(-1, 3072)), axis=1).tobytes()

    def pickle(self, half: str) -> bytes:
        return pickled(
            {
                "data": self.images[half].reshape(-1, 3072),
                "fine_labels": self.fine[half],
                "coarse_labels": self.coarse[half],
                "filenames": ["a.png"] * 3,
                "batch_label": half,
            }
        )

    def files(self, *, binary: bool) -> dict[str, bytes]:
        if binary:
            names = {f"{kind}_label_names.txt": "\n".join(x).encode() + b"\n" for kind, x in self.names.items()}
            return {"train.bin": self.binary("train"), "test.bin": self.binary("test"), **names}
        meta = pickled({f"{kind}_label_names": x for kind, x in self.names.items()})
        return {"train": self.pickle("train"), "test": self.pickle("test"), "meta": meta, "file.txt~": b""}


@pytest.fixture(scope="module")
def cifar() -> Cifar:
    return Cifar()


def put_cifar(folder: Path, files: dict[str, bytes], patch: pytest.MonkeyPatch, *, binary: bool) -> Path:
    path = folder / (cifar100.BINARY if binary else cifar100.PICKLED)
    archived(path, files)
    patch.setitem(cifar100._SHA256, path.name, sha256(path))
    return path


@pytest.mark.parametrize("binary", [True, False])
def test_cifar100_of_both_archives(tmp_path: Path, cifar: Cifar, monkeypatch: pytest.MonkeyPatch, binary: bool) -> None:
    put_cifar(tmp_path, cifar.files(binary=binary), monkeypatch, binary=binary)
    data = load("cifar100", tmp_path)
    assert data.classes == tuple(cifar.names["fine"]) and data.image_shape == (3, 32, 32)
    assert [len(part) for part in data.splits.values()] == [100, 5000, 40]
    assert torch.equal(data.test.images, torch.from_numpy(cifar.images["test"]))
    assert data.test.labels.tolist() == cifar.fine["test"]
    assert data.test.factors["coarse"].tolist() == cifar.coarse["test"]
    coarse = load("cifar100", tmp_path, labels="coarse")
    assert coarse.classes == tuple(cifar.names["coarse"]) and coarse.test.labels.tolist() == cifar.coarse["test"]
    assert torch.equal(coarse.train.factors["fine"], data.train.labels)
    with pytest.raises(ValueError, match=r"data.options.labels must be one of fine, coarse; got 'both'"):
        load("cifar100", tmp_path, labels="both")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train": pickled({"data": Evil()})}, "must hold numpy's arrays alone, got posix.system"),
        ({"train": pickled({"data": [1]})}, "train must hold data, fine_labels, coarse_labels, got no fine_labels"),
        ({"train": b"\x80\x02}q"}, "train must be a pickle of CIFAR-100: UnpicklingError"),
        ({"meta": pickled({"fine_label_names": ["a"], "coarse_label_names": []})}, "must be 100 names of fine labels"),
        ({"test": None}, "must be a whole archive of CIFAR-100: KeyError"),
    ],
)
def test_cifar100_that_is_something_else(
    tmp_path: Path, cifar: Cifar, monkeypatch: pytest.MonkeyPatch, changes: dict, message: str
) -> None:
    files = {name: raw for name, raw in (cifar.files(binary=False) | changes).items() if raw is not None}
    path = put_cifar(tmp_path, files, monkeypatch, binary=False)
    with pytest.raises(ValueError, match=rf"{path.name}.*{message}"):
        load("cifar100", tmp_path)


def test_cifar100_in_records_that_do_not_fit(tmp_path: Path, cifar: Cifar, monkeypatch: pytest.MonkeyPatch) -> None:
    files = cifar.files(binary=True)
    put_cifar(tmp_path, files | {"test.bin": files["test.bin"][:-1]}, monkeypatch, binary=True)
    with pytest.raises(ValueError, match=rf"{cifar100.BINARY}: test.bin must hold records of 3074 bytes, got 122959"):
        load("cifar100", tmp_path)
    put_cifar(tmp_path, files | {"test.bin": bytes([0, 100]) + bytes(3072)}, monkeypatch, binary=True)
    with pytest.raises(ValueError, match=r"test.bin must hold a fine label 0 … 99 for each image"):
        load("cifar100", tmp_path)


def emnist_files(subset: str, first: int, n_classes: int, n: int = 200) -> dict[str, bytes]:
    found = {}
    for half, many in (("train", n), ("test", 40)):
        labels = (np.arange(many) % n_classes + first).astype(np.uint8)
        found[f"emnist-{subset}-{half}-labels-idx1-ubyte.gz"] = idx(labels)
        images = pixels(many, 28, 28)
        images[:, 3, 20] = labels  # of each its label, 3 columns from the left and 20 rows down
        found[f"emnist-{subset}-{half}-images-idx3-ubyte.gz"] = idx(images)
    return found


@pytest.mark.parametrize(("subset", "first"), [("letters", 1), ("balanced", 0), ("byclass", 0)])
@pytest.mark.parametrize("packed", [True, False])
def test_emnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subset: str, first: int, packed: bool) -> None:
    files = emnist_files(subset, first, len(emnist.SUBSETS[subset]))
    if packed:
        with zipfile.ZipFile(tmp_path / "gzip.zip", "w") as archive:
            for name, raw in files.items():
                archive.writestr(f"gzip/{name}", raw)
        monkeypatch.setattr(emnist, "_ARCHIVE_SHA256", sha256(tmp_path / "gzip.zip"))
    else:
        for name, raw in files.items():
            (tmp_path / name).write_bytes(raw)
    data = load("emnist", tmp_path, subset=subset)
    assert [len(part) for part in data.splits.values()] == [180, 20, 40]
    for part in data.splits.values():
        assert torch.equal(part.images[:, 0, 20, 3].long(), part.labels + first)  # upright: row 20, column 3
    assert not packed or sorted(path.name for path in tmp_path.iterdir()) == ["gzip.zip"]


def test_the_classes_of_emnist() -> None:
    assert {name: len(classes) for name, classes in emnist.SUBSETS.items()} == {
        "balanced": 47,
        "byclass": 62,
        "bymerge": 47,
        "digits": 10,
        "letters": 26,
        "mnist": 10,
    }
    # As emnist-balanced-mapping.txt has them: 36 is "a", 46 "t".
    assert emnist.SUBSETS["balanced"][36:] == tuple("abdefghnqrt") and emnist.SUBSETS["balanced"][10] == "A"


def test_emnist_that_is_something_else(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"data.root must hold gzip.zip, but .* is not there"):
        load("emnist", tmp_path)
    for name, raw in emnist_files("digits", 1, 10).items():
        (tmp_path / name).write_bytes(raw)
    with pytest.raises(ValueError, match=r"emnist-digits-train-images.* must have labels 0 … 9, got 1 … 10"):
        load("emnist", tmp_path, subset="digits")
    (tmp_path / "emnist-digits-test-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(ValueError, match=r"data.root must hold emnist-digits-test-labels-idx1-ubyte.gz"):
        load("emnist", tmp_path, subset="digits")
    (tmp_path / "gzip.zip").write_bytes(b"")
    with pytest.raises(ValueError, match=r"gzip.zip must have the sha256 fb9bb67e"):
        load("emnist", tmp_path, subset="digits")


def test_kmnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for half, n in (("train", 5100), ("t10k", 30)):
        (tmp_path / f"{half}-images-idx3-ubyte.gz").write_bytes(idx(pixels(n, 28, 28)))
        (tmp_path / f"{half}-labels-idx1-ubyte.gz").write_bytes(idx((np.arange(n) % 10).astype(np.uint8)))
    with pytest.raises(ValueError, match=r"train-images-idx3-ubyte.gz must have the sha256 51467d22"):
        load("kmnist", tmp_path)
    monkeypatch.setattr(mnist, "_KMNIST", {name: sha256(tmp_path / name) for name in mnist._KMNIST})
    data = load("kmnist", tmp_path)
    assert data.classes[:3] == ("o", "ki", "su") and [len(part) for part in data.splits.values()] == [100, 5000, 30]
    assert data.test.labels.tolist() == [*range(10)] * 3


def test_qmnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for half, n in (("train", 5100), ("test", 30)):
        table = RNG.integers(-1, 300_000, (n, 8)).astype(np.int32)
        table[:, 0] = np.arange(n) % 10
        table[:, 2] = 70_000 + np.arange(n)  # more than 16 bits
        (tmp_path / f"qmnist-{half}-images-idx3-ubyte.gz").write_bytes(idx(pixels(n, 28, 28)))
        (tmp_path / f"qmnist-{half}-labels-idx2-int.gz").write_bytes(idx(table))
    with pytest.raises(ValueError, match=r"qmnist-train-images-idx3-ubyte.gz must have the sha256 9e26a7bf"):
        load("qmnist", tmp_path)
    monkeypatch.setattr(emnist, "_QMNIST", {name: sha256(tmp_path / name) for name in emnist._QMNIST})
    data = load("qmnist", tmp_path)
    assert [len(part) for part in data.splits.values()] == [100, 5000, 30]
    assert data.test.labels.tolist() == [*range(10)] * 3
    assert data.test.factors["writer"].tolist() == [70_000 + k for k in range(30)]
    (tmp_path / "qmnist-test-labels-idx2-int.gz").write_bytes(idx(np.zeros((30, 8), np.uint8)))
    monkeypatch.setattr(emnist, "_QMNIST", {name: sha256(tmp_path / name) for name in emnist._QMNIST})
    with pytest.raises(ValueError, match=r"labels-idx2-int.gz must be an idx file of integers \(magic number 0x00000c"):
        load("qmnist", tmp_path)


def put_medmnist(folder: Path, subset: str, patch: pytest.MonkeyPatch, size: int = 28, **changes: np.ndarray) -> None:
    known = SUBSETS[subset]._replace(counts=(30, 10, 12))
    arrays = {}
    for split, n in zip(("train", "val", "test"), known.counts, strict=True):
        arrays[f"{split}_images"] = pixels(n, size, size, *([3] if known.channels == 3 else []))
        n_classes = len(known.classes)
        labels = (np.arange(n) % n_classes)[:, None]
        arrays[f"{split}_labels"] = RNG.integers(0, 2, (n, n_classes)) if known.multi_label else labels
    path = folder / (f"{subset}.npz" if size == 28 else f"{subset}_{size}.npz")
    np.savez(path, **{name: array.astype(np.uint8) for name, array in arrays.items()} | changes)
    md5 = hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()
    patch.setitem(
        medmnist.SUBSETS,
        subset,
        known._replace(md5=tuple(md5 if s == size else x for s, x in zip(medmnist.SIZES, known.md5, strict=True))),
    )


@pytest.mark.parametrize(("subset", "size"), [("pathmnist", 28), ("pneumoniamnist", 64), ("chestmnist", 28)])
def test_medmnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subset: str, size: int) -> None:
    put_medmnist(tmp_path, subset, monkeypatch, size)
    data = load("medmnist", tmp_path, subset=subset, size=size)
    known = SUBSETS[subset]
    assert data.name == subset and data.classes == known.classes and data.several_labels == known.multi_label
    assert data.image_shape == (known.channels, size, size)
    with np.load(next(tmp_path.glob("*.npz"))) as arrays:
        for name, part in data.splits.items():
            images = arrays[f"{name}_images"].reshape(len(part), size, size, -1).transpose(0, 3, 1, 2)
            assert np.array_equal(part.images.numpy(), images)
            wanted = arrays[f"{name}_labels"]
            assert np.array_equal(part.labels.numpy(), wanted if known.multi_label else wanted[:, 0])


def test_medmnist_that_is_something_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"must hold pathmnist.npz, but .* get it from https://zenodo.org/records/105"):
        load("medmnist", tmp_path)
    (tmp_path / "pathmnist.npz").write_bytes(b"")
    with pytest.raises(ValueError, match=r"pathmnist.npz must have the md5 a8b069652000"):
        load("medmnist", tmp_path)
    for subset in ("organmnist3d", "imagenet"):
        with pytest.raises(ValueError, match=r"data.options.subset must be one of"):
            load("medmnist", tmp_path, subset=subset)
    with pytest.raises(ValueError, match=r"data.options.size must be one of 28, 64, 128, 224; got 32"):
        load("medmnist", tmp_path, size=32)
    put_medmnist(tmp_path, "pathmnist", monkeypatch, test_labels=np.zeros((12, 2), np.uint8))
    with pytest.raises(ValueError, match=r"must hold test_labels as integers of \[12, 1\], got uint8 of \[12, 2\]"):
        load("medmnist", tmp_path)
    put_medmnist(tmp_path, "pathmnist", monkeypatch, test_labels=np.array([Evil()], dtype=object))
    with pytest.raises(
        ValueError, match=r"must hold the arrays test_images and test_labels: Object arrays cannot be l"
    ):
        load("medmnist", tmp_path)


def test_the_table_of_medmnist() -> None:
    assert len(SUBSETS) == 12 and [name for name, each in SUBSETS.items() if each.multi_label] == ["chestmnist"]
    for known in SUBSETS.values():
        assert len(set(known.md5)) == len(medmnist.SIZES) and all(len(md5) == 32 for md5 in known.md5)
