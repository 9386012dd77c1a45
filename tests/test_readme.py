"""README and results hold to each other and to the recipes; the README's code runs."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from torchcaps.experiments.few_labels.write import as_markdown
from torchcaps.experiments.recipes import RECIPES
from torchcaps.experiments.tables import TABLES
from torchcaps.experiments.tables.kept import is_of, read_results
from torchcaps.experiments.tables.poses import cells
from torchcaps.experiments.tables.summary import summarise

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
EVERY = sorted((ROOT / "results").glob("*.json"))
#: Auto-encoders make no errors, and have a table of their own.
RESULTS = [path for path in EVERY if "test_error" in json.loads(path.read_text())]
PAINTERS = [path for path in EVERY if path not in RESULTS]
#: What the probes of equivariance read.
_PROBED = ("pose", "pose_reduced", "change", "change_reduced")
#: | `recipe` | what | error | seeds | paper | parameters | minutes, …
ROWS = re.findall(
    r"^\| `([\w-]+)` \|[^|]*\| ([\d.]+)(?: ± ([\d.]+))? \| (\d+) \|[^|]*\| ([\d,]+) \| (\d+)[ ,]",
    README,
    flags=re.MULTILINE,
)


def test_every_result_is_in_the_table_and_nothing_else() -> None:
    assert {"digits", "digits-cnn", "digits-pairs", "digits-stacked"} <= {row[0] for row in ROWS}
    named = {recipe: row for table in TABLES.values() for row in table.rows for recipe in row.recipes}
    recorded = {named[json.loads(path.read_text())["recipe"]].recipe for path in RESULTS}
    assert sorted(row[0] for row in ROWS) == sorted(recorded)


@pytest.mark.parametrize(("recipe", "mean", "spread", "n", "parameters", "minutes"), ROWS)
def test_a_number_is_that_of_its_files(
    recipe: str, mean: str, spread: str, n: str, parameters: str, minutes: str
) -> None:
    found = [
        summarise(table, row, read_results(ROOT / "results"))
        for table in TABLES.values()
        for row in table.rows
        if row.recipe == recipe
    ]
    assert found[0] is not None and int(n) == len(found[0].seeds) and len(found[0].folds) in (1, 3)
    assert f"{mean} ± {spread}".removesuffix(" ± ") == found[0].cell("test_error")
    assert parameters == f"{found[0].n_parameters:,}" and minutes == f"{found[0].minutes:.0f}"


@pytest.mark.parametrize("path", EVERY, ids=lambda path: path.stem)
def test_the_recipe_is_still_what_was_run(path: Path) -> None:
    result = json.loads(path.read_text())
    assert path.name == f"{result['recipe']}-{result['seed']}.json"
    assert is_of(result, RECIPES[result["recipe"]]())
    assert result["commit"] and not result["commit"].endswith("-dirty")


@pytest.mark.parametrize("path", PAINTERS, ids=lambda path: path.stem)
def test_what_poses_say_is_what_the_readme_says(path: Path) -> None:
    result = json.loads(path.read_text())
    if "test_follows" not in result:
        pytest.skip(f"{result['recipe']} has no poses")
    rows = [line for line in README.splitlines() if line.startswith(f"| `{result['recipe']}` |")]
    wanted = " | ".join(cells(result))
    assert len(rows) == 1 and rows[0].endswith(f"| {wanted} |"), wanted


@pytest.mark.parametrize("path", sorted((ROOT / "results" / "few-labels").glob("*.json")), ids=lambda path: path.stem)
def test_few_labels_in_the_readme_are_those_of_the_file(path: Path) -> None:
    found = json.loads(path.read_text())
    table = path.with_suffix(".md").read_text(encoding="utf-8")
    assert table == as_markdown(found) and not found["commit"].endswith("-dirty")
    assert path.stem == found["recipe"] and is_of(found, RECIPES[found["recipe"]]())


@pytest.mark.parametrize(
    "path", sorted((ROOT / "results" / "measures").glob("*/*.json")), ids=lambda path: f"{path.parent.stem}-{path.stem}"
)
def test_a_measure_is_of_the_run_that_is_kept(path: Path) -> None:
    found = json.loads(path.read_text())
    run = json.loads((ROOT / "results" / f"{path.parent.name}.json").read_text())
    of = [found["measure"], *(f"{run['recipe']}-{run['seed']}" for run in (found["beside"],) if run is not None)]
    assert "-beside-".join(of) == path.stem and path.with_suffix(".png").is_file()
    assert {key: run[key] for key in ("recipe", "test_error", "commit")} == {
        key: found["run"][key] for key in ("recipe", "test_error", "commit")
    }
    assert not found["commit"].endswith("-dirty")


def test_claims_are_those_of_the_files() -> None:
    """Every number of a claim's row, by the first words of the row."""

    def measured(run: str, name: str) -> dict[str, Any]:
        (path,) = (ROOT / "results" / "measures" / run).glob(f"{name}*.json")
        return json.loads(path.read_text())["values"]

    def per_cent(*shares: float) -> list[str]:
        return [f"{100 * share:.1f} %" for share in shares]

    def mean(values: Iterable[float]) -> float:
        return statistics.mean(values)

    both = ("run", "beside")
    faces, digits = (measured(run, "picasso") for run in ("faces-0", "mnist-0"))
    other, follows = measured("mnist-0", "transfer"), measured("mnist-0", "equivariance")
    novel = {
        axis: [
            mean(measured(f"smallnorb-{axis}-fold-{k}-0", "matched")[part][kind]["novel_error"] for k in range(3))
            for part in both
            for kind in ("whole", "matched")
        ]
        for axis in ("azimuth", "elevation")
    }
    attacked = measured("smallnorb-em-held-out-0", "robustness")
    r2 = {(part, of): mean(each["r2"][of] for each in follows[part].values()) for part in both for of in _PROBED}
    at = attacked["checked"].index(0.1)
    assert all(whole == matched for whole, matched, *_ in novel.values())  # the CNN was the better
    wanted = {
        "capsules know when parts": per_cent(*(faces[part]["exchanged"]["still"] for part in both)),
        "the same, of digits": per_cent(*(digits[part]["halves 8 px"]["still"] for part in both)),
        "features carry over": per_cent(
            *(other["run"][of] for of in ("trained", "untrained")), other["pixels"],
            *(other["beside"][of] for of in ("trained", "untrained")),
        ),
        "matrix capsules generalise": per_cent(*novel["azimuth"][1:]),
        "the same, of elevations": per_cent(*novel["elevation"][1:]),
        "poses follow": [
            f"{r2[which]:.2f}"
            for which in (
                ("run", "pose"), ("run", "change"), ("beside", "pose"), ("beside", "pose_reduced"),
                ("beside", "change"), ("beside", "change_reduced"),
            )
        ],
        "matrix capsules resist": [
            f"reads {100 * attacked['run']['robust'][at]:.0f} of {attacked['n']}",
            f"size {100 * attacked['beside']['robust'][at]:.0f}",
        ],
    }  # fmt: skip
    for claim, numbers in wanted.items():
        (row,) = (line for line in README.splitlines() if line.startswith(f"| {claim}"))
        words = row.replace("100 %", "100.0 %")
        places = [re.search(rf"(?<![\d.]){re.escape(number)}(?![\d.])", words) for number in numbers]
        assert all(places), (claim, numbers)


