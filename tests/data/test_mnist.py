"""The idx reader and the MNIST loaders, on small files made here and on the real ones."""

from __future__ import annotations

import gzip
import hashlib
import struct
import sys
from pathlib import Path

import pytest
import torch

from tests.conftest import SHARED_DATA
from torchcaps.data import DATASETS, Dataset, load
from torchcaps.data.files import check_checksum, require
from torchcaps.data.mnist import read_idx


def idx(path: Path, shape: tuple[int, ...], body: bytes, magic: bytes = b"\x00\x00\x08") -> Path:
    raw = magic + bytes([len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + body
    path.write_bytes(gzip.compress(raw))
    return path


def test_reads_what_the_bytes_say(tmp_path: Path) -> None:
    got = read_idx(idx(tmp_path / "a.gz", (2, 2, 3), bytes(range(12))))
    assert got.dtype == torch.uint8 and got.tolist() == [[[0, 1, 2], [3, 4, 5]], [[6, 7, 8], [9, 10, 11]]]


def test_refuses_broken_files(tmp_path: Path) -> None:
    whole = idx(tmp_path / "whole.gz", (4,), b"abcd").read_bytes()
    (tmp_path / "cut.gz").write_bytes(whole[:-10])
    with pytest.raises(ValueError, match=r"cut.gz must be a whole gzip file"):
        read_idx(tmp_path / "cut.gz")
    (tmp_path / "text.gz").write_text("not gzip")
    with pytest.raises(ValueError, match=r"text.gz must be a whole gzip file"):
        read_idx(tmp_path / "text.gz")
    with pytest.raises(ValueError, match=r"must hold 5 bytes for shape \[5\], got 4"):
        read_idx(idx(tmp_path / "short.gz", (5,), b"abcd"))
    with pytest.raises(ValueError, match="must be an idx file of bytes"):
        read_idx(idx(tmp_path / "float.gz", (1,), b"abcd", magic=b"\x00\x00\x0d"))


def test_missing_and_wrong_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"data.root must hold train-images-idx3-ubyte.gz, but .* is not there"):
        load("mnist", tmp_path)
    for name in ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"):
        (tmp_path / name).write_bytes(b"something else")
    wrong = hashlib.sha256(b"something else").hexdigest()
    with pytest.raises(ValueError, match=f"train-images-idx3-ubyte.gz must have the sha256 440fcabf.*, got {wrong}"):
        load("mnist", tmp_path)


def test_truncated_real_file_is_refused(tmp_path: Path, shared_mnist: Path) -> None:
    for path in shared_mnist.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match="it is damaged or another file"):
        load("mnist", tmp_path)


def test_what_a_plain_install_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ModuleNotFoundError, match="digits needs sklearn.datasets, which the extra 'train' brings"):
        load("digits")


def test_what_somebodys_own_data_lack_is_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    def mine(root: Path | None = None, image_size: tuple[int, int] | None = None) -> Dataset:
        raise ModuleNotFoundError("No module named 'theirs'", name="theirs")

    monkeypatch.setitem(DATASETS, "mine", mine)
    with pytest.raises(ModuleNotFoundError, match="^No module named 'theirs'$"):
        load("mine")


def test_unknown_data_set() -> None:
    with pytest.raises(ValueError, match="data.name must be one of arrays, cifar10, .* svhn.*; got 'mnits'"):
        load("mnits")


def test_mnist_as_published(shared_mnist: Path) -> None:
    data = load("mnist", shared_mnist)
    assert (len(data.train), len(data.val), len(data.test)) == (55_000, 5_000, 10_000)
    assert data.image_shape == (1, 28, 28)
    counts = data.train.labels.bincount() + data.val.labels.bincount()
    assert counts.tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert data.test.labels.bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    # The split is the same for good: else a model would be validated on what an older version trained it on.
    assert data.val.labels[:12].tolist() == [9, 3, 5, 4, 7, 4, 9, 6, 8, 8, 7, 4]


def test_all_images_of_mnist_train_where_none_is_held_out(shared_mnist: Path) -> None:
    """The same 5,000 validate, and are said to be trained on; a value that is neither yes nor no is refused."""
    held_out, every = load("mnist", shared_mnist), load("mnist", shared_mnist, hold_out=False)
    assert len(every.train) == 60_000
    assert every.train.labels[:12].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4, 3, 5]  # in the files' order
    assert torch.equal(every.val.images, held_out.val.images)
    assert held_out.held_out and not every.held_out
    assert every.note == "the validation images are trained on too"
    with pytest.raises(ValueError, match="hold_out must be one of True, False; got 'no'"):
        load("mnist", shared_mnist, hold_out="no")


def test_download_checks_and_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A local http server stands for the public address; the second time nothing is fetched."""
    import functools
    import http.server
    import threading

    served = tmp_path / "served"
    served.mkdir()
    (served / "a.bin").write_bytes(b"right")
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(served))
    monkeypatch.setattr(http.server.SimpleHTTPRequestHandler, "log_message", lambda *_: None)
    monkeypatch.setenv("TORCHCAPS_DATA", str(tmp_path / "cache"))
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "127.0.0.1")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/"
        right = hashlib.sha256(b"right").hexdigest()
        path = require("a.bin", right, root=None, folder="some", address=address)
        assert path == tmp_path / "cache" / "some" / "a.bin" and path.read_bytes() == b"right"
        (served / "a.bin").write_bytes(b"wrong")
        assert require("a.bin", right, root=None, folder="some", address=address).read_bytes() == b"right"
        with pytest.raises(ValueError, match="could not download"):
            require("a.bin", right, root=None, folder="other", address=address)
        assert not list((tmp_path / "cache" / "other").iterdir())
        with pytest.raises(ValueError, match=r"could not download .*absent.bin[\s\S]*name that as data.root"):
            require("absent.bin", right, root=None, folder="some", address=address)
        path.write_bytes(b"rig")  # half of it
        with pytest.raises(ValueError, match=r"a.bin is there, but has another checksum: it is damaged, and could not"):
            require("a.bin", right, root=None, folder="some", address=address)
        server.shutdown()


def test_checksum(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"abc")
    check_checksum(path, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad")  # FIPS 180's example
    with pytest.raises(ValueError, match="must have the sha256"):
        check_checksum(path, "0" * 64)


def test_fashion_mnist_as_published() -> None:
    folder = SHARED_DATA / "fashion-mnist"
    if not folder.is_dir():
        pytest.skip(f"the Fashion-MNIST files are not in {folder}")
    data = load("fashion-mnist", folder)
    assert data.classes[9] == "ankle boot" and data.test.labels.bincount().tolist() == [1000] * 10
