"""The notebooks of docs/tutorials run from the first cell to the last, and stand there with small pictures."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_small_and_shows_pictures(path: Path) -> None:
    assert path.stat().st_size < 300_000
    code = [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert all(cell["execution_count"] and cell["outputs"] for cell in code)
    outputs = [output for cell in code for output in cell["outputs"]]
    shown = [output["data"] for output in outputs if "data" in output]
    pictures = [data for data in shown if "image/png" in data]
    figures = [data for data in shown if "".join(data.get("text/plain", "")).startswith("<Figure")]
    assert len(pictures) == len(figures) >= 2
    assert not [output for output in outputs if output.get("name") == "stderr"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning")  # of Jupyter's event loop
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes less than a minute on an idle core."""
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed; it is of the extra docs")
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed; it is of the extra docs")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed; it is of the extra docs")
    pytest.importorskip("matplotlib", reason="matplotlib is not installed; it is of the extra train")
    paths = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(each for each in paths if each))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # tests run side by side
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
    errors = [output for cell in notebook.cells for output in cell.get("outputs", []) if output.output_type == "error"]
    assert not errors
