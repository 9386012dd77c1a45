"""The pages of Understand: their code prints what they say, and their numbers are those of the records."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest

from study.records import read

ROOT = Path(__file__).resolve().parents[2]
PAGES = {page.stem: page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs" / "understand").glob("*.md"))}
RESULTS = ROOT / "study" / "results"
EXPERIMENTS = PAGES["what-experiments-showed"]


@pytest.mark.parametrize("name", [name for name, page in PAGES.items() if "```python" in page])
def test_code_prints_what_the_page_says(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each block of Python runs after those before it, and the block behind it is its output."""
    names: dict[str, Any] = {}
    pairs = re.findall(r"^```python\n(.*?)^```\n+(?:```text\n(.*?)^```)?", PAGES[name], re.M | re.S)
    assert len(pairs) == PAGES[name].count("```python")
    for code, output in pairs:
        exec(compile(code, name, "exec"), names)
        assert capsys.readouterr().out == output


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name: str) -> None:
    text = PAGES[name]
    targets = re.findall(r"""\]\((?!https?:)([^)# ]+)(?:#[^) ]*)?(?: "[^"]*")?\)""", text)
    targets += re.findall(r"^```\{figure\} (\S+)$", text, re.M)
    assert targets
    for target in targets:
        assert (ROOT / "docs" / "understand" / target).is_file(), target


def test_every_picture_is_shown() -> None:
    drawn = {path.name for path in (ROOT / "docs" / "figures").glob("*.svg")}
    results = [path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "results").glob("*.md")]
    shown = {
        Path(found).name for page in (*PAGES.values(), *results) for found in re.findall(r"figures/(\S+\.svg)", page)
    }
    assert drawn == shown


def _row(start: str) -> str:
    return next(line for line in EXPERIMENTS.splitlines() if line.startswith(f"| {start}"))


def test_faces_and_digits_are_those_of_the_records() -> None:
    shares = {"run": [], "beside": []}
    for seed in range(3):
        values = read("measures", f"faces-{seed}/picasso-beside-faces-cnn-{seed}")["values"]
        for who, each in shares.items():
            each.append(100 * values[who]["exchanged"]["still"])
    for each in shares.values():
        assert f"{mean(each):.1f} ± {stdev(each):.1f} %" in _row("notice parts out of place (drawn faces")


def test_errors_are_those_of_the_records() -> None:
    def percent(name: str, key: str = "test_error") -> float:
        return 100 * read("runs", name)[key]

    affine = _row("carry over to affine changes")
    assert f"| {percent('expanded-mnist-0', 'affine_mnist_error'):.1f} % error" in affine
    assert f"| {percent('expanded-mnist-cnn-0', 'affine_mnist_error'):.1f} % error" in affine
    labels = _row("need fewer labels")
    assert f"| {percent('mnist-100-labels-0'):.2f} % error from 100" in labels
    assert f"| {percent('mnist-matched-cnn-100-labels-0'):.2f} % error" in labels
    thousand = percent("mnist-1000-labels-0"), percent("mnist-matched-cnn-1000-labels-0")
    assert f"{thousand[0]:.2f} against {thousand[1]:.2f} %" in EXPERIMENTS
    assert percent("mnist-10000-labels-0") > percent("mnist-matched-cnn-10000-labels-0")
    mnist = [percent(f"mnist-{seed}") for seed in range(3)]
    assert f'[{mean(mnist):.2f}](../../study/results/runs.jsonl "mnist-0") ± {stdev(mnist):.2f} %' in EXPERIMENTS
    for name in ("multimnist-0", "multimnist-cnn-0", "smallnorb-em-small-0"):
        assert f'[{percent(name):.2f} %](../../study/results/runs.jsonl "{name}")' in EXPERIMENTS


def test_routing_is_that_of_the_record() -> None:
    values = read("measures", "mnist-adam-0/routing")["values"]
    at = values["n_iters"].index
    run = values["run"]
    assert f"{100 * run['active_entropy'][at(3)]:.1f} % of the\nlargest entropy" in EXPERIMENTS
    wrong = [round(values["n"] * run["error"][at(n)]) for n in (1, 3, 10)]
    assert "errs on {}, {} and {} of 1,000".format(*wrong) in EXPERIMENTS


@pytest.mark.parametrize(
    ("said", "recorded"),
    [
        ("poses of templates", "poses of mnist-templates | spread over neighbours"),
        ("pixels, brought into", "pixels in the frame of mnist-templates | spread over neighbours"),
        ("principal components", "principal components of pixels | spread over neighbours"),
        ("none: a CNN", "none: labelled images alone | CNN"),
    ],
)
def test_few_labels_are_those_of_the_record(said: str, recorded: str) -> None:
    lines = (RESULTS / "few-labels" / "mnist-templates.md").read_text(encoding="utf-8").splitlines()
    line = next(line for line in lines if line.startswith(f"| {recorded}"))
    of_10, of_25, _, of_100, of_1000 = re.findall(r"[\d.]+ ± [\d.]+", line)
    assert re.findall(r"[\d.]+ ± [\d.]+", _row(said)) == [of_10, of_25, of_100, of_1000]


def test_viewpoints_are_those_of_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "figures"))
    from records import novel_errors

    ahead, behind = 0, 0
    for split in ("azimuth", "elevation"):
        for cnn in ("cnn-small", "cnn"):
            for which in ("matched", "whole"):
                both = novel_errors(split, cnn, which)
                counts = sum(map(stdev, both))
                ahead += mean(both[1]) - mean(both[0]) > counts
                behind += mean(both[0]) - mean(both[1]) > counts
                if (cnn, which) == ("cnn-small", "matched"):
                    row = _row(f"generalise to new {split}s")
                    for errors in both:
                        assert f"| {mean(errors):.1f} ± {stdev(errors):.1f} % error" in row
    assert (ahead, behind) == (0, 5)
    assert "In five they are behind by more." in EXPERIMENTS