def test_couplings_are_those_of_the_file() -> None:
    found = json.loads((ROOT / "results" / "measures" / "mnist-0" / "routing.json").read_text())["values"]
    entropy, wrong = ([found["run"][name][k - 1] for k in (1, 3, 10)] for name in ("active_entropy", "error"))
    said = f"their entropy is {100 * entropy[1]:.1f} % of its largest, weighted by activity, and with 1, 3 and 10"
    misread = "{:.0f}, {:.0f} and {:.0f}".format(*(found["n"] * share for share in wrong))
    assert f"{said} iterations in test {misread} of the {found['n']:,} are misread" in " ".join(README.split())


def test_novel_viewpoints_are_those_of_the_files() -> None:
    table, kept = TABLES["viewpoints-folds"], read_results(ROOT / "results")
    found = {row.recipe: summarise(table, row, kept) for row in table.rows}
    for recipe, said in re.findall(
        r"^\| `([\w-]+)` \|[^|]* novel (?:azimuth|elevation)s ([\d.]+) \|", README, flags=re.MULTILINE
    ):
        one = found.pop(recipe)
        assert one is not None and one.cell("novel_error") == said
    assert not any(found.values())


def test_affine_mnist_is_that_of_the_files() -> None:
    table, kept = TABLES["affine"], read_results(ROOT / "results")
    found = {row.recipe: summarise(table, row, kept) for row in table.rows}
    for recipe, said in re.findall(r"^\| `([\w-]+)` \|[^|]* on affine-MNIST ([\d.]+) \|", README, flags=re.MULTILINE):
        one = found.pop(recipe)
        assert one is not None and one.cell("affine_mnist_error") == said
    assert not any(found.values())


def test_rows_of_few_labels_are_in_a_table_of_the_results() -> None:
    tables = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "results" / "few-labels").glob("*.md"))
    rows = re.findall(
        r"^\| [^|`][^|]*\| (?:nearest labelled|spread over|mixture of|CNN|CapsNet).*$", README, flags=re.MULTILINE
    )
    assert rows and all(row in tables for row in rows), [row for row in rows if row not in tables]


def test_code_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert README.splitlines().index("```python") < 15
    for block in README.split("```python\n")[1:]:
        exec(compile(block.split("```")[0], "README.md", "exec"), {})
    assert re.findall(r"\[[\d, ]+\]", capsys.readouterr().out) == ["[8, 10, 16]", "[8, 10]", "[8, 10]", "[8, 5, 4, 4]"]


