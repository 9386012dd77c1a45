"""The libraries that a wheel holds, compiled ahead: one for each set of instructions of a kind of processor.

The build of a wheel runs this file by itself, where there is no torch: it imports nothing of the package.
"""

from __future__ import annotations

import hashlib
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import NamedTuple

#: No -ffast-math, whatever CXX has: infinities, NaN and the order of sums are part of the result, and
#: subnormal numbers but in EM routing (parallel.h).
FLAGS = (
    "-std=c++17",
    "-O3",
    "-fno-fast-math",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=fast",
    "-fPIC",
    "-shared",
)
#: Where under ``ops`` the source of each library lies, and the folders of other headers that it includes.
FOLDERS: dict[str, tuple[str, ...]] = {
    "agreement": (),
    "dynamic": ("dynamic",),
    "dynamic_votes": ("dynamic",),
    "elementwise": ("fixed",),
    "em": ("em",),
    "em_vectors": ("em",),
    "few_places": (),
    "variational_bayes": ("variational_bayes", "em"),
}
#: Where under ``ops`` the libraries of a wheel lie.
SHIPPED = "backends/lib"


class Variant(NamedTuple):
    """A set of instructions: how to compile for it, and what torch says of a processor that has it."""

    name: str
    flags: tuple[str, ...]
    #: Answers of ``torch.backends.cpu.get_cpu_capability()`` that promise these instructions, and no other ones.
    capabilities: frozenset[str] | None


_AVX2 = ("-mavx2", "-mfma")
_AVX512 = (*_AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl")
#: By the kind of processor, the fastest first; the last one runs on all of its kind. The flags are the very
#: instructions that torch looks for. None of them is bfloat16's: the kernels compute in float32 or float64.
VARIANTS = {
    "x86_64": (
        Variant("avx512", _AVX512, frozenset({"AVX512"})),
        Variant("avx2", _AVX2, frozenset({"AVX2", "AVX512"})),
        Variant("sse2", (), None),
    ),
    "aarch64": (Variant("neon", (), None),),
}
#: How systems call these kinds.
KINDS = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}


def sources(name: str, folders: list[Traversable]) -> dict[str, bytes]:
    """Read ``<name>.cpp`` and all headers. A change of any of them changes the library.

    Args:
        name: of a library.
        folders: of the source and its headers, and of the common headers.
    """
    files = (file for folder in folders for file in folder.iterdir())
    return {file.name: file.read_bytes() for file in files if file.name.endswith(".h") or file.name == f"{name}.cpp"}


def source_folders(name: str, ops: Traversable) -> list[Traversable]:
    """Return the folder of ``<name>.cpp``, and those of headers; the last one is of the common headers."""
    return [ops / folder / "csrc" for folder in (*FOLDERS[name], "backends")]


def file_name(name: str, variant: str, content: dict[str, bytes], windows: bool) -> str:
    """Name a library after what it was made of: one of other sources is not taken for it.

    Line ends do not count: an archive may have changed them.
    """
    plain = sorted((file, text.replace(b"\r\n", b"\n")) for file, text in content.items())
    digest = hashlib.sha256(repr((name, plain, FLAGS)).encode()).hexdigest()[:16]
    return f"{name}-{variant}-{digest}.{'dll' if windows else 'so'}"


def commands(compiler: list[str], kind: str, windows: bool, ops: Path, out: Path) -> dict[Path, list[str]]:
    """Return every library of a wheel, and the command that compiles it.

    Args:
        compiler: the command, with options of its own.
        kind: of processor, a key of :data:`VARIANTS`.
        windows: whether that is the system.
        ops: folder of the package ``torchcaps.ops``.
        out: folder for the libraries.
    """
    found = {}
    for name in FOLDERS:
        folders = source_folders(name, ops)
        content = sources(name, folders)
        for variant in VARIANTS[kind]:
            options = [*FLAGS, *variant.flags, *(f"-I{folder}" for folder in folders)]
            made = out / file_name(name, variant.name, content, windows)
            found[made] = [*compiler, *options, str(folders[0] / f"{name}.cpp"), "-o", str(made), "-pthread"]
    return found
