"""Hold a function to its annotations when it is called, for functions that no training step calls."""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeVar, cast

from torchcaps.checks import check_path, check_several, single

_Function = TypeVar("_Function", bound=Callable[..., Any])
#: Each is taken for the one that its annotation names, if it is a number of numpy's or torch's too.
_NUMBERS = {bool: (bool,), int: (Integral,), float: (Real,)}


def typed(function: _Function) -> _Function:
    """Refuse arguments of another type than the annotations say, and turn single numbers into Python's.

    Raises:
        ValueError: naming the argument, what it wants and what it got.

    Example:
        >>> @typed
        ... def twice(number: int) -> int:
        ...     return 2 * number
        >>> twice("one")
        Traceback (most recent call last):
        ...
        ValueError: number must be int, got 'one'
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        try:
            given = signature.bind(*args, **kwargs)
        except TypeError:
            return function(*args, **kwargs)  # Python says by itself what is missing
        for name, value in list(given.arguments.items()):
            parameter = signature.parameters[name]
            if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
                continue
            hint = _evaluated(parameter.annotation, function)
            plain: Any = value
            if Path in (hint, *typing.get_args(hint)) and isinstance(value, str | Path):
                check_path(name, value)
                plain = value if str in typing.get_args(hint) else Path(value)
            elif _NUMBERS.keys() & {hint, *typing.get_args(hint)}:
                plain = single(value)
            if typing.get_origin(hint) is Sequence:
                check_several(name, plain)
            if not _is_of(plain, hint):
                raise ValueError(f"{name} must be {parameter.annotation}, got {value!r:.80}")
            given.arguments[name] = float(plain) if hint is float else plain
        return function(*given.args, **given.kwargs)

    return cast(_Function, checked)


def _evaluated(annotation: Any, function: Callable[..., Any]) -> Any:
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, inspect.unwrap(function).__globals__)
    except NameError:  # of a module that is imported for the type checker alone
        return Any


def _is_of(value: Any, hint: Any) -> bool:
    """Tell whether a value is of an annotation; what is in a list, a tuple or a mapping, too."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint in (Any, inspect.Parameter.empty) or isinstance(hint, TypeVar):
        return True
    if hint is None or hint is types.NoneType:
        return value is None
    if origin in (types.UnionType, typing.Union):
        return any(_is_of(value, each) for each in inner)
    if origin is typing.Literal:  # which a function lists in its own error
        return True
    if hint in _NUMBERS:
        return isinstance(value, _NUMBERS[hint]) and (hint is bool or not isinstance(value, bool))
    if origin is tuple and inner and Ellipsis not in inner:
        return _is_list(value) and len(value) == len(inner) and all(map(_is_of, value, inner))
    if origin in (tuple, list, Sequence):
        return _is_list(value) and all(_is_of(each, inner[0]) for each in value)
    if origin in (dict, Mapping):
        pairs = value.items() if isinstance(value, Mapping) else ()
        return isinstance(value, Mapping) and all(_is_of(key, inner[0]) and _is_of(of, inner[1]) for key, of in pairs)
    if origin is Callable or hint is Callable:
        return callable(value)
    return not isinstance(origin or hint, type) or _is_one(value, origin or hint)


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _is_one(value: Any, kind: type) -> bool:
    """Tell whether a value is of a class; of a named tuple, what it holds too."""
    if not isinstance(value, kind):
        return False
    if not (issubclass(kind, tuple) and hasattr(kind, "_fields")):
        return True
    try:
        hints = typing.get_type_hints(kind)
    except NameError:
        return True
    return all(_is_of(getattr(value, name), hint) for name, hint in hints.items())