def test_pictures_and_pages_exist() -> None:
    for target in re.findall(r"\]\(([^)]+)\)", README):
        assert (ROOT / target).is_file(), target


def speed_rows() -> list[str]:
    """The rows of README's table of speed, from the files of the benches."""
    path = ROOT / "results" / "bench"
    suites = {}
    for name in ("steps", "growth", "threads"):
        suites |= json.loads((path / f"{name}.json").read_text())["suites"]
    ms = {key: {name: 1e3 * x["median"] for name, x in suite["seconds"].items()} for key, suite in suites.items()}
    mb = {name: x["median"] / 1e6 for name, x in suites["memory"]["bytes"].items()}
    goals = {row["what"]: row["value"] for suite in suites.values() for row in suite["rows"]}
    curves = suites["growth"]["curves"]

    def time(x: float) -> str:
        return f"{x / 1e3:.1f} s" if x >= 10_000 else f"{x:,.0f} ms" if x >= 20 else f"{x:.1f} ms"

    def eager(step: str) -> float:
        return min(ms["dynamic"][f"{name}, {step}"] for name in ("tiled", "einsum", "batched", "few_at_a_time"))

    rows = []
    for what, step in (
        ("dynamic routing, 1152×8 → 10×16, batch 64, forward", "forward"),
        ("the same, forward and backward", "forward + backward"),
    ):
        best, ours = eager(step), ms["dynamic"][f"ours, {step}"]
        rows.append(f"| {what} | {time(ours)} | eager {time(best)}: {best / ours:.1f}× |")
    share = goals["routing's share of the step in bf16"]
    for what, step, more in (
        ("CapsNet's training step, batch 64, float32", "step", ""),
        ("the same in bfloat16", "step in bf16", f"; routing alone {share:.1f} %"),
    ):
        ours, floor, torchs = (
            ms["capsnet"][f"{name}, {step}"] for name in ("ours", "floor", "ours with torch's convolutions")
        )
        beside = f"floor {time(floor)}; with torch's convolutions {time(torchs)}{more}"
        rows.append(f"| {what} | {time(ours)} | {beside} |")
    cnn = ms["em"]["the paper's CNN, 4.2 M parameters, step"]
    for what, net in (
        ("matrix capsules A=B=C=D=32, training step, batch 8", "A=B=C=D=32"),
        ("matrix capsules A=64 B=8 C=D=16, the same", "A64 B8 C16 D16"),
    ):
        ours, floor, stored = (ms["em"][f"{net}: {name}, step"] for name in ("ours", "floor", "stored_votes"))
        beside = f"floor {time(floor)}: {ours / floor:.1f}× as long; eager {time(stored)}: {stored / ours:.0f}×"
        rows.append(f"| {what} | {time(ours)} | {beside}; the paper's 4.2 M CNN {time(cnn)} |")
    convolutions = mb["CapsNet: ours with torch's convolutions"]
    ours, floor = mb["CapsNet: ours"], mb["CapsNet: floor"]
    rows.append(
        f"| peak memory of CapsNet's step, float32 | {ours:.0f} MB | floor {floor:.0f} MB; "
        f"with torch's convolutions {convolutions:.0f} MB; eager {mb['CapsNet: few_at_a_time']:.0f} MB |"
    )
    for what, net in (("of the first matrix capsules'", "A=B=C=D=32"), ("of the second", "A64 B8 C16 D16")):
        ours, floor, stored = (mb[f"EM net {net}: {name}"] for name in ("ours", "floor", "stored_votes"))
        rows.append(f"| {what} | {ours:.0f} MB | floor {floor:.0f} MB; eager {stored:,.0f} MB |")
    few, many = curves["I"][0], curves["I"][-1]
    grown = goals["time a unit, lower capsules 1,000 → 100,000"]
    rows.append(
        f"| dynamic routing of {few['x']:,} → {many['x']:,} lower capsules, batch 8, forward and backward "
        f"([growth](results/bench/growth.md)) | {time(1e3 * few['seconds'])} → {time(1e3 * many['seconds'])} "
        f"| the time of each capsule becomes {grown:.2f} of what it was |"
    )
    whole = goals["CapsNet forward, 224×224 images, batch 8: the whole process"]
    seconds = 1e3 * curves["image size"][-1]["seconds"]
    rows.append(
        f"| the forward pass of 224×224 images through CapsNet, batch 8 (the same) | {time(seconds)} "
        f"| the whole process takes {whole:.1f} GB |"
    )
    faster = [row["value"] for row in suites["threads"]["rows"]]
    rows.append(
        f"| two cores instead of one ([threads](results/bench/threads.md)) | {min(faster):.2f}× to {max(faster):.2f}× "
        "faster | routing alone and whole steps |"
    )
    return rows


def test_speed_is_that_of_the_benches() -> None:
    missing = [row for row in speed_rows() if row not in README]
    assert not missing, missing
