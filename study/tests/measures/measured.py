"""Take a measure of a run, and see that its file and picture are whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from PIL import Image

from study.measures import record
from study.measures.write import as_markdown
from torchcaps.training import Data
from torchcaps.training.run import Run

DIGITS = Data("digits", image_size=(16, 16), n_eval=20)


def measured(name: str, run: Path, **options: Any) -> dict[str, Any]:
    """What was written, once the picture was seen to be one."""
    path = record.record(name, run, **options)
    beside = "-beside-{recipe}-{seed}".format(**Run(options["beside"]).finished()) if "beside" in options else ""
    assert path == run / "measures" / f"{name}{beside}.json"
    with Image.open(path.with_suffix(".png")) as picture:
        picture.verify()
    assert sorted(p.suffix for p in path.parent.glob(f"{path.stem}.*")) == [".json", ".png"]
    content = json.loads(path.read_text(encoding="utf-8"))
    head, _, *rows = as_markdown(content)
    assert head.startswith(f"| {name} | `{run.name}` |")
    assert rows and {row.count("|") for row in rows} == {3 if content["beside"] is None else 4}
    return content
