"""What the numbers of a report mean: what is fine, what is not there, what is wrong, and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from torchcaps.doctor.machine import ABSENT

#: Bytes below which the cache folder is called full: compiled code takes some megabytes.
LEAST_FREE = 100_000_000
_ISSUE = "report it, with the file that torchcaps doctor --json FILE writes; backend='reference' is right meanwhile"

_CODE = {"cpu": "compiled code", "triton": "Triton's code", "reference": "the reference"}


class Finding(NamedTuple):
    """One sentence for the user.

    Attributes:
        level: "fine"; "note" of what is merely not there; "wrong", for which the exit status is 1.
        text: what was found.
        advice: what to do, or "".
    """

    level: str
    text: str
    advice: str = ""


def findings(report: dict[str, Any]) -> list[Finding]:
    """Everything worth saying of a report."""
    found = [*_steps(report), *_routings(report), *_gpus(report), *_speed(report), *_machine(report)]
    return sorted(found, key=lambda x: ("fine", "note", "wrong").index(x.level))


def _steps(report: dict[str, Any]) -> Iterator[Finding]:
    for step, error in report.get("failed", {}).items():
        yield Finding("wrong", f"{step} could not be looked at: {error}", _ISSUE)


def _routings(report: dict[str, Any]) -> Iterator[Finding]:
    """Write one sentence for a device and reason, whatever routings and dtypes it is about."""
    said: dict[tuple[str, str, str], list[str]] = {}
    for row in report["routings"]:
        where, code = place(report, row["device"]), _CODE[row["taken"]]
        if row.get("fault"):
            key = ("wrong", f"{where}: {code} is taken and wrong: {row['fault']}", _ISSUE)
        elif row["taken"] == "reference":
            level = "wrong" if row["wrong"] else "note"
            key = (level, f"{where}: the slow reference is taken: {row['why']}", advice(row["why"]))
        else:
            key = ("fine", f"{where}: {code} is taken and right", "")
        said.setdefault(key, []).append(f"{in_words(row['routing'])} in {numbers(row)}")
    for (level, text, what_to_do), every in said.items():
        yield Finding(level, text if level == "fine" else f"{text} ({', '.join(every)})", what_to_do)


def advice(why: str) -> str:
    """Return what to do about a reason for the reference."""
    known = {
        "no C++ compiler": "install one (g++, or clang++; on macOS xcode-select --install): nothing else is needed",
        "cannot compile": "see what the compiler says; CXX names another one",
        "triton cannot be imported": "pip install triton (CUDA builds of torch for Linux bring it)",
        "triton must be": "pip install --upgrade triton, or a newer torch with it",
        "no C compiler": "install gcc or clang, or name one by CC",
        "Python's headers": "install the headers of this Python",
        "TORCHCAPS_TRITON=0": "unset TORCHCAPS_TRITON to have the kernels again",
        "no memory left": "ask again when the GPU is free",
        "are wrong": _ISSUE,
        "broke this process": _ISSUE,
        "did not run": _ISSUE,
    }
    return next((what for part, what in known.items() if part in why), "")


def _gpus(report: dict[str, Any]) -> Iterator[Finding]:
    found = report["gpus"]
    for text in found["said"]:
        yield Finding("note", f"torch says of the GPU: {text}")
    if found["cards"]:
        return
    if found["driver"] is None:
        yield Finding("fine", "no NVIDIA GPU is to be seen: everything runs on the CPU")
    elif found["cuda"] is None and found["rocm"] is None:
        what = f"this machine has NVIDIA's driver {found['driver']}, but this torch was built without CUDA"
        yield Finding("note", what, "install a CUDA build of torch: https://pytorch.org/get-started")
    else:
        what = f"this machine has NVIDIA's driver {found['driver']}, but torch sees no GPU"
        yield Finding("note", what, "see nvidia-smi and CUDA_VISIBLE_DEVICES; a container must be given the GPU")


def _speed(report: dict[str, Any]) -> Iterator[Finding]:
    for row in report["speed"]:
        ratio = faster(row)
        where, what = place(report, row["device"]), in_words(row["routing"])
        if ratio is not None and ratio < 1:
            code, longer = _CODE[row["taken"]], f"{1 / ratio:.1f} times as long"
            text = f"{where}: {code} takes {longer} as the reference for {what} routing"
            yield Finding("note", text, "ask again on a machine that does nothing else; if it stays so, report it")


def _machine(report: dict[str, Any]) -> Iterator[Finding]:
    machine = report["machine"]
    if not machine["writable"]:
        text = f"{machine['folder']} cannot be written to: every process compiles and checks anew"
        yield Finding("note", text, "XDG_CACHE_HOME names a better place")
    elif machine["free_bytes"] is not None and machine["free_bytes"] < LEAST_FREE:
        text = f"{machine['folder']} has {machine['free_bytes'] / 1e6:.0f} MB left"
        yield Finding("note", text, "make room, or name another place by XDG_CACHE_HOME")
    if report["gpus"]["cards"] and machine["environment"].get("TRITON_INTERPRET", "0") not in ("", "0"):
        yield Finding("note", "TRITON_INTERPRET is set: kernels run in an interpreter, very slowly", "unset it")
    missing = [name for name in ("lightning", "jsonargparse") if report["versions"][name] == ABSENT]
    if missing:
        text = f"torchcaps train lacks {' and '.join(missing)}; layers and models need neither"
        yield Finding("note", text, "install the extra 'train': see Install in README")


def faster(row: dict[str, Any]) -> float | None:
    """Return how many times as fast as the reference; None where nothing else was measured."""
    measured = row["measured"]
    ours = measured.get(row["taken"])
    return None if row["taken"] == "reference" or ours is None else measured["reference"]["ms"] / ours["ms"]


def place(report: dict[str, Any], device: str) -> str:
    """Such as "CPU" or "cuda:0 (NVIDIA H100)"."""
    names = {card["device"]: card["name"] for card in report["gpus"]["cards"]}
    return "CPU" if device == "cpu" else f"{device} ({names.get(device, 'unknown')})"


def in_words(routing: str) -> str:
    """Return a routing's name."""
    names = {"em": "EM", "em_vectors": "EM of vectors", "dynamic_votes": "dynamic of given votes"}
    return names.get(routing, routing.replace("_bayes", " Bayes"))


def numbers(row: dict[str, Any]) -> str:
    """Dtypes of poses and matrices, once where they are the same."""
    return " with ".join(dict.fromkeys(row["dtypes"]))
