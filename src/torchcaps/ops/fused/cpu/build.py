"""From C++ source to a shared library, once for each source, compiler and processor."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import tempfile
from importlib import resources
from pathlib import Path

from torchcaps.ops.fused.unavailable import Unavailable

#: No -ffast-math: infinities, NaN, denormals and the order of sums are part of the result.
FLAGS = ("-std=c++17", "-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-fPIC", "-shared")
#: For this processor: x86 and newer compilers for Arm; older ones for Arm; whatever the compiler takes as given.
TARGETS = (("-march=native",), ("-mcpu=native",), ())
COMPILERS = ("c++", "g++", "clang++")


def build(name: str, folder: Path | None = None) -> Path:
    """Compile ``<name>.cpp`` of this package, unless that was done before.

    Several processes may do so at once: each writes a file of its own and renames it. The name of
    the library ends in the digest of its bytes, so that a damaged one is known and made again.

    Args:
        name: of the source, without ``.cpp``.
        folder: where libraries are kept; the user's cache folder by default.

    Returns:
        Path of the shared library.

    Raises:
        Unavailable: no compiler, or it fails.
    """
    sources = _sources(name)
    command = _compiler()
    version = _run([*command, "--version"]).stdout
    text = repr((name, sorted(sources.items()), command, FLAGS, TARGETS, version, _processor()))
    key = hashlib.sha256(text.encode()).hexdigest()[:16]
    folder = _writable(folder or _cache())
    for path in sorted(folder.glob(f"{name}-{key}-*.so")):
        if path.stem.endswith(_digest(path)):
            return path
    with tempfile.TemporaryDirectory(dir=folder, prefix=f"{name}-") as scratch:
        for file, content in sources.items():
            (Path(scratch) / file).write_bytes(content)
        made, complaint = Path(scratch) / "made.so", ""
        for target in TARGETS:
            done = _run([*command, *FLAGS, *target, f"{name}.cpp", "-o", made.name, "-pthread"], scratch)
            if done.returncode == 0:
                return made.replace(folder / f"{name}-{key}-{_digest(made)}.so")
            complaint = done.stderr.strip()[-2000:]
    raise Unavailable(f"{shlex.join(command)} cannot compile {name}.cpp: {complaint}")


def _sources(name: str) -> dict[str, bytes]:
    """The source and every header of this package: one that changed changes every library."""
    files = resources.files(__package__ or "").iterdir()
    return {file.name: file.read_bytes() for file in files if file.name.endswith(".h") or file.name == f"{name}.cpp"}


def _compiler() -> list[str]:
    given = shlex.split(os.environ.get("CXX", ""))
    for command in [given] if given else [[name] for name in COMPILERS]:
        if shutil.which(command[0]):
            return command
    raise Unavailable(f"no C++ compiler: looked for {shlex.join(given) or ', '.join(COMPILERS)}")


def _run(command: list[str], cwd: str | None = None) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=300)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"cannot run {shlex.join(command)}: {error}") from error


def _processor() -> str:
    """What -march=native depends on: a home folder may be shared by unlike machines."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return f"{platform.machine()} {platform.processor()} {platform.version()}"
    return "\n".join(sorted(set(re.findall(r"^(?:model name|flags|Features|CPU part)\s*:.*$", text, re.MULTILINE))))


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torchcaps"


def _writable(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        # Never a name in the common temporary folder that others could have put a library under.
        return Path(tempfile.mkdtemp(prefix="torchcaps-"))
    return folder


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
