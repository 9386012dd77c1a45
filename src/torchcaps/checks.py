"""Checks of arguments at the public door: each raises a ValueError that names the argument."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def check_shapes(**named: tuple[Tensor, str]) -> dict[str, int]:
    """Bind the letters of each shape, and refuse tensors that disagree.

    Args:
        named: for each argument its tensor and its axes, e.g. ``u=(u, "B I d_in")``. A letter
            that occurs in several tensors must have one size in all of them; a number is that size.

    Returns:
        The size of every letter.

    Raises:
        ValueError: no tensor; one with another number of axes, or another size than one seen before; one of complex
            numbers, or on another device than the first.

    Example:
        >>> import torch
        >>> check_shapes(u=(torch.rand(2, 6, 8), "B I d_in"))
        {'B': 2, 'I': 6, 'd_in': 8}
    """
    sizes: dict[str, int] = {}
    origin: dict[str, str] = {}
    first = next(iter(named))
    for name, (tensor, axes) in named.items():
        check_tensor(name, tensor)
        check_beside(name, tensor, first, named[first][0])
        letters = axes.split()
        got = tensor.shape
        if len(got) != len(letters):
            raise ValueError(f"{name} must be [{', '.join(letters)}], got shape {list(got)}")
        for letter, size in zip(letters, got, strict=True):
            if letter.isdigit() and size != int(letter):
                raise ValueError(f"{name} must be [{', '.join(letters)}], got shape {list(got)}")
            if sizes.setdefault(letter, size) != size:
                raise ValueError(
                    f"{name} must be [{', '.join(letters)}] with {letter}={sizes[letter]} as in {origin[letter]}, "
                    f"got shape {list(got)}"
                )
            origin.setdefault(letter, name)
    return sizes


def check_tensor(name: str, value: object) -> None:
    """Refuse lists, numbers, and what else is no tensor."""
    torch = sys.modules.get("torch")  # this file is imported without it, and there is no tensor without it
    if torch is None or not isinstance(value, torch.Tensor):
        raise ValueError(f"{name} must be a torch.Tensor, got a {type(value).__name__}")


def check_beside(name: str, tensor: Tensor, first: str, other: Tensor) -> None:
    """Refuse complex numbers, and a tensor on another device than the first argument; single numbers may be on the CPU.

    Torch would warn that imaginary parts are dropped, or, of a meta tensor beside others, give unwritten memory.
    """
    if tensor.is_complex():
        raise ValueError(f"{name} must be real, got {tensor.dtype}")
    if tensor is other:
        return
    apart = tensor.device != other.device
    if apart and not any(x.dim() == 0 and x.device.type == "cpu" for x in (tensor, other)):
        raise ValueError(f"{name} must be on {other.device} as {first} is, got a tensor on {tensor.device}")


def check_sized(name: str, value: Tensor, *shapes: Sequence[int], beside: tuple[str, Tensor]) -> None:
    """Refuse what is no tensor of floating-point numbers, of one of the shapes, on the device of the named one."""
    check_floating(name, value)
    check_beside(name, value, *beside)
    if tuple(value.shape) not in map(tuple, shapes):
        raise ValueError(f"{name} must be {' or '.join(str(list(x)) for x in shapes)}, got shape {list(value.shape)}")


def check_mask(mask: Tensor, shape: Sequence[int], beside: tuple[str, Tensor]) -> None:
    """Refuse what is no mask ``[B, I]`` of this shape, true for lower capsules that are there."""
    check_tensor("mask", mask)
    check_beside("mask", mask, *beside)
    if str(mask.dtype) != "torch.bool":  # this module imports not even torch
        raise ValueError(f"mask must be bool, true for lower capsules that are there, got {mask.dtype}")
    if tuple(mask.shape) != tuple(shape):
        raise ValueError(f"mask must be [B, I] = {list(shape)}, got shape {list(mask.shape)}")


def check_floating(name: str, value: object) -> None:
    """Refuse what is no tensor of floating-point numbers: neither integers nor complex ones."""
    check_tensor(name, value)
    if not value.is_floating_point():  # type: ignore[attr-defined]
        raise ValueError(f"{name} must be floating point, got {value.dtype}")  # type: ignore[attr-defined]


def check_axis(name: str, axis: object, tensor: Tensor) -> None:
    """Refuse what is no axis of this tensor, counted from its first or, below 0, from its last; or one of size 0."""
    n = tensor.dim()
    if not isinstance(axis, Integral) or isinstance(axis, bool) or not -n <= int(axis) < n:
        raise ValueError(f"{name} must be an axis of {n}, from {-n} to {n - 1}, got {axis!r}")
    if tensor.shape[axis] == 0:
        raise ValueError(f"{name} must be an axis of size 1 or more, got {axis!r} of shape {list(tensor.shape)}")


def check_choice(name: str, value: object, known: Iterable[Any] | Mapping[Any, Any]) -> None:
    """Refuse a value that is not one of the known ones, and list those."""
    known, one = list(known), single(value)
    if getattr(one, "shape", None) is not None or one not in known:  # an array equals nothing, but each number may
        raise ValueError(f"{name} must be one of {', '.join(map(str, known))}; got {value!r}")


def check_at_least(name: str, value: int, least: int, below: int = 2**31) -> None:
    """Refuse anything but an integer, numpy's too, of at least ``least``; and more than anything can have."""
    if not _is_at_least(value, least):
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")
    if value >= below:
        raise ValueError(f"{name} must be below {below}, got {value!r}")


