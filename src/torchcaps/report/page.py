"""Build the page of a report: one HTML file that needs nothing else, on a phone, on paper, by day and by night."""

from __future__ import annotations

import base64
import struct
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from torchcaps.training import files
from torchcaps.training.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2433; --soft: #5b6575; --line: #dfe3ea; --ground: #f6f7f9;
  --card: #ffffff; --accent: #2458b8; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8ebf1; --soft: #a3adbd; --line: #323a48;
  --ground: #12161d; --card: #1b212b; --accent: #8db4ff; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 2rem 1.1rem 4rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .2rem; overflow-wrap: anywhere; }
h2 { font-size: 1.25rem; margin: 0 0 .4rem; }
p { margin: .3rem 0 .8rem; max-width: 46rem; }
.soft { color: var(--soft); }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(8.5rem, 1fr)); gap: .7rem; margin: 1.3rem 0 0; }
.facts div, section { background: var(--card); border: 1px solid var(--line); border-radius: .7rem; }
.facts div { padding: .7rem .9rem; }
.facts dt { color: var(--soft); font-size: .82rem; }
.facts dd { margin: 0; font-weight: 600; overflow-wrap: anywhere; }
.facts .main dd { font-size: 1.9rem; line-height: 1.2; color: var(--accent); white-space: nowrap; }
section { padding: 1.2rem 1.3rem; margin-top: 1.2rem; }
.wide { overflow-x: auto; }
figure { margin: .9rem 0 0; }
figure .wide { background: #fff; border-radius: .4rem; padding: .6rem; border: 1px solid var(--line); }
figure img { display: block; margin: 0 auto; max-width: 100%; height: auto; }
@media (max-width: 40rem) { figure img.broad { max-width: none; width: 40rem; } }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .45rem .7rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { color: var(--soft); font-weight: 500; font-size: .85rem; }
th:first-child, td:first-child, th:last-child, td:last-child { text-align: left; }
td:last-child { white-space: normal; min-width: 11rem; font-size: .85rem; }
.numbers th:last-child, .numbers td:last-child { text-align: right; min-width: 0; }
.numbers td:last-child { font-size: inherit; }
tr.this td { font-weight: 650; }
pre { overflow-x: auto; font-size: .8rem; }
summary { cursor: pointer; }
@media print { :root { --ground: #fff; --card: #fff; --ink: #000; --soft: #444; --line: #ccc; --accent: #2458b8; }
  main { padding: 0; max-width: none; } section { break-inside: avoid; border: 0; padding: .6rem 0; }
  details { display: none; } }
"""


def page(title: str, body: Sequence[str]) -> str:
    """Build the whole file."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(body)
        + "\n</main>\n</body>\n</html>\n"
    )


def headline(title: str, text: str, facts: Sequence[tuple[str, str]]) -> str:
    """Build the title, one sentence, and the facts in boxes, the first one large."""
    boxes = "".join(
        f"<div{' class=main' if k == 0 else ''}><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
        for k, (name, value) in enumerate(facts)
    )
    return f'<header><h1>{escape(title)}</h1><p class="soft">{escape(text)}</p><dl class="facts">{boxes}</dl></header>'


def section(title: str, *parts: str) -> str:
    """Put parts that are HTML already into a titled box."""
    return f"<section><h2>{escape(title)}</h2>{''.join(parts)}</section>"


def paragraph(text: str) -> str:
    """Build one paragraph of plain text."""
    return f"<p>{escape(text)}</p>"


def picture(png: bytes, description: str, width: float, height: float) -> str:
    """Embed a picture; ``width`` and ``height`` in inches are its size on a wide screen."""
    data = base64.b64encode(png).decode("ascii")
    broad = ' class="broad"' if width > 7 else ""
    size = f'width="{round(96 * width)}" height="{round(96 * height)}"'
    image = f'<img{broad} {size} alt="{escape(description)}" src="data:image/png;base64,{data}">'
    return f'<figure><div class="wide">{image}</div></figure>'


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: bool = False) -> str:
    """Build a table whose first row is the run at hand, or one of ``numbers`` of equal rows behind their names."""
    marked = () if numbers else (0,)
    cells = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join(
        f"<tr{' class=this' if k in marked else ''}>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>"
        for k, row in enumerate(rows)
    )
    kind = " class=numbers" if numbers else ""
    return f'<div class="wide"><table{kind}><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table></div>'


def preformatted(text: str) -> str:
    """Keep the line breaks of a text."""
    return f"<pre>{escape(text)}</pre>"


def fold(summary: str, *parts: str) -> str:
    """Fold parts that are HTML already behind a click."""
    return f"<details><summary>{escape(summary)}</summary>{''.join(parts)}</details>"


class Album:
    """Pictures of a page, which are kept as ``pictures/<name>.png`` too."""

    def __init__(self, run: Run) -> None:
        self.folder = run.path / "pictures"

    def add(self, name: str, figure: Figure, text: str) -> str:
        """Draw a figure and embed it below its text, as HTML."""
        png = files.as_png(figure)
        files.write_atomically(self.folder / f"{name}.png", lambda path: path.write_bytes(png))
        width, height = figure.get_size_inches()
        return paragraph(text) + picture(png, text, width, height)

    def embed(self, name: str, text: str) -> str:
        """Embed a picture that the folder holds already below its text; the text alone if there is none."""
        path = self.folder / f"{name}.png"
        if not path.is_file():
            return paragraph(text)
        png = path.read_bytes()
        width, height = (pixels / files.DPI for pixels in struct.unpack(">II", png[16:24]))  # of the header IHDR
        return paragraph(text) + picture(png, text, width, height)
