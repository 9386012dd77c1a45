"""affine-MNIST: MNIST's test digits turned, sheared, scaled and moved, 32 times each. A fixed test set."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import numpy as np
import torch

from torchcaps.data.files import cache_folder, check_checksum
from torchcaps.data.images import Images

#: Height and width of the canvas, and variants of each digit.
SIZE, N_VARIANTS = 40, 32

#: Largest rotation in degrees, largest horizontal shear, largest relative change of width and of height.
DEGREES, SHEAR, SCALE = 20, 0.2, 0.2

#: Of the draws.
SEED = 0

#: Of all pixels, in order.
SHA256 = "1cf06d843dd746270a3a638629649abcc27bb19b6f8340511fc649cd12585f35"

#: Digits made at a time: their numbers fit into a processor's cache.
_CHUNK = 200


def affine_mnist(test: Images) -> Images:
    """The 320,000 images, from the cache, where they are made once (512 MB, some minutes).

    Variant 0 of all digits comes first, then variant 1; so any first 10,000 images are every digit once.

    Args:
        test: MNIST's test images in their order, ``[10000, 1, 28, 28]``.

    Returns:
        ``[320000, 1, 40, 40]``, read from the file as they are used.

    Raises:
        ValueError: what was made, or is in the cache, has not the recorded checksum.
    """
    from filelock import FileLock

    digits = test.images[:, 0].numpy()
    own = hashlib.sha256(digits.tobytes()).hexdigest()[:8]  # else other digits would get what was made of these
    path = cache_folder() / "affine-mnist" / f"{N_VARIANTS}x{len(test)}x{SIZE}x{SIZE}-{own}.bin"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock")):  # whoever comes second waits, and finds it
            if not path.is_file():
                _make(path, digits)
    try:
        check_checksum(path, SHA256)
    except ValueError as error:
        raise ValueError(f"{error}; remove it, and it is made anew") from error
    pixels = np.memmap(path, np.uint8, "c", shape=(N_VARIANTS * len(test), 1, SIZE, SIZE))
    return Images(torch.from_numpy(pixels), test.labels.repeat(N_VARIANTS))


def _make(path: Path, digits: np.ndarray) -> None:
    """Write all variants, whole and right or not at all; by one process at a time."""
    from tqdm import tqdm

    partial = path.with_suffix(".partial")
    random, found = np.random.PCG64(SEED), hashlib.sha256()
    starts = [k for _ in range(N_VARIANTS) for k in range(0, len(digits), _CHUNK)]
    try:
        with partial.open("wb") as file:
            for k in tqdm(starts, desc="make affine-MNIST, once", leave=False, disable=not sys.stderr.isatty()):
                chunk = digits[k : k + _CHUNK]
                made = variants(chunk, uniform(random, (len(chunk), 6))).tobytes()
                found.update(made)
                file.write(made)
        if found.hexdigest() != SHA256:
            raise ValueError(f"affine-MNIST must have the sha256 {SHA256}, but what was made has {found.hexdigest()}")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def uniform(random: np.random.PCG64, shape: tuple[int, int]) -> np.ndarray:
    """Numbers 0 … 1 from the raw stream, which numpy promises to keep; float64 of that shape."""
    return (random.random_raw(shape[0] * shape[1]) >> np.uint64(11)).reshape(shape) * 2.0**-53


def variants(digits: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """One affine variant of each digit, interpolated bilinearly, all of its ink on the canvas.

    The box around a digit's ink is scaled in width and height, sheared, turned, and its centre put
    at random where all of it is on the canvas. Every number comes from float64 additions, products,
    quotients and floors of single elements, which all machines round alike: so the pixels are the same
    everywhere. (Sine and cosine of a library, matrix products and sums are not.)

    Args:
        digits: uint8 ``[N, H, W]``, each with some ink.
        draws: float64 ``[N, 6]``, 0 … 1: rotation, shear, width, height, place across, place down.

    Returns:
        uint8 ``[N, 40, 40]``.
    """
    centre, half = _ink(digits)
    swing = 2 * draws - 1  # [N, 6] in −1 … 1
    cos, sin = _cos_sin(swing[:, 0] * (DEGREES * np.pi / 180))
    lean, wide, high = SHEAR * swing[:, 1], 1 + SCALE * swing[:, 2], 1 + SCALE * swing[:, 3]
    # What takes the digit to the canvas: rotation · shear · scale.
    to_x = (cos * wide, (cos * lean - sin) * high)
    to_y = (sin * wide, (sin * lean + cos) * high)
    edge = (SIZE - 1) / 2
    room_x = np.maximum(edge - (abs(to_x[0]) * half[0] + abs(to_x[1]) * half[1]), 0)
    room_y = np.maximum(edge - (abs(to_y[0]) * half[0] + abs(to_y[1]) * half[1]), 0)
    place = np.arange(SIZE) - edge
    x = place[None, None, :] - (room_x * swing[:, 4])[:, None, None]  # [N, 1, 40]
    y = place[None, :, None] - (room_y * swing[:, 5])[:, None, None]  # [N, 40, 1]
    # And back: for every pixel of the canvas where in the digit it is to be found.
    every = (slice(None), None, None)
    column = centre[0][every] + ((sin * lean + cos) / wide)[every] * x + ((sin - cos * lean) / wide)[every] * y
    row = centre[1][every] + (-sin / high)[every] * x + (cos / high)[every] * y
    return _interpolated(digits, row, column)


def _ink(digits: np.ndarray) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Centre of the box around each digit's ink, and half of its size, each as (x, y) of ``[N]``.

    The size has a pixel more on every side, which is how far interpolation spreads the ink.
    """
    ends = []
    for axis in (1, 2):
        inked = digits.max(axis=axis) > 0  # [N, W], then [N, H]
        ends.append((inked.argmax(axis=1), inked.shape[1] - 1 - inked[:, ::-1].argmax(axis=1)))
    (left, right), (top, bottom) = ends
    return ((left + right) / 2, (top + bottom) / 2), ((right - left) / 2 + 1, (bottom - top) / 2 + 1)


def _cos_sin(angle: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Their series, to the last digit for angles below 1: libraries differ in that digit."""
    square, cos, sin = angle * angle, np.ones_like(angle), np.ones_like(angle)
    for k in range(20, 0, -2):
        cos = 1 - square / (k * (k - 1)) * cos
        sin = 1 - square / (k * (k + 1)) * sin
    return cos, angle * sin


def _interpolated(digits: np.ndarray, row: np.ndarray, column: np.ndarray) -> np.ndarray:
    """The digits at these places, each float64 ``[N, 40, 40]``; black outside; halves rounded up."""
    height, width = digits.shape[1:]
    padded = np.pad(digits, ((0, 0), (2, 2), (2, 2))).astype(np.float64)
    top, left = np.floor(row), np.floor(column)
    down, right = row - top, column - left
    stride = width + 4
    first = (np.clip(top, -2, height) + 2).astype(np.intp) * stride + (np.clip(left, -2, width) + 2).astype(np.intp)
    first += (np.arange(len(digits)) * (height + 4) * stride)[:, None, None]
    flat = padded.ravel()
    above = flat[first] * (1 - right) + flat[first + 1] * right
    below = flat[first + stride] * (1 - right) + flat[first + stride + 1] * right
    return np.floor(above * (1 - down) + below * down + 0.5).astype(np.uint8)
