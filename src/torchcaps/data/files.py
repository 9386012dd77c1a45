"""Files from the public addresses: found, fetched and checked against their checksums."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any


def cache_folder() -> Path:
    """Return where downloads go: ``$TORCHCAPS_DATA``, else ``$XDG_CACHE_HOME/torchcaps`` or ``~/.cache/torchcaps``."""
    own = os.environ.get("TORCHCAPS_DATA")
    if own:
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "torchcaps"


def require(name: str, checksum: str, *, root: Path | None, folder: str, address: str) -> Path:
    """Find or fetch a data file, and see that its content is right.

    Args:
        name: the file's name.
        checksum: its sha256.
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
        check_checksum(path, checksum)
        return path
    import pooch

    downloader: Any = pooch.HTTPDownloader(progressbar=True, timeout=60)  # pooch's own stub does not fit it
    try:
        return Path(
            pooch.retrieve(
                address + name,
                known_hash=f"sha256:{checksum}",
                fname=name,
                path=cache_folder() / folder,
                downloader=downloader,
            )
        )
    except (OSError, ValueError) as error:
        there = cache_folder() / folder / name
        damaged = f"{there} is there, but has another checksum: it is damaged, and " if there.is_file() else ""
        raise ValueError(
            f"{damaged}could not download {address}{name}: {error}\n"
            f"Where there is no network, put the file into {cache_folder() / folder}, "
            "or into another folder and name that as data.root."
        ) from error


def check_checksum(path: Path, checksum: str, kind: str = "sha256") -> None:
    """Refuse a file whose content is not the expected one.

    Args:
        path: the file.
        checksum: as hexadecimal digits.
        kind: of the checksum; "md5" finds damage alone, and is for what its authors publish no other of.

    Raises:
        ValueError: naming the file and both checksums.
    """
    with path.open("rb") as file:
        got = hashlib.file_digest(file, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()
    if got != checksum:
        raise ValueError(f"{path} must have the {kind} {checksum}, got {got}: it is damaged or another file")
