"""Pages that stand elsewhere in the repository, shown on the site: `<!-- include: study/README.md -->`.

And `{pages}`: a table of contents of pages that may be yet to come.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.util import logging

logger = logging.getLogger(__name__)

ROOT = Path(__file__).resolve().parents[2]
_INCLUDE = re.compile(r"^<!-- include: (\S+) -->$", re.M)
_PAGES = re.compile(r"^```\{pages\}\n(.*?)^```$", re.M | re.S)
_LINK = re.compile(r"\[([^][]*)\]\(([^)#\s]*)(#[^)\s]*)?(\s+\"[^\"]*\")?\)")


def _shown() -> dict[Path, Path]:
    """Return which page of the site shows which file of the repository."""
    pages = (ROOT / "docs").rglob("*.md")
    found = {page: _INCLUDE.search(page.read_text(encoding="utf-8")) for page in pages}
    return {ROOT / match[1]: page for page, match in found.items() if match}


def _read(app: Sphinx, page: str, source: list[str]) -> None:
    """Put the file in place of the line that asks for it, and lead links to where they led in the repository."""
    here = Path(app.env.doc2path(page))
    if here.suffix != ".md":
        return
    text, file = source[0], here
    if match := _INCLUDE.search(text):
        file = ROOT / match[1]
        app.env.note_dependency(str(file))
        text = text.replace(match[0], file.read_text(encoding="utf-8"))
    text = _PAGES.sub(lambda match: _toctree(match[1].split(), here.parent), text)
    source[0] = _relinked(text, file, here)


def _toctree(names: list[str], folder: Path) -> str:
    """Return a table of contents of those pages and notebooks that are there."""
    there = [name for name in names if list(folder.glob(f"{name}.*"))]
    return "\n".join(["```{toctree}", ":maxdepth: 1", *there, "```"])


def _relinked(text: str, file: Path, here: Path) -> str:
    """Return a text with its relative links, which count from `file`, made those of the page `here`.

    A file that no page shows becomes a download.
    """
    shown = _shown()

    def relink(link: re.Match[str]) -> str:
        label, path, heading, title = link[1], link[2], link[3] or "", link[4] or ""
        target = (file.parent / path).resolve()
        if not path or ":" in path or (here == file and target.is_relative_to(ROOT / "docs")):
            return link[0]
        if not target.exists():
            logger.warning("%s links to %s, which does not exist", file, path)
        to = os.path.relpath(shown.get(target, target), here.parent)
        if to.endswith(".md") and target not in shown and not target.is_relative_to(ROOT / "docs"):
            return f"{{download}}`{label.strip('`')} <{to}>`"
        return f"[{label}]({to}{heading}{title})"

    return _LINK.sub(relink, text)


def setup(app: Sphinx) -> dict[str, Any]:
    """Listen to pages being read."""
    app.connect("source-read", _read)
    return {"version": "1", "parallel_read_safe": True}
