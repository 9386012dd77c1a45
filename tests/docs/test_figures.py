"""The pictures of Understand are made anew by their scripts, the same each time, of what the pages say."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

pytest.importorskip("matplotlib", reason="matplotlib is not installed; it is of the extra train")

ROOT = Path(__file__).resolve().parents[2]
FIGURES = ROOT / "docs" / "figures"


@pytest.fixture(autouse=True)
def _scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FIGURES))


@pytest.mark.parametrize("name", ["constellations", "curves", "poses", "records", "twelve_votes"])
def test_pictures_are_made_again(name: str, tmp_path: Path) -> None:
    """All scripts but the one that trains: `transforming` takes a minute, and docs/tutorials trains the same."""
    for path in import_module(name).make(tmp_path):
        assert ElementTree.parse(path).getroot().tag.endswith("svg")
        assert (FIGURES / path.name).is_file()


def test_a_picture_has_the_same_bytes_each_time(tmp_path: Path) -> None:
    curves = import_module("curves")
    drawing = import_module("drawing")
    first, second = (drawing.save(curves.draw_squash(), "squash", tmp_path).read_bytes() for _ in range(2))
    assert first == second


@pytest.mark.parametrize("page", ["dynamic-routing", "em-routing"])
def test_the_votes_drawn_are_those_of_the_page(page: str) -> None:
    text = (ROOT / "docs" / "understand" / f"{page}.md").read_text(encoding="utf-8")
    block = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)[0]
    names: dict[str, Any] = {}
    exec(block, names)
    assert torch.equal(names["votes"], import_module("twelve_votes").VOTES)


@pytest.mark.parametrize(("n_votes", "n_components"), [(2, 1), (2, 3), (3, 1)])
def test_chances_are_those_that_are_counted(n_votes: int, n_components: int) -> None:
    curves = import_module("curves")
    chance = curves.chance(n_votes, n_components)
    deviation = (chance * (1 - chance) / curves.POINTS) ** 0.5
    assert abs(curves.simulated(n_votes, n_components) - chance) < 4 * deviation


def test_chances_that_the_page_names() -> None:
    curves = import_module("curves")
    text = (ROOT / "docs" / "understand" / "capsules.md").read_text(encoding="utf-8")
    for n_votes, n_components, said in ((2, 1, "19 %"), (2, 16, r"$3\cdot10^{-12}$"), (5, 16, r"$2\cdot10^{-46}$")):
        chance = curves.chance(n_votes, n_components)
        digits, power = f"{chance:.0e}".split("e")
        assert said in (f"{100 * chance:.0f} %", rf"${digits}\cdot10^{{{int(power)}}}$")
        assert said in text
