"""What was found out about kernels on a GPU, kept for later processes.

One small file for each kind of problem, in the folder of compiled code. What cannot be read counts as not there, and
what cannot be written is found out again by the next process.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import platform
import tempfile
from functools import cache
from importlib import import_module, resources
from pathlib import Path
from typing import Any, NamedTuple

import torch

from torchcaps.ops.backends import build


class Kind(NamedTuple):
    """A kind of problem that kernels are checked on.

    Attributes:
        routing: "dynamic" or "em".
        card: name and compute capability of the GPU, or "cpu" for the interpreter.
        poses: dtype of the poses.
        matrices: dtype of the matrices.
        tf32: whether the user lets products of float32 be rounded to TF32.
    """

    routing: str
    card: str
    poses: torch.dtype
    matrices: torch.dtype
    tf32: bool

    def __str__(self) -> str:
        """Write it as "EM routing in float32 on NVIDIA H100 (9.0)"."""
        kinds = dict.fromkeys(str(x).removeprefix("torch.") for x in (self.poses, self.matrices))
        name = {"em": "EM"}.get(self.routing, self.routing)
        return f"{name} routing in {' with '.join(kinds)}{' by TF32' * self.tf32} on {self.card}"


class Verdict(NamedTuple):
    """Why kernels are not to be taken, or None; and whether that holds for later processes, too."""

    reason: str | None
    keep: bool = False


def read(kind: Kind) -> Verdict | None:
    """Read the verdict of an earlier process, if it kept one."""
    try:
        path = _path(kind)
        if not (_is_ours(path.parent) and _is_ours(path)):
            return None
        found = json.loads(path.read_text(encoding="utf-8"))
        reason = found["reason"]
        fits = found["kind"] == _described(kind) and (reason is None or isinstance(reason, str))
        return Verdict(reason, keep=True) if fits else None
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, RecursionError):
        return None


def write(kind: Kind, verdict: Verdict) -> None:
    """Write a verdict atomically."""
    scratch = None
    try:
        path = _path(kind)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _is_ours(path.parent):
            path.parent.chmod(0o700)  # what others can write to is not read
        handle, scratch = tempfile.mkstemp(dir=path.parent, prefix=".verdict-")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump({"kind": _described(kind), "reason": verdict.reason}, file, indent=1)
        Path(scratch).chmod(0o644)
        Path(scratch).replace(path)
    except (OSError, RuntimeError) as error:
        logging.getLogger("torchcaps").info("the check of GPU kernels is done anew in every process: %s", error)
        if scratch is not None:
            with contextlib.suppress(OSError):
                Path(scratch).unlink()


def _path(kind: Kind) -> Path:
    key = hashlib.sha256(repr(sorted(_described(kind).items())).encode()).hexdigest()[:16]
    return build.library_folder() / f"triton-{kind.routing}-{key}.json"


def _is_ours(path: Path) -> bool:
    return not hasattr(os, "geteuid") or build.is_ours(path)


def _described(kind: Kind) -> dict[str, Any]:
    """List all that a verdict depends on."""
    return {
        **{name: str(x) for name, x in kind._asdict().items()},
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
        "driver": driver() if kind.card != "cpu" else "",
        "triton": _triton(),
        "python": platform.python_version(),
        "source": _source(),
    }


@cache
def driver() -> str:
    """Return the version of NVIDIA's driver, such as "580.65.06", or of its interface where the system does not say."""
    try:
        line = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8").splitlines()[0]
        return next(word for word in line.split() if word[0].isdigit() and "." in word)
    except (OSError, IndexError, StopIteration, ValueError):
        ask = getattr(torch._C, "_cuda_getDriverVersion", None)
        return str(ask()) if ask is not None else "unknown"


def _triton() -> str:
    return import_module("triton").__version__


@cache
def _source() -> str:
    """Hash every Python file of ``torchcaps.ops``: kernels, reference, and their comparison."""
    digest, folders = hashlib.sha256(), [resources.files("torchcaps.ops")]
    while folders:
        for item in sorted(folders.pop().iterdir(), key=lambda x: x.name):
            if item.is_dir():
                folders.append(item)
            elif item.name.endswith(".py"):
                digest.update(repr((item.name, item.read_bytes())).encode())
    return digest.hexdigest()
