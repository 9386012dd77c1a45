"""Where a number comes from: versions, commit, images."""

from __future__ import annotations

import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from zlib import crc32

from torchcaps import __version__
from torchcaps.data import Dataset, Images


def versions() -> dict[str, str]:
    """Versions of what took part."""
    others = {name: version(name) for name in ("torch", "numpy", "lightning")}
    return {"python": platform.python_version(), "torchcaps": __version__} | others


def commit(*further: str) -> str | None:
    """The commit of the source that ran, with "-dirty" where it was changed; None outside a checkout.

    Args:
        further: folders beside ``src`` of which the same is asked.
    """
    source = Path(__file__).parent

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=source, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    places = ("../..", *(f"../../../{name}" for name in further))
    try:
        # An installed copy may lie inside somebody else's checkout: then its files are not tracked.
        git("ls-files", "--error-unmatch", Path(__file__).name)
        return git("rev-parse", "HEAD") + ("-dirty" if git("status", "--porcelain", "--", *places) else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def splits_in_words(data: Dataset) -> dict[str, str]:
    """How many images each split has, and a checksum of their labels and groups: tells data that came or were moved.

    Not of the images: where these are resized, another processor may round a pixel otherwise.
    """
    return {name: f"{len(images):,} images, {_checksums(images)}" for name, images in data.splits.items()}


def _checksums(images: Images) -> str:
    """Of their labels, and of whose images they are where that is known."""
    known = {"labels": images.labels} | ({"groups": images.factors["group"]} if "group" in images.factors else {})
    return ", ".join(f"{name} {crc32(values.cpu().numpy().tobytes()):08x}" for name, values in known.items())
