"""Where an experiment runs: device, threads, random state, versions and commit."""

from __future__ import annotations

import ctypes
import platform
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any
from zlib import crc32

import torch

from torchcaps import __version__
from torchcaps.checks import check_choice
from torchcaps.data import Dataset, Images
from torchcaps.ops.backends.native import openmp
from torchcaps.ops.backends.processor import processor
from torchcaps.training.config import DEVICES

#: Compute capability from which a GPU has TF32: Ampere.
TF32_CAPABILITY = (8, 0)


def choose_device(name: str, devices: int = 1, number: int = 0) -> torch.device:
    """Return the device that was named; "auto" is a GPU where there is one.

    Args:
        name: of the kind.
        devices: how many of them this machine must have.
        number: which of several GPUs.

    Raises:
        ValueError: it is unknown, or not available, or there are fewer.
    """
    check_choice("device", name, DEVICES)
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        name = next(kind for kind in ("cuda", "mps", "cpu") if there[kind])
    if not there[name]:
        raise ValueError(f"device {name} is not there; there is: {', '.join(k for k, found in there.items() if found)}")
    if devices == 1:
        return torch.device(name)
    n = {"cuda": torch.cuda.device_count(), "mps": 1}.get(name, devices)
    if devices > n:
        raise ValueError(f"devices must be at most {n}, the GPUs here ({name}), got {devices}; device cpu takes any")
    return torch.device(name, number) if name == "cuda" else torch.device(name)


def seed(number: int, device: torch.device) -> None:
    """Set the state of random numbers on the CPU and the device, as :func:`torch.manual_seed` does.

    That one writes down, at every call, where it was called from, for kinds of devices that are not there: a
    millisecond of the host, which is longer than a step of a GPU.
    """
    torch.default_generator.manual_seed(number)
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        torch.cuda.default_generators[index].manual_seed(number)
    elif device.type == "mps":
        torch.mps.manual_seed(number)


@contextmanager
def flushed() -> Iterator[None]:
    """Count numbers nearer to zero than 1e-38 as zero for a while, in all of torch's threads.

    Weights of channels that are dead decay to such, and processors take many times as long to multiply them.
    """
    before = not torch.full((), 1e-40).mul(1)  # torch has no function that says it
    n = torch.get_num_threads()
    _flush_in_threads(True, n)
    try:
        yield
    finally:  # an experiment has a number of its own, which still holds here
        _flush_in_threads(before, max(n, torch.get_num_threads()))


def _flush_in_threads(flush: bool, n: int) -> None:
    """Set it in this thread, and in those of torch's OpenMP: they keep the setting they were started with."""
    torch.set_flush_denormal(flush)
    entry = openmp().value
    if entry is not None and n > 1:
        body = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: torch.set_flush_denormal(flush) and None)
        parallel = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)(entry)
        parallel(ctypes.cast(body, ctypes.c_void_p), None, n, 0)


@contextmanager
def in_float32() -> Iterator[None]:
    """Make float32 torch's default dtype for a while."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Leave the caller's random state as it is, and its inference mode, autocast and default dtype outside."""
    drawn_on = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with (
        torch.random.fork_rng(devices=drawn_on),
        in_float32(),
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autocast("cpu", enabled=False),
        torch.autocast("cuda", enabled=False),
        torch.autocast("mps", enabled=False),
    ):
        yield


def tf32() -> tuple[str, ...]:
    """Return what PyTorch may run in TF32 on a GPU, of "convolutions" and "products"; by default the first.

    From 2.9 on PyTorch has two interfaces to these switches, and reading the old one raises where the new one was used.
    """
    cudnn: Any = torch.backends.cudnn  # its module has what its stub has not
    if hasattr(cudnn, "conv"):
        allowed = {
            "convolutions": cudnn.conv.fp32_precision == "tf32",
            "products": torch.backends.cuda.matmul.fp32_precision == "tf32",
        }
    else:
        allowed = {
            "convolutions": cudnn.allow_tf32,
            "products": torch.backends.cuda.matmul.allow_tf32,
        }
    return tuple(name for name, on in allowed.items() if on)


def device_in_words(device: torch.device) -> str:
    """Such as "NVIDIA H200, TF32 convolutions" or "Intel(R) Xeon(R) Processor, 1 thread"."""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        if torch.cuda.get_device_capability(device) < TF32_CAPABILITY or torch.version.hip:
            return name
        return f"{name}, TF32 {' and '.join(tf32())}" if tf32() else f"{name}, no TF32"
    if device.type == "mps":
        return f"{platform.machine()} GPU (mps)"
    n = torch.get_num_threads()
    return f"{processor()}, {n} thread{'s' if n > 1 else ''}"


def versions() -> dict[str, str]:
    """Versions of what took part."""
    others = {name: version(name) for name in ("torch", "numpy", "lightning")}
    return {"python": platform.python_version(), "torchcaps": __version__} | others


def commit(*further: str) -> str | None:
    """Return the commit of the source that ran, with "-dirty" where it was changed; None outside a checkout.

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
    """Describe each split: its images and a checksum of labels and groups, which shows what came or moved.

    Not of the images: where these are resized, another processor may round a pixel otherwise.
    """
    return {name: f"{len(images):,} images, {_checksums(images)}" for name, images in data.splits.items()}


def _checksums(images: Images) -> str:
    """Return checksums of the labels, and of the groups where these are known."""
    known = {"labels": images.labels} | ({"groups": images.factors["group"]} if "group" in images.factors else {})
    return ", ".join(f"{name} {crc32(values.cpu().numpy().tobytes()):08x}" for name, values in known.items())
