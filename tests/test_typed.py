"""Functions that are held to their annotations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from torchcaps.typed import typed


class Pair(NamedTuple):
    first: Tensor
    second: int


@typed
def call(
    whole: int = 1,
    number: float = 1.0,
    flag: bool = True,
    names: Sequence[str] = (),
    pair: tuple[int, int] = (1, 2),
    by_name: Mapping[str, float] | None = None,
    path: Path = Path("a"),
    either: str | Path = "a",
    tensor: Tensor | None = None,
    held: Pair | None = None,
    function: Callable[[int], int] | None = None,
    one_of: Literal["a", "b"] = "a",
) -> dict[str, Any]:
    return dict(locals())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"whole": 1.5}, "whole must be int, got 1.5"),
        ({"whole": True}, "whole must be int, got True"),
        ({"whole": "1"}, "whole must be int, got '1'"),
        ({"number": "1"}, "number must be float, got '1'"),
        ({"number": 1j}, "number must be float, got 1j"),
        ({"flag": 1}, "flag must be bool, got 1"),
        ({"names": "ab"}, r"names must be several, such as \['ab'\], got one"),
        ({"names": ["a", 1]}, r"names must be Sequence\[str\], got \['a', 1\]"),
        ({"names": {"a"}}, r"names must be Sequence\[str\], got \{'a'\}"),
        ({"pair": (1, 2, 3)}, r"pair must be tuple\[int, int\], got \(1, 2, 3\)"),
        ({"pair": (1, None)}, r"pair must be tuple\[int, int\], got \(1, None\)"),
        ({"by_name": {"a": "b"}}, r"by_name must be Mapping\[str, float\] \| None, got"),
        ({"path": 3}, "path must be Path, got 3"),
        ({"path": ""}, "path must be a path, got ''"),
        ({"either": "a\0b"}, "either must be a path, got"),
        ({"tensor": [1.0]}, r"tensor must be Tensor \| None, got \[1.0\]"),
        ({"held": (torch.ones(1), 2)}, r"held must be Pair \| None, got"),
        ({"held": Pair(None, 2)}, r"held must be Pair \| None, got"),  # type: ignore[arg-type]
        ({"function": 3}, "function must be Callable"),
    ],
)
def test_other_types_are_refused_by_name(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(**arguments)


def test_single_numbers_become_pythons() -> None:
    found = call(whole=np.int64(2), number=Fraction(1, 2), flag=np.bool_(False), path="b")  # type: ignore[arg-type]
    assert (found["whole"], found["number"], found["flag"], found["path"]) == (2, 0.5, False, Path("b"))
    assert [type(found[name]) for name in ("whole", "number", "flag")] == [int, float, bool]
    assert type(call(number=torch.tensor(0.5))["number"]) is float  # type: ignore[arg-type]


def test_what_fits_is_taken() -> None:
    assert call(3, names=["a"], pair=[1, 2], by_name={"a": 1}, tensor=torch.ones(1))["whole"] == 3  # type: ignore[arg-type]
    assert call(held=Pair(torch.ones(1), 2), function=abs, either=Path("b"))["either"] == Path("b")
    assert call(one_of="c")["one_of"] == "c"  # type: ignore[arg-type]  # the function lists what there is


def test_python_says_by_itself_what_is_missing() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'unknown'"):
        call(unknown=1)  # type: ignore[call-arg]
