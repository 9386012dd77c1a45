"""One call of a public function or class: its arguments, what it returns, and what it may raise."""

from __future__ import annotations

import inspect
import random
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tools.arguments import Both, Maker, Shaped, Sizes, bound, drawn, is_tame, spoiled
from tools.cases import fault_of

#: Says what is wrong with a result, given the sizes of letters and the arguments; None where nothing is.
Right = Callable[[Mapping[str, int], Mapping[str, Any], Any], str | None]
#: How Python itself says that arguments are missing or too many.
PYTHONS = re.compile(r"missing \d+ required|unexpected keyword|multiple values|required keyword-only")


def anything(sizes: Mapping[str, int], arguments: Mapping[str, Any], result: Any) -> str | None:
    """Take any result."""
    del sizes, arguments, result
    return None


class Call(NamedTuple):
    """Hold how a public name is called.

    Attributes:
        function: takes all arguments by name.
        needed: makers of arguments that every case has.
        optional: makers of arguments that half of the cases have.
        right: checks a result.
        raises: errors other than a ValueError that the docstring names.
        names: further names by which an error may name an argument.
        can_be_endless: finite arguments may give infinite results, or NaN, as documented.
    """

    function: Callable[..., Any]
    needed: Mapping[str, Maker] = {}
    optional: Mapping[str, Maker] = {}
    right: Right = anything
    raises: tuple[type[BaseException], ...] = ()
    names: tuple[str, ...] = ()
    can_be_endless: bool = False


def run_call(call: Call, draw: random.Random, folder: Path) -> str:
    """Make one call and say how it ended: "result", the name of an error as documented, or a fault."""
    torch.manual_seed(draw.randrange(2**32))
    sizes = Sizes(draw, folder)
    arguments = drawn(sizes, call.needed, call.optional)
    whole = draw.random() < 0.1
    if not whole:
        arguments = spoiled(arguments, call.optional, sizes)
    before = [(each, each._version) for each in _tensors(arguments)]
    try:
        result = call.function(**arguments)
    except call.raises as error:
        return type(error).__name__
    except ValueError as error:
        if whole:
            return f"fault: refuses what is right: {str(error)[:100]}"
        names = _names(call, arguments)
        given = [value if isinstance(value, list | tuple) else [value] for value in arguments.values()]
        files = [str(each) for some in given for each in some if isinstance(each, str | Path) and str(each)]
        named = any(re.search(rf"\b{re.escape(name)}\b", str(error)) for name in names)
        if named or any(file in str(error) for file in files):
            return "ValueError"
        return f"fault: names no argument, {fault_of(error).removeprefix('fault: ')}"
    except TypeError as error:
        if PYTHONS.search(str(error)) and not whole:
            return "TypeError"
        raise
    except RuntimeError as error:
        if "allocate" in str(error) or "Storage size" in str(error):  # PyTorch has no type for it
            return "MemoryError"
        raise
    if any(each._version != version for each, version in before):
        return "fault: changes an argument in place"
    try:
        wrong = call.right(bound({**call.needed, **call.optional}, arguments), arguments, result)
    except ValueError as error:
        return f"fault: {error}"
    if wrong:
        return f"fault: a result {wrong}"
    if not call.can_be_endless and is_tame(arguments) and not all(_finite(each) for each in _tensors(result)):
        return "fault: a result that is not finite"
    return "result"


def _names(call: Call, arguments: Mapping[str, Any]) -> set[str]:
    own = inspect.signature(call.function).parameters.values()
    named = {each.name for each in own if each.kind != each.VAR_KEYWORD}
    keys = {str(key) for value in arguments.values() if isinstance(value, dict) for key in value}
    return {*named, *arguments, *keys, *call.needed, *call.optional, *call.names}


def _finite(value: Tensor) -> bool:
    return value.device.type == "meta" or not value.is_floating_point() or bool(torch.isfinite(value).all())


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [] if value.is_inference() else [value]
    if isinstance(value, Mapping):
        return [each for inner in value.values() for each in _tensors(inner)]
    if isinstance(value, list | tuple):
        return [each for inner in value for each in _tensors(inner)]
    return []


def returns(*forms: str | None, dtype: tuple[str, ...] = ()) -> Right:
    """Check a tensor, or a tuple of such, against forms; its dtype is the common one of these arguments.

    A third form, of a coupling, holds where ``return_coupling`` is asked for.
    """

    def right(sizes: Mapping[str, int], arguments: Mapping[str, Any], result: Any) -> str | None:
        parts = result if isinstance(result, tuple) else (result,)
        wanted = list(forms) if len(forms) < 3 or arguments.get("return_coupling") else [*forms[:2], None]
        if len(parts) != len(wanted):
            return f"of {len(parts)} parts"
        given = [arguments[name] for name in dtype if isinstance(arguments.get(name), Tensor)]
        for part, form in zip(parts, wanted, strict=True):
            if form is None:
                if part is not None:
                    return "that was not asked for"
                continue
            if not isinstance(part, Tensor):
                return f"of type {type(part).__name__}"
            shape = [int(letter) if letter.isdigit() else sizes.get(letter, -1) for letter in form.split()]
            if list(part.shape) != shape:
                return f"of shape {list(part.shape)}, not {form}"
            if given and part.dtype != _common(given):
                return f"of dtype {part.dtype}, not {_common(given)}"
        return None

    return right


def _common(tensors: list[Tensor]) -> torch.dtype:
    dtype = tensors[0].dtype
    for each in tensors[1:]:
        dtype = torch.promote_types(dtype, each.dtype)
    return dtype


def layer(
    kind: Callable[..., nn.Module],
    needed: Mapping[str, Maker],
    optional: Mapping[str, Maker] = {},
    *,
    forward: Mapping[str, Maker],
    forward_optional: Mapping[str, Maker] = {},
    right: Right = anything,
    raises: tuple[type[BaseException], ...] = (),
    names: tuple[str, ...] = (),
    can_be_endless: bool = False,
) -> Call:
    """Make a module and call it: arguments of both, in one."""
    of_call = {*forward, *forward_optional}

    def function(**arguments: Any) -> Any:
        made = kind(**{name: value for name, value in arguments.items() if name not in of_call})
        return made(**{name: value for name, value in arguments.items() if name in of_call})

    return Call(
        function,
        {**needed, **forward},
        {**optional, **forward_optional},
        right,
        raises,
        (*inspect.signature(kind).parameters, *names),
        can_be_endless,
    )


__all__ = ["Both", "Call", "Shaped", "anything", "layer", "returns", "run_call"]
