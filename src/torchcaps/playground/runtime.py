"""The files of onnxruntime-web that a page needs, of one version, whose checksums are known."""

from __future__ import annotations

import tarfile
from pathlib import Path

from torchcaps.data.files import check_checksum, require

VERSION = "1.30.0"
#: The package as npm publishes it, and its sha256.
_ARCHIVE = f"onnxruntime-web-{VERSION}.tgz"
_CHECKSUM = "d2228df7e4616bc3348bf504ee888f3bec43789a273f0a63f3e68d203ce3bf71"
_ADDRESS = "https://registry.npmjs.org/onnxruntime-web/-/"
#: Of each file the page's name for it (servers know .js better than .mjs), and its sha256.
_FILES = {
    "ort.wasm.bundle.min.mjs": (
        "onnxruntime.js",
        "11e64bd8ffe11bd1a2a2f0d6275fdfbbba7262f0b76b99b53d228a8a22ef3d90",
    ),
    "ort-wasm-simd-threaded.wasm": (
        "onnxruntime.wasm",
        "3398c10d07d229bd91b364548e130e0e51a8e5704b88c7c083ebbeb78842dee2",
    ),
}


def copy_runtime(package: Path | None, folder: Path) -> None:
    """Put what runs the networks in a browser into a folder.

    Args:
        package: folder of the installed npm package onnxruntime-web; None downloads the package into the cache.
        folder: where the files go.

    Raises:
        ValueError: a file is missing, is not that of the version that the page was tried with, or cannot be downloaded.
    """
    archive = None
    if package is None:
        archive = require(_ARCHIVE, _CHECKSUM, root=None, folder="onnxruntime-web", address=_ADDRESS)
    for name, (called, checksum) in _FILES.items():
        made = folder / called
        made.write_bytes(
            _from_archive(archive, name) if archive is not None else _from_folder(Path(package or ""), name)
        )
        try:
            check_checksum(made, checksum)
        except ValueError as error:
            raise ValueError(f"onnxruntime-web must be version {VERSION}, got another {name} in {package}") from error


def _from_folder(package: Path, name: str) -> bytes:
    path = package.expanduser() / "dist" / name
    if not path.is_file():
        raise ValueError(f"onnxruntime-web must be the folder of that npm package, {VERSION}; {path} is not there")
    return path.read_bytes()


def _from_archive(archive: Path, name: str) -> bytes:
    with tarfile.open(archive) as files:
        file = files.extractfile(f"package/dist/{name}")
        assert file is not None
        return file.read()
