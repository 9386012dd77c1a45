"""Draw arguments that fit each other, and spoil some of them."""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from torchcaps.ops import Capsules


class Sizes(dict[str, Any]):
    """Draw the size of each letter when it is first asked for; "dtype" is that of a case's tensors."""

    def __init__(self, draw: random.Random, folder: Path) -> None:
        super().__init__()
        self.draw, self.folder = draw, folder

    def __missing__(self, letter: str) -> Any:
        if letter == "dtype":
            dtypes = [torch.float32] * 8 + [torch.float64, torch.float64, torch.float16, torch.bfloat16]
            return self.setdefault(letter, self.draw.choice(dtypes))
        if letter.isdigit():
            return int(letter)
        return self.setdefault(letter, self.draw.randint(1, 4))


#: Makes one argument that fits the sizes of a case.
Maker = Callable[[Sizes], Any]


class Shaped:
    """Draw a floating tensor of one of these forms, such as "B I d_in"."""

    def __init__(self, *forms: str, low: float = -1.0, high: float = 1.0) -> None:
        self.forms, self.low, self.high = forms, low, high

    def __call__(self, sizes: Sizes) -> Tensor:
        """Make it."""
        shape = [sizes[letter] for letter in sizes.draw.choice(self.forms).split()]
        made = torch.rand(shape) * (self.high - self.low) + self.low
        return made.to(sizes["dtype"])


def float32(*forms: str, low: float = 0.0) -> Maker:
    """Draw a tensor of the dtype that layers are made in."""

    def make(sizes: Sizes) -> Tensor:
        sizes["dtype"] = torch.float32
        return Shaped(*forms, low=low)(sizes)

    return make


class Size:
    """Take the size of a letter."""

    def __init__(self, letter: str) -> None:
        self.letter = letter

    def __call__(self, sizes: Sizes) -> int:
        """Take it."""
        return sizes[self.letter]


class Both:
    """Draw capsules of this pose, whose activations are 0 … 1."""

    def __init__(self, pose: str, activation: str) -> None:
        self.pose, self.activation = Shaped(pose), Shaped(activation, low=0)

    def __call__(self, sizes: Sizes) -> Capsules:
        """Make them."""
        return Capsules(self.pose(sizes), self.activation(sizes))


def classes(form: str, n: str | int) -> Maker:
    """Draw class indices below the size of a letter, or below a number."""
    return lambda sizes: torch.randint(
        n if isinstance(n, int) else sizes[n], [sizes[letter] for letter in form.split()]
    )


def choice(*values: Any) -> Maker:
    """Draw one of these values."""
    return lambda sizes: sizes.draw.choice(values)


def whole(low: int, high: int) -> Maker:
    """Draw an integer, both ends included."""
    return lambda sizes: sizes.draw.randint(low, high)


def real(low: float, high: float) -> Maker:
    """Draw a number."""
    return lambda sizes: sizes.draw.uniform(low, high)


FLAG = choice(True, False)


def drawn(sizes: Sizes, needed: Mapping[str, Maker], optional: Mapping[str, Maker]) -> dict[str, Any]:
    """Draw all that is needed, and each optional argument half of the time."""
    made = {name: make(sizes) for name, make in needed.items()}
    return made | {name: make(sizes) for name, make in optional.items() if sizes.draw.random() < 0.5}


def spoiled(arguments: dict[str, Any], optional: Mapping[str, Maker], sizes: Sizes) -> dict[str, Any]:
    """Spoil one to three arguments; one is left out, or is one too many, now and then."""
    draw, made = sizes.draw, dict(arguments)
    for _ in range(draw.randint(1, 3)):
        names = sorted({*made, *optional})
        if not names:
            break
        name = draw.choice(names)
        if draw.random() < 0.02:
            made.pop(name, None)
        elif draw.random() < 0.01:
            made["unknown"] = 1
        else:
            value = made[name] if name in made else optional[name](sizes)
            made[name] = spoil(value, draw)
    for name in ENDLESS & set(made):
        if isinstance(made[name], int) and made[name] > MOST_PASSES:
            made[name] = MOST_PASSES
    return made


#: Of these as many are made as are asked for, however long that takes.
ENDLESS = {"n_iters", "n_passes"}
MOST_PASSES = 50


