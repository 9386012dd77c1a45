"""Files from the public addresses: found, fetched and checked against their checksums."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


def cache_folder() -> Path:
    """Where downloads go: ``$TORCHCAPS_DATA``, else ``$XDG_CACHE_HOME/torchcaps`` or ``~/.cache/torchcaps``."""
    own = os.environ.get("TORCHCAPS_DATA")
    if own:
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "torchcaps"


def require(name: str, checksum: str | None, *, root: Path | None, folder: str, address: str) -> Path:
    """A data file whose content is known to be right.

    Args:
        name: the file's name.
        checksum: its sha256; or ``"md5:…"`` where no other is published, which shows damage but keeps out no forgery;
            None where none at all is published: read the file within :func:`pinned` then.
        root: a folder that has the file; None downloads into the cache, with a progress bar.
        folder: the data set's folder, under the cache.
        address: where the file is published, without its name.

    Returns:
        The file's path.

    Raises:
        ValueError: the file is missing, or has another checksum, or cannot be downloaded.
    """
    if root is not None:
        path = root / name
        if not path.is_file():
            raise ValueError(f"data.root must hold {name}, but {path} is not there")
        if checksum is not None:
            check_checksum(path, checksum)
        return path
    import pooch

    downloader: Any = pooch.HTTPDownloader(progressbar=True, timeout=60)  # pooch's own stub does not fit it
    try:
        return Path(
            pooch.retrieve(
                address + name,
                known_hash=checksum and ":".join(_algorithm_and_value(checksum)),
                fname=name,
                path=cache_folder() / folder,
                downloader=downloader,
            )
        )
    except (OSError, ValueError) as error:
        raise ValueError(
            f"could not download {address}{name}: {error}\n"
            f"Where there is no network, put the file into a folder and name that as data.root."
        ) from error


@contextmanager
def pinned(path: Path, *, ours: bool) -> Iterator[None]:
    """Hold a file without a published checksum to the sha256 that it had when it was first read.

    That is written beside it (``<name>.sha256``, as sha256sum does) once the reading within has succeeded;
    not in a folder that cannot be written to.

    Args:
        path: the file.
        ours: it was downloaded: if it has not been read before and cannot be, remove it, to be downloaded anew.

    Raises:
        ValueError: it has another one now.
    """
    pin = path.with_name(f"{path.name}.sha256")
    if pin.is_file():
        known = pin.read_text(encoding="utf-8").split()
        if not known:
            raise ValueError(f"{pin} must hold the sha256 of {path.name}, got an empty file")
        check_checksum(path, known[0])
        yield
        return
    try:
        yield
    except ValueError:
        if ours:
            path.unlink(missing_ok=True)
        raise
    partial = path.with_name(f".{pin.name}.{os.getpid()}.partial")
    with suppress(OSError), path.open("rb") as file:
        partial.write_text(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {path.name}\n", encoding="utf-8")
        partial.replace(pin)


def check_checksum(path: Path, checksum: str) -> None:
    """Refuse a file whose content is not the expected one.

    Raises:
        ValueError: naming the file and both checksums.
    """
    algorithm, value = _algorithm_and_value(checksum)
    with path.open("rb") as file:
        got = hashlib.file_digest(file, algorithm).hexdigest()
    if got != value:
        raise ValueError(f"{path} must have the {algorithm} {value}, got {got}: it is damaged or another file")


def _algorithm_and_value(checksum: str) -> tuple[str, str]:
    algorithm, _, value = checksum.rpartition(":")
    return algorithm or "sha256", value
