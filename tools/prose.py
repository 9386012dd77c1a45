"""Measure how long the sentences of Markdown pages are: `python tools/prose.py README.md docs/start docs/do`.

What counts is running text. Code, tables, headings, formulas, comments and directives do not; an item of a list does.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import NamedTuple

LONG = 25  # words
_BLOCKS = re.compile(r"^(`{3,}|:{3,}).*?^\1\s*$|<!--.*?-->|^\$\$.*?\$\$|\A---\n.*?\n---$", re.M | re.S)
_NOT_PROSE = re.compile(r"\s*([#|:>]|!\[|\[[^]]+\]:)")
_END = re.compile(r"(?<=[.!?…])[*_)”\"]*\s+(?=[A-Z0-9\"“*_`\[(])")


class Measure(NamedTuple):
    """Describe the sentences of a text.

    Attributes:
        sentences: how many there are.
        mean: words in each, on average.
        long: the share that has more than 25 words.
    """

    sentences: int
    mean: float
    long: float


def sentences(markdown: str) -> list[str]:
    """Return the sentences of a Markdown text."""
    found: list[str] = []
    for paragraph in _paragraphs(_BLOCKS.sub("\n\n", markdown)):
        text = re.sub(r"!\[[^]]*\]\([^)]*\)", "", paragraph)
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text)  # what a link says
        text = re.sub(r"`[^`]+`|\$[^$]+\$", "Code", text)  # one word, whatever it holds
        found += [part for part in _END.split(text) if len(part.split()) > 1]
    return found


def _paragraphs(text: str) -> list[str]:
    """Join the lines of each paragraph and of each item of a list."""
    paragraphs: list[str] = [""]
    for line in text.splitlines():
        if not line.strip() or _NOT_PROSE.match(line):
            paragraphs.append("")
        elif item := re.match(r"\s*(?:[-*+]|\d+\.)\s+(.*)", line):
            paragraphs.append(item[1])
        else:
            paragraphs[-1] += " " + line.strip()
    return [each.strip() for each in paragraphs if each.strip()]


def measure(pages: list[Path]) -> Measure:
    """Measure all pages together."""
    lengths = [len(each.split()) for page in pages for each in sentences(page.read_text(encoding="utf-8"))]
    if not lengths:
        return Measure(0, 0.0, 0.0)
    return Measure(len(lengths), sum(lengths) / len(lengths), sum(n > LONG for n in lengths) / len(lengths))


def main(arguments: list[str]) -> None:
    """Print a line for each page, then its long sentences, then one for all."""
    paths = [Path(each) for each in arguments]
    pages = [page for path in paths for page in (sorted(path.rglob("*.md")) if path.is_dir() else [path])]
    for page in pages:
        one = measure([page])
        print(f"{page}: {one.sentences} sentences, {one.mean:.1f} words each, {one.long:.0%} over {LONG}")
        for each in sentences(page.read_text(encoding="utf-8")):
            if len(each.split()) > LONG:
                print(f"    {each}")
    total = measure(pages)
    print(f"all: {total.sentences} sentences, {total.mean:.1f} words each, {total.long:.0%} over {LONG}")


if __name__ == "__main__":
    main(sys.argv[1:])