#: What is no value of most arguments.
WRONG = (
    None,
    "text",
    "",
    b"bytes",
    1.5,
    3,
    -1,
    True,
    [],
    [1.0, 2.0],
    {},
    {"a": 1},
    (),
    (1, 2),
    1j,
    object(),
    Fraction(1, 3),
    np.ones(3),
    np.float32(0.5),
    np.int64(2),
    np.bool_(True),
    torch.ones(2, 2),
    torch.tensor(2),
    torch.tensor(0.5),
    nn.Identity(),
    nn.Linear,
    Capsules(torch.ones(1, 2, 3), torch.ones(1, 2)),
    math.nan,
    lambda x: x,
    range(3),
    {1, 2},
    Path("absent"),
)


def spoil(value: Any, draw: random.Random) -> Any:
    """Return something near a value that it may be mistaken for, or something else altogether."""
    if draw.random() < 0.2:
        return draw.choice(WRONG)
    if isinstance(value, Tensor):
        return spoil_tensor(value, draw)
    if isinstance(value, bool):
        return draw.choice([not value, int(value), str(value), np.bool_(value), torch.tensor(value), None, 2, 0.0])
    if isinstance(value, int | float):
        return spoil_number(value, draw)
    if isinstance(value, str):
        others = [value.upper(), value + " ", value[:-1], "", "nonsense", value.encode(), [value], "a\0b", "é" * 300]
        return draw.choice(others)
    if isinstance(value, tuple) and hasattr(value, "_replace"):  # a named tuple
        named: Any = value
        name = draw.choice(named._fields)
        return named._replace(**{name: spoil(getattr(named, name), draw)})
    if isinstance(value, list | tuple):
        return spoil_sequence(value, draw)
    if isinstance(value, dict) and value:
        name = draw.choice(sorted(value, key=str))
        return {**value, name: spoil(value[name], draw)}
    if isinstance(value, nn.Module):
        return spoil_module(value, draw)
    if isinstance(value, Path):
        others = [value / "absent", value.parent, str(value), "", "a\0b", str(value).encode(), 7, Path()]
        return draw.choice(others)
    return draw.choice(WRONG)


def spoil_number(value: float, draw: random.Random) -> Any:
    """Return another number, or a number of another type."""
    if not abs(value) < 2**62:
        return draw.choice((None, str(value), -value, 0))
    others = (
        *(-1, 0, 1, 2, 7, 10**3, -(10**9), 2**31, 2**63, 10**30),
        *(0.0, 0.5, -0.5, 1e-30, 1e30, -math.inf, math.inf, math.nan, 1.0000001),
        *(True, False, None, str(value), (value,), [value], complex(value)),
        *(Fraction(value).limit_denominator(100), np.float32(value), np.float64(value), np.array(value)),
        *(torch.tensor(value), np.array([value]), torch.tensor([value])),
        *([np.int64(value), np.uint8(abs(value) % 256)] if isinstance(value, int) else []),
    )
    return draw.choice(others)


def spoil_sequence(value: list[Any] | tuple[Any, ...], draw: random.Random) -> Any:
    """Return another length, another type, or another element."""
    items, kind = list(value), type(value)
    way = draw.randrange(7)
    if way == 0:
        return kind(items[:-1])
    if way == 1:
        return kind([*items, *items[-1:]])
    if way == 2:
        return kind(())
    if way == 3:
        return tuple(items) if kind is list else items
    if way == 4:
        return items[0] if items else None
    if items:
        at = draw.randrange(len(items))
        items[at] = spoil(items[at], draw)
    return kind(items)


def spoil_tensor(value: Tensor, draw: random.Random) -> Any:
    """Return a tensor of other numbers, another shape, dtype or layout, or no tensor."""
    return draw.choice((_other_numbers, _other_shape, _other_dtype, _other_layout))(value, draw)


def _other_numbers(value: Tensor, draw: random.Random) -> Any:
    way = draw.randrange(9)
    if way == 0:
        return torch.zeros_like(value)
    if way == 1:
        return -value.abs() - 1 if value.dtype != torch.bool else ~value
    if way == 2:
        return value * 10**4 if value.dtype != torch.bool else value.int() * 2
    if way == 3:
        return value.tolist() if value.device.type == "cpu" else value
    if way == 4:
        real = value.real if value.is_complex() else value
        return real.detach().float().numpy() if value.device.type == "cpu" else value
    if not value.is_floating_point():
        return value + 10**6
    number = (math.nan, math.inf, -math.inf, torch.finfo(value.dtype).max, torch.finfo(value.dtype).tiny)[
        way - 5 + (way == 8)
    ]
    changed = value.detach().flatten().clone()
    if changed.numel():
        changed[draw.randrange(changed.numel())] = number
    return changed.view(value.shape)


