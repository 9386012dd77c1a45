"""What the page sends, checked value by value before anything is computed of it."""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

#: Side of a drawing in pixels: five of them for each of the network's 28.
CANVAS = 140
#: Bytes of a message beside its images.
_ROOM = 16384
#: Largest message of drawings in bytes: two of them in base64, and room for the rest.
LARGEST = 4 * (2 * CANVAS * CANVAS) // 3 + _ROOM
#: Bounds of the numbers that a page can set.
BOUNDS = {"rotate": 180.0, "shift_x": 28.0, "shift_y": 28.0, "shear": 2.0}


class Moves(NamedTuple):
    """How the page moves what is drawn.

    Attributes:
        rotate: degrees, clockwise.
        shift: pixels (to the right, down).
        shear: pixels to the right for each pixel upwards.
    """

    rotate: float
    shift: tuple[float, float]
    shear: float


class Drawing(NamedTuple):
    """One state of the canvas.

    Attributes:
        network: number of the network that it is for.
        inks: one drawing, or two that overlap, each ``[140, 140]`` of values 0 … 1.
        moves: what is done to them.
    """

    network: int
    inks: list[Tensor]
    moves: Moves


def read_json(body: bytes) -> dict[str, Any]:
    """Read an object of plain JSON.

    Raises:
        ValueError: broken JSON, NaN or infinity, nested too deep, or no object.
    """
    try:
        message = json.loads(body, parse_constant=_refuse)
    except RecursionError as error:
        raise ValueError("the message must be flat JSON, got one nested too deep") from error
    except ValueError as error:  # of the text as of its encoding
        raise ValueError(f"the message must be JSON: {error}") from error
    if not isinstance(message, dict):
        raise ValueError(f"the message must be a JSON object, got a {type(message).__name__}")
    return message


def read_drawing(message: dict[str, Any], n_networks: int) -> Drawing:
    """Read a drawing from a message.

    Raises:
        ValueError: a field is missing, of another kind, or beyond its bounds.
    """
    layers = message.get("layers")
    if not isinstance(layers, list) or len(layers) not in (1, 2):
        raise ValueError(f"layers must be a list of one or two drawings, got {_short(layers)}")
    moves = read_moves(message)
    return Drawing(read_index(message, "network", n_networks), [_read_ink(layer) for layer in layers], moves)


def read_moves(message: dict[str, Any]) -> Moves:
    """Read how the drawing is moved; numbers that are missing are 0.

    Raises:
        ValueError: one is none, or beyond its bounds.
    """
    numbers = {name: read_number(message, name, -most, most, 0.0) for name, most in BOUNDS.items()}
    return Moves(numbers["rotate"], (numbers["shift_x"], numbers["shift_y"]), numbers["shear"])


def read_image(message: dict[str, Any], shape: tuple[int, int, int]) -> Tensor:
    """Read an image ``[C, H, W]`` of values 0 … 1, as bytes in base64.

    Raises:
        ValueError: it is missing, no base64, or of another size.
    """
    pixels = _decoded("image", message.get("image"))
    channels, height, width = shape
    if len(pixels) != channels * height * width:
        raise ValueError(
            f"image must be {channels}×{height}×{width} = {channels * height * width} bytes, got {len(pixels)}"
        )
    return torch.frombuffer(bytearray(pixels), dtype=torch.uint8).view(shape).float() / 255


def largest_with(shape: tuple[int, int, int]) -> int:
    """Return the bytes that a message with an image ``[C, H, W]`` has at most."""
    return 4 * math.prod(shape) // 3 + _ROOM


def read_number(message: dict[str, Any], name: str, low: float, high: float, default: float | None = None) -> float:
    """Read a number between two bounds.

    Raises:
        ValueError: it is missing, where there is no default, or none, or beyond them.
    """
    value = message.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ValueError(f"{name} must be a number from {low:g} to {high:g}, got {_short(value)}")
    return float(value)


def read_index(message: dict[str, Any], name: str, n: int) -> int:
    """Read a whole number from 0 to n − 1; 0 where there is none.

    Raises:
        ValueError: another number, or none.
    """
    value = message.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < n:
        raise ValueError(f"{name} must be a whole number from 0 to {n - 1}, got {_short(value)}")
    return value


def read_pose(message: dict[str, Any]) -> Tensor:
    """Read the pose of one capsule, ``[D]``.

    Raises:
        ValueError: no list of numbers, or numbers that no capsule has.
    """
    pose = message.get("pose")
    if not isinstance(pose, list) or not 0 < len(pose) <= 256 or not all(_is_small(value) for value in pose):
        raise ValueError(f"pose must be a list of numbers from -1000 to 1000, got {_short(pose)}")
    return torch.tensor(pose, dtype=torch.float32)


def as_bytes(images: Tensor) -> bytes:
    """Write images of values 0 … 1 as bytes, row by row."""
    return (images.clamp(0, 1) * 255).round().to(torch.uint8).contiguous().numpy().tobytes()


def as_text(images: Tensor) -> str:
    """Write images of values 0 … 1 as base64 of bytes, row by row."""
    return base64.b64encode(as_bytes(images)).decode("ascii")


def numbers_of(values: Tensor) -> list[float]:
    """Return a plain list, without the digits that nobody sees."""
    return [round(value, 5) for value in values.tolist()]


def _decoded(name: str, text: object) -> bytes:
    if not isinstance(text, str):
        raise ValueError(f"{name} must be base64 text, got {_short(text)}")
    try:
        return base64.b64decode(text.encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise ValueError(f"{name} must be base64 text: {error}") from error


def _read_ink(text: object) -> Tensor:
    pixels = _decoded("each of layers", text)
    if len(pixels) != CANVAS * CANVAS:
        raise ValueError(f"each of layers must be {CANVAS}×{CANVAS} = {CANVAS * CANVAS} bytes, got {len(pixels)}")
    return torch.frombuffer(bytearray(pixels), dtype=torch.uint8).view(CANVAS, CANVAS).float() / 255


def _is_small(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.fabs(value) <= 1000


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _short(value: object) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"a list of {len(value)}"
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:39]}…"
