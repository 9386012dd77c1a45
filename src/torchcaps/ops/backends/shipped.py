"""Which of the libraries that came with the wheel this processor can run, and which is the fastest."""

from __future__ import annotations

import os
import platform
from importlib import resources
from pathlib import Path

import torch

from torchcaps.ops.backends.variants import KINDS, SHIPPED, VARIANTS, Variant, file_name, source_folders, sources

#: "native" compiles for the processor at hand, with its own compiler; the name of a variant takes that one.
SWITCH = "TORCHCAPS_CPU"


def shipped(name: str, folder: Path | None = None) -> Path | None:
    """Return the wheel's library of ``<name>.cpp`` for this processor.

    Args:
        name: of the source, without ``.cpp``.
        folder: where the wheel's libraries lie; in the package by default.

    Returns:
        Its path; None where this is no such wheel, where its sources have been changed, or where ``TORCHCAPS_CPU`` is
        "native".

    Raises:
        ValueError: ``TORCHCAPS_CPU`` names a set of instructions that this processor has not, or none at all.
    """
    ops = resources.files("torchcaps.ops")
    candidates = runnable()
    if not candidates:
        return None
    content = sources(name, source_folders(name, ops))
    folder = folder or Path(str(ops / SHIPPED))
    paths = (folder / file_name(name, variant.name, content, os.name == "nt") for variant in candidates)
    return next((path for path in paths if path.is_file()), None)


def runnable() -> list[Variant]:
    """List the variants that may be taken here, the fastest first; none where code is to be compiled here.

    Raises:
        ValueError: see :func:`shipped`.
    """
    capability = torch.backends.cpu.get_cpu_capability()
    variants = VARIANTS.get(KINDS.get(platform.machine().lower(), ""), ())
    found = [x for x in variants if x.capabilities is None or capability in x.capabilities]
    asked = os.environ.get(SWITCH, "")
    names = [variant.name for variant in found]
    if asked not in ("", "native", *names):
        raise ValueError(f"{SWITCH} must be one of {', '.join(['native', *names])} here, or unset, got {asked!r}")
    return [variant for variant in found if asked in ("", variant.name)]