def _other_shape(value: Tensor, draw: random.Random) -> Tensor:
    way = draw.randrange(8)
    axis = draw.randrange(value.dim()) if value.dim() else None
    if axis is None or way == 0:
        return value.unsqueeze(draw.randrange(value.dim() + 1))
    if way == 1:
        return value.narrow(axis, 0, 0)
    if way == 2:
        return value.select(axis, 0) if value.shape[axis] else value
    if way == 3:
        return value.flatten()
    if way == 4:
        return value.transpose(axis, draw.randrange(value.dim()))
    if way == 5:
        return torch.cat((value, value), axis)
    if way == 6:
        return torch.cat((value, value.narrow(axis, 0, min(1, value.shape[axis]))), axis)
    return value.flatten()[0] if value.numel() else value


def _other_dtype(value: Tensor, draw: random.Random) -> Tensor:
    kinds = (torch.int64, torch.int32, torch.uint8, torch.bool, torch.float16, torch.bfloat16, torch.float64)
    dtype = draw.choice((*kinds, torch.complex64, torch.float32))
    return value.real.to(dtype) if value.is_complex() else value.to(dtype)


def _other_layout(value: Tensor, draw: random.Random) -> Tensor:
    way = draw.randrange(6)
    if way == 0:
        return value.to("meta")
    if way == 1 and value.dim():
        return value[:1].expand(value.shape) if len(value) else value
    if way == 2 and value.is_floating_point():
        return value.clone().requires_grad_()
    if way == 3 and value.is_floating_point():
        return nn.Parameter(value.clone())
    if way == 4 and value.dim():
        return torch.stack((value, value), -1)[..., 0]  # every second number
    return value.transpose(0, -1).contiguous().transpose(0, -1) if value.dim() else value


def spoil_module(value: nn.Module, draw: random.Random) -> Any:
    """Return another module, one of another dtype or mode, or no module."""
    import copy

    others: list[Callable[[], Any]] = [
        nn.Identity,
        nn.Sequential,
        lambda: type(value),
        lambda: copy.deepcopy(value).train(),
        lambda: nn.Sequential(value),
        lambda: value.forward,
    ]
    return draw.choice(others)()


def is_tame(value: Any) -> bool:
    """Tell whether all numbers are finite and small enough that no product of a few overflows."""
    if isinstance(value, Tensor):
        if value.device.type == "meta" or not value.numel():
            return value.device.type != "meta"
        most = 10.0 if value.dtype in (torch.float16, torch.bfloat16) else 1e4
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return bool((value.detach().to(torch.complex64).abs() <= most).all())
    if isinstance(value, np.ndarray):
        return bool(np.isfinite(value).all() and (np.abs(value) <= 1e4).all())
    if isinstance(value, bool | int | float | Fraction | np.number):
        return math.isfinite(value) and bool(abs(value) <= 1e4)
    if isinstance(value, Mapping):
        return all(is_tame(each) for each in value.values())
    if isinstance(value, list | tuple):
        return all(is_tame(each) for each in value)
    return True


def bound(makers: Mapping[str, Maker], arguments: Mapping[str, Any]) -> dict[str, int]:
    """Read the size of each letter off arguments that were taken.

    Raises:
        ValueError: two arguments do not fit each other: they should not have been taken.
    """
    sizes: dict[str, int] = {}
    for name, maker in makers.items():
        value = arguments.get(name)
        if isinstance(maker, Size) and isinstance(value, int | np.integer):
            _bind(sizes, name, (maker.letter,), (int(value),))
        elif isinstance(maker, Shaped) and isinstance(value, Tensor):
            _bind(sizes, name, maker.forms, value.shape)
        elif isinstance(maker, Both) and isinstance(value, Capsules):
            _bind(sizes, name, maker.pose.forms, value.pose.shape)
            _bind(sizes, name, maker.activation.forms, value.activation.shape)
    return sizes


def _bind(sizes: dict[str, int], name: str, forms: tuple[str, ...], shape: tuple[int, ...]) -> None:
    for form in forms:
        letters = form.split()
        if len(letters) == len(shape) and all(
            (int(letter) if letter.isdigit() else sizes.get(letter, n)) == n
            for letter, n in zip(letters, shape, strict=True)
        ):
            sizes.update((letter, n) for letter, n in zip(letters, shape, strict=True) if not letter.isdigit())
            return
    raise ValueError(f"{name} was taken, though it does not fit")
