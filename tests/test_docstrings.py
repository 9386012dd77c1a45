"""The examples in docstrings, run as they stand."""

from __future__ import annotations

import doctest
from importlib import import_module
from pathlib import Path

import pytest

import torchcaps

_SOURCE = Path(torchcaps.__file__).parent
_MODULES = sorted(
    ".".join(path.relative_to(_SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")
    for path in _SOURCE.rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8")
)
#: Fewer than there are, so that nobody drops them unseen.
_LEAST = 50


def examples(name: str) -> list[doctest.DocTest]:
    return [test for test in doctest.DocTestFinder().find(import_module(name), name) if test.examples]


@pytest.mark.parametrize("name", _MODULES)
def test_they_give_what_they_say(name: str) -> None:
    for test in examples(name):
        said = list[str]()
        runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
        assert runner.run(test, out=said.append).failed == 0, "".join(said)


def test_there_are_many() -> None:
    assert sum(len(examples(name)) for name in _MODULES) >= _LEAST
