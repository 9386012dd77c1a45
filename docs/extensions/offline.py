"""Refuse a site whose pages load anything from another machine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.errors import SphinxError

_LOADED = re.compile(
    r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"(?:https?:)?//[^\"]*|<link\b[^>]*\bhref=\"(?:https?:)?//[^\"]*"
)
_STYLE = re.compile(r"(?:@import\s*|url\()[\"']?(?:https?:)?//[^\"')]*")


def _check(app: Sphinx, exception: Exception | None) -> None:
    """Read every page and style sheet that was written."""
    if exception is not None:
        return
    for pattern, kind in ((_LOADED, "*.html"), (_STYLE, "*.css")):
        for file in Path(app.outdir).rglob(kind):
            if found := pattern.search(file.read_text(encoding="utf-8")):
                raise SphinxError(f"{file} loads something from another machine: {found[0]}")


def setup(app: Sphinx) -> dict[str, Any]:
    """Listen to the end of the build."""
    app.connect("build-finished", _check)
    return {"version": "1", "parallel_read_safe": True}
