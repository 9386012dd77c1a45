"""From C++ source to a shared library, once for each source, compiler and processor."""

from __future__ import annotations

import atexit
import functools
import hashlib
import logging
import os
import platform
import re
import shlex
import shutil
import subprocess
import tempfile
import time
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from torchcaps.ops.backends import variants
from torchcaps.ops.backends.errors import Unavailable
from torchcaps.ops.backends.variants import FLAGS

#: For this processor: x86 and newer compilers for Arm; older ones for Arm; whatever the compiler takes as given.
TARGETS = (("-march=native",), ("-mcpu=native",), ())
COMPILERS = ("c++", "g++", "clang++")
#: After so many seconds a compiler is given up, and no other one tried.
PATIENCE = 300


class _TooSlow(Unavailable):
    """A compiler, or the machine that it runs on."""


def build(name: str, folder: Path | None = None) -> Path:
    """Compile ``<name>.cpp``, unless that was done before.

    Several processes may do so at once: each writes a file of its own and renames it. The name of
    the library ends in the digest of its bytes, so that a damaged one is known and made again. Where there is no
    compiler any more, what another one has made of the same sources for this processor is taken.

    Args:
        name: of the source, without ``.cpp``.
        folder: where libraries are kept; the user's cache folder by default.

    Returns:
        Path of the shared library.

    Raises:
        Unavailable: no compiler, or it fails; or a system on which it cannot be told whose a file is.
    """
    if not hasattr(os, "geteuid"):
        raise Unavailable("compiled routing is for Linux and macOS")
    sources, complaints, folder = _sources(name), [], folder or library_folder()
    try:
        compilers = _compilers()
    except Unavailable:
        kept = _kept(folder, f"{name}-{_source_key(name, sources)}-")
        if kept is None:
            raise
        return kept
    for command in compilers:
        try:
            return _built(name, sources, command, folder)
        except _TooSlow:
            raise
        except Unavailable as error:
            complaints.append(str(error))
    raise Unavailable("; ".join(complaints))


def _built(name: str, sources: dict[str, bytes], command: list[str], folder: Path) -> Path:
    version = _run([*command, "--version"]).stdout
    key = f"{_source_key(name, sources)}-{_short_hash(repr((command, version)).encode())}"
    # Looked into first: what was made for many machines may lie in a folder that none of them may write to.
    kept = _kept(folder, f"{name}-{key}-")
    if kept is not None:
        return kept
    folder = _writable(folder)
    _sweep(folder, name)
    logging.getLogger("torchcaps").info("compiling %s routing into %s", name, folder)
    with tempfile.TemporaryDirectory(dir=folder, prefix=f"{name}-") as scratch:
        for file, content in sources.items():
            (Path(scratch) / file).write_bytes(content)
        made, complaint = Path(scratch) / "made.so", ""
        for target in TARGETS:
            done = _run([*command, *FLAGS, *target, f"{name}.cpp", "-o", made.name, "-pthread"], scratch)
            if done.returncode == 0:
                made.chmod(0o755)  # whatever the umask: what others can write to is not trusted
                return made.replace(folder / f"{name}-{key}-{_digest(made)}.so")
            complaint = done.stderr.strip()[-2000:]
    raise Unavailable(f"{shlex.join(command)} cannot compile {name}.cpp: {complaint}")


def _source_key(name: str, sources: dict[str, bytes]) -> str:
    return _short_hash(repr((name, sorted(sources.items()), FLAGS, TARGETS, _processor())).encode())


def _kept(folder: Path, start: str) -> Path | None:
    """Return a whole library of which only this user can have made the file, whose name begins so."""
    for path in sorted(folder.glob(f"{start}*.so")) if is_ours(folder) else ():
        if is_ours(path) and path.stem.endswith(_digest(path)):
            return path
    return None


def _sources(name: str) -> dict[str, bytes]:
    return variants.sources(name, source_folders(name))


def source_folders(name: str) -> list[Traversable]:
    """Return the folder of ``<name>.cpp`` and its headers, and that of the common headers."""
    return variants.source_folders(name, resources.files("torchcaps.ops"))


def _compilers() -> list[list[str]]:
    """List the compilers that are installed; only the user's own where CXX names one."""
    try:
        given = shlex.split(os.environ.get("CXX", ""))
    except ValueError as error:
        raise Unavailable(f"CXX must be a command, got {os.environ['CXX']!r}: {error}") from None
    found = [command for command in ([given] if given else [[name] for name in COMPILERS]) if shutil.which(command[0])]
    if not found:
        raise Unavailable(f"no C++ compiler: looked for {shlex.join(given) or ', '.join(COMPILERS)}")
    return found


def compiler() -> str:
    """Name the compiler that is tried first, and its version, in one line.

    Raises:
        Unavailable: there is none, or it does not run.
    """
    command = _compilers()[0]
    lines = _run([*command, "--version"]).stdout.strip().splitlines()
    return f"{shlex.join(command)}: {lines[0] if lines else 'it does not say its version'}"


def _run(command: list[str], cwd: str | None = None) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, cwd=cwd, capture_output=True, encoding="utf-8", errors="replace", check=False, timeout=PATIENCE
        )
    except subprocess.TimeoutExpired as error:
        raise _TooSlow(f"{shlex.join(command)} took longer than {PATIENCE} seconds") from error
    except OSError as error:
        raise Unavailable(f"cannot run {shlex.join(command)}: {error}") from error


def _processor() -> str:
    """Describe what -march=native depends on: a home folder may be shared by unlike machines."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        text = ""
    told = sorted(set(re.findall(r"^(?:model name|flags|Features|CPU part)\s*:.*$", text, re.MULTILINE)))
    # Where nothing tells, not even a machine of the same system may take it.
    return "\n".join((platform.machine(), *(told or (platform.processor(), platform.version(), platform.node()))))


def library_folder() -> Path:
    """Return the folder of compiled code and of the verdicts about it."""
    try:
        # A folder of its own: it is closed to others, with whom the data beside it may be shared.
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").expanduser() / "torchcaps" / "lib"
    except RuntimeError:  # a user without a home
        return _temporary()


def is_ours(path: Path) -> bool:
    """Tell whether only this user, or the administrator, can have put code there."""
    try:
        found = path.stat()
    except OSError:
        return False
    return found.st_uid in (0, os.geteuid()) and not found.st_mode & 0o022


def _writable(folder: Path) -> Path:
    """Close the folder to others; where that fails, make a private one that this process removes."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_uid == os.geteuid() and not is_ours(folder):
            folder.chmod(0o700)
        tempfile.TemporaryFile(dir=folder).close()
        if is_ours(folder):
            return folder
    except OSError:
        pass
    logging.getLogger("torchcaps").warning(
        "compiled routing cannot be kept in %s, so every process compiles it anew: XDG_CACHE_HOME names a better place",
        folder,
    )
    return _temporary()


@functools.cache
def _temporary() -> Path:
    # Never a name in the common temporary folder that others could have put a library under.
    folder = Path(tempfile.mkdtemp(prefix="torchcaps-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _sweep(folder: Path, name: str) -> None:
    """Remove what is left of builds that were killed over a day ago."""
    for path in folder.glob(f"{name}-*"):
        if path.is_dir() and path.stat().st_mtime < time.time() - 86_400:
            shutil.rmtree(path, ignore_errors=True)


def _digest(path: Path) -> str:
    return _short_hash(path.read_bytes())


def _short_hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