def single(value: Any) -> Any:
    """Turn a single number of numpy's or torch's into Python's; anything else stays as it is."""
    if type(value) in (bool, int, float):  # first: torch.compile's symbolic numbers have no attributes
        return value
    is_one = getattr(value, "shape", None) == () and not getattr(value, "is_meta", False)
    return value.item() if is_one else value  # type: ignore[attr-defined]


def check_flag(name: str, value: object) -> None:
    """Refuse anything but True and False: a text is true, whatever it says."""
    if not isinstance(single(value), bool):
        raise ValueError(f"{name} must be True or False, got {value!r}")


def check_positive(name: str, value: object) -> None:
    """Refuse anything but a real number above 0."""
    number = single(value)
    if isinstance(number, bool) or not (isinstance(number, Real) and float(number) > 0):
        raise ValueError(f"{name} must be positive, got {value!r}")


def check_number(name: str, value: object, least: float | None = None) -> None:
    """Refuse anything but one real number, of at least ``least`` where that is given."""
    number = single(value)
    lowest = -float("inf") if least is None else least
    if isinstance(number, bool) or not (isinstance(number, Real) and float(number) >= lowest):
        raise ValueError(f"{name} must be a number{'' if least is None else f' of at least {least}'}, got {value!r}")


def as_number(name: str, value: object, least: float | None = None) -> float:
    """Turn one real number, of numpy's, torch's or a fraction too, into Python's; tensors know no others."""
    check_number(name, value, least)
    number: Any = single(value)
    return number if type(number) is float else float(number)


def check_path(name: str, value: object) -> None:
    """Refuse what is no text or path; none is empty, has a zero byte in it, or is longer than names can be."""
    if not isinstance(value, str | PurePath) or not str(value) or "\0" in str(value):
        raise ValueError(f"{name} must be a path, got {value!r:.80}")
    try:
        Path(value).exists()
    except OSError as error:
        raise ValueError(f"{name} must be a path, got {value!r:.80}: {error.strerror}") from None


def check_several(name: str, value: object) -> None:
    """Refuse one text or path where several are wanted: its letters are none."""
    if isinstance(value, str | PurePath):
        raise ValueError(f"{name} must be several, such as [{value!r}], got one")


def check_classes(name: str, classes: Tensor, n_classes: int) -> None:
    """Refuse labels that are no classes 0 … ``n_classes`` − 1; it waits for a device to tell."""
    if classes.numel() and not 0 <= int(classes.min()) <= int(classes.max()) < n_classes:
        raise ValueError(
            f"{name} must hold classes 0 … {n_classes - 1}, got {int(classes.min())} … {int(classes.max())}"
        )


def check_list(name: str, values: object, least: int = 1) -> None:
    """Refuse anything but a list or tuple of integers of at least ``least``."""
    if not isinstance(values, Sequence) or isinstance(values, str | bytes):
        raise ValueError(f"{name} must list integers of at least {least}, got {values!r}")
    for value in values:
        check_at_least(f"each of {name}", value, least)


def check_module(name: str, value: object) -> None:
    """Refuse the class of a module, and what else is no module."""
    from torch import nn

    if not isinstance(value, nn.Module):
        raise ValueError(f"{name} must be a torch.nn.Module, got {value!r:.80}")


def check_int64(name: str, labels: Tensor) -> None:
    """Refuse labels of another dtype."""
    if str(labels.dtype) != "torch.int64":  # this module imports not even torch
        raise ValueError(f"{name} must be int64, got {labels.dtype}")


def check_two(name: str, value: object, least: int | None = None) -> None:
    """Refuse anything but a pair; where ``least`` is given, of integers of at least that."""
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != 2:
        raise ValueError(f"{name} must be two numbers, got {value!r}")
    if least is not None and not all(_is_at_least(number, least) for number in value):
        raise ValueError(f"{name} must be two integers of at least {least}, got {value!r}")


def as_two(name: str, value: int | Sequence[int], least: int) -> tuple[int, int]:
    """Turn a number for rows and columns alike, or one for each, into two; all of at least ``least``."""
    if isinstance(value, Sequence):
        check_two(name, value, least)
        return int(value[0]), int(value[1])
    if not isinstance(value, Real):
        raise ValueError(f"{name} must be an integer of at least {least}, or two of them, got {value!r}")
    check_at_least(name, value, least)
    return int(value), int(value)


def _is_at_least(value: object, least: int) -> bool:
    if type(value) is int:  # as nearly always: the abstract class takes longer to ask
        return value >= least
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least
