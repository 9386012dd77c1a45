"""Where a number comes from: versions and commit."""

from __future__ import annotations

import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

from torchcaps import __version__


def versions() -> dict[str, str]:
    """Versions of what took part."""
    others = {name: version(name) for name in ("torch", "numpy", "lightning")}
    return {"python": platform.python_version(), "torchcaps": __version__} | others


def commit() -> str | None:
    """The commit of the source that ran, with "-dirty" where it was changed; None outside a checkout."""
    source = Path(__file__).parent

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=source, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        # An installed copy may lie inside somebody else's checkout: then its files are not tracked.
        git("ls-files", "--error-unmatch", Path(__file__).name)
        return git("rev-parse", "HEAD") + ("-dirty" if git("status", "--porcelain", "--", "../..") else "")
    except (OSError, subprocess.CalledProcessError):
        return None
