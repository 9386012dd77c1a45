"""What is recorded belongs to the recipes as they stand, and pages say what the files say."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from study import records
from study.few_labels.write import as_markdown
from study.pages import pages
from study.recipes import RECIPES
from study.tables import TABLES
from study.tables.kept import is_of
from study.tests.test_recipes import SHAPES
from torchcaps.models import build
from torchcaps.models.baselines import count_parameters

ROOT = Path(__file__).resolve().parents[1]
CLAIMS, STUDY = ((ROOT / name).read_text(encoding="utf-8") for name in ("claims.md", "README.md"))
EVERY = records.every("runs")
MEASURED = records.every("measures")


def cited() -> list[tuple[str, str, str]]:
    """Every record that a page or a recipe's text names: where, of which kind, and its key."""
    pages = [ROOT.parent / "README.md", *(ROOT.parent / "docs").rglob("*.md"), *ROOT.glob("*.md")]
    sources = [*(ROOT / "tables").glob("*.toml"), *(ROOT / "recipes").glob("*.py")]
    kinds = "|".join(records.KINDS)
    found = []
    for path in (*pages, *sources):
        text = re.sub(r'"\n\s+"', "", path.read_text(encoding="utf-8"))
        links = re.findall(rf'results/({kinds})\.jsonl "([^"]+)"\)', text) if path.suffix == ".md" else []
        named = re.findall(rf"\b({kinds})\.jsonl:\s([\w./-]*[\w-])", text)
        found += [(path.name, kind, key) for kind, key in (*links, *named)]
    return found


def test_what_is_cited_is_recorded() -> None:
    every = cited()
    assert {"claims.md", "results.md", "speed.md", "smallnorb.toml", "viewpoints.py"} <= {name for name, _, _ in every}
    there = {kind: records.names(kind) for kind in records.KINDS}
    assert [each for each in every if each[2] not in there[each[1]]] == []


def test_there_are_few_files() -> None:
    """One for each kind of record, and the tables of benchmarks and few labels."""
    files = [path for path in (ROOT / "results").rglob("*") if path.is_file() and not path.name.endswith(".lock")]
    assert len(files) <= 30 and {path.suffix for path in files} == {".jsonl", ".md"}
    assert {path.stem for path in files if path.suffix == ".jsonl"} == set(records.KINDS)


def test_tables_of_pages_are_generated() -> None:
    """``python -m study results`` would change nothing."""
    assert [str(path) for path, text in pages().items() if path.read_text(encoding="utf-8") != text] == []


def test_every_result_is_in_a_table() -> None:
    """Of ``results.md``, which test_tables.py holds to the files; auto-encoders have one of their own."""
    named = {recipe for table in TABLES.values() for row in table.rows for recipe in row.recipes}
    assert not [run["recipe"] for run in EVERY.values() if "test_error" in run and run["recipe"] not in named]


@pytest.mark.parametrize("key", EVERY)
def test_the_recipe_is_still_what_was_run(key: str) -> None:
    result = EVERY[key]
    assert key == f"{result['recipe']}-{result['seed']}"
    assert is_of(result, RECIPES[result["recipe"]]())
    assert result["commit"] and not result["commit"].endswith("-dirty")


@pytest.mark.parametrize("key", EVERY)
def test_the_network_is_still_as_large_as_what_was_run(key: str) -> None:
    """Of what a recipe does not name it takes the model's defaults."""
    result = EVERY[key]
    config = RECIPES[result["recipe"]]()
    channels, *size = SHAPES[config.data.name]
    if config.data.pairs:
        size = [side + 8 for side in size]
    n_classes = {"digit-masks": 3, "faces": 2, "smallnorb": 5}.get(config.data.name, 10)
    with torch.device("meta"):
        model = build(config.model.name, (channels, *(config.data.crop or size)), n_classes, **config.model.options)
    assert count_parameters(model) == result["n_parameters"]


@pytest.mark.parametrize("key", records.names("few-labels"))
def test_a_table_of_few_labels_is_of_its_record(key: str) -> None:
    found = records.read("few-labels", key)
    table = (ROOT / "results" / "few-labels" / f"{key}.md").read_text(encoding="utf-8")
    assert table == as_markdown(found) and not found["commit"].endswith("-dirty")
    assert key == found["recipe"] and is_of(found, RECIPES[found["recipe"]]())


@pytest.mark.parametrize("key", MEASURED)
def test_a_measure_is_of_the_run_that_is_kept(key: str) -> None:
    found, (of_run, name) = MEASURED[key], key.split("/")
    run = EVERY[of_run]
    beside = [] if found["beside"] is None else [found["beside"]]
    of = [found["measure"], *(f"{run['recipe']}-{run['seed']}" for run in beside)]
    assert "-beside-".join(of) == name
    assert run["recipe"] == found["run"]["recipe"] and run["seed"] == found["run"]["seed"]
    for each in (found["run"], *beside):
        recorded = EVERY[f"{each['recipe']}-{each['seed']}"]
        assert {key: recorded[key] for key in ("test_error", "commit")} == {
            key: each[key] for key in ("test_error", "commit")
        }
    assert not found["commit"].endswith("-dirty")


def test_claims_are_those_of_the_files() -> None:
    """All numbers with a point or a %, cell by cell and in order, by the first words of the row."""

    def kept(run: str, file: str) -> dict[str, Any]:
        return MEASURED[f"{run}/{file}"]["values"]

    def result(run: str) -> dict[str, Any]:
        return EVERY[run]

    def per_cent(*shares: float, places: int = 1) -> list[str]:
        return [f"{100 * share:.{places}f} %".replace("100.0 %", "100 %") for share in shares]

    def decimals(*values: float) -> list[str]:
        return [f"{value:.2f}" for value in values]

    def spread(values: Iterable[float]) -> list[str]:
        """Over seeds 0, 1, 2, as it is written in a cell, number by number."""
        seeds = [100 * value for value in values]
        return [f"{statistics.mean(seeds):.1f}", f"{statistics.stdev(seeds):.1f} %"]

    def viewpoints(axis: str, part: str) -> list[str]:
        """Means over the folds, of the pair with the CNN of the capsules' size, then of that with the paper's."""
        found = []
        for cnn in ("cnn-small", "cnn"):
            name = f"smallnorb-{axis}"
            pairs = [
                [kept(f"{name}-fold-{k}-{seed}", f"matched-beside-{name}-{cnn}-fold-{k}-{seed}") for k in range(3)]
                for seed in range(3)
            ]
            for kind, of in (("matched", "novel"), ("matched", "test"), ("whole", "novel")):
                if (part, cnn, kind) != ("run", "cnn", "whole"):  # which are the same capsules again
                    means = (statistics.mean(fold[part][kind][f"{of}_error"] for fold in folds) for folds in pairs)
                    found += spread(means)
        return found

    def counts(one: list[str], other: list[str]) -> bool:
        """Whether two numbers differ by more than both deviations together, as study/protocols.md wants."""
        (x, dx), (y, dy) = ([float(text.removesuffix(" %")) for text in each] for each in (one, other))
        return abs(x - y) > dx + dy

    both = ("run", "beside")
    faces = [kept(f"faces-{seed}", f"picasso-beside-faces-cnn-{seed}") for seed in range(3)]
    digits, other, follows = (
        kept("mnist-adam-0", f"{name}-beside-mnist-matched-cnn-0") for name in ("picasso", "transfer", "equivariance")
    )
    attacked = [
        kept(f"smallnorb-em-held-out-{seed}", f"robustness-beside-smallnorb-cnn-small-{seed}") for seed in range(3)
    ]
    digits_attacked = kept("mnist-retrained-0", "robustness-beside-mnist-cnn-0")
    affine, affine_cnn = (result(name) for name in ("expanded-mnist-0", "expanded-mnist-cnn-0"))

    def r2(part: str, of: str, *without: str) -> float:
        return statistics.mean(each["r2"][of] for name, each in follows[part].items() if name not in without)

    def still_read(part: str, attack: str, epsilon: float) -> list[str]:
        grid = {"fgsm": "epsilons", "robust": "checked"}[attack]
        found = [(values[part][attack], values[grid].index(epsilon)) for values in attacked]
        return spread((of["accuracy"] if attack == "fgsm" else of)[k] for of, k in found)

    assert not any(values[part]["robust"][values["checked"].index(0.1)] for values in attacked for part in both)
    resists = (
        [
            *still_read("run", "fgsm", 0), "0.1", "0.02", *still_read("run", "robust", 0.02),
            "0.02", *still_read("run", "fgsm", 0.02),
        ],
        [found for of, at in (("fgsm", 0), ("robust", 0.02), ("fgsm", 0.02)) for found in still_read("beside", of, at)],
    )  # fmt: skip
    thick = [
        follows[part]["thicken"]["r2"][of]
        for part, of in (("run", "pose"), ("beside", "pose"), ("beside", "pose_reduced"))
    ]

    def fewer(network: str) -> list[str]:
        errors = [result(f"mnist{network}-{n}-labels-0")["test_error"] for n in (100, 1000, 10000)]
        return per_cent(*errors, places=2)

    def left(part: str, epsilon: float, attack: str | None = None) -> str:
        of, grid = digits_attacked[part], digits_attacked["epsilons" if attack else "checked"]
        return f"{100 * (of[attack]['accuracy'] if attack else of['robust'])[grid.index(epsilon)]:.0f}"

    resist_digits = [
        f"reads {left('run', 0.1)} of {digits_attacked['n']} images right under the strongest attack at ε = 0.1, and "
        f"{left('run', 0.02)} at 0.02",
        f"BIM alone leaves {left('run', 0.1, 'bim')} at 0.1, so its curves flatter it",
        f"CNN {left('beside', 0.1)}, and {left('beside', 0.02)}.",
        f"read {left('run', 0.1, 'fgsm')} of {digits_attacked['n']}, the CNN {left('beside', 0.1, 'fgsm')}.",
    ]
    assert digits_attacked["run"]["masked"] and not digits_attacked["beside"]["masked"]

    labels = records.read("few-labels", "mnist-templates")["rows"]
    few = {
        row["readout"]: [f"{100 * row['errors'][n]['test_error']:.2f} %" for n in ("10", "1000")]
        for row in labels
        if row["code"].startswith("none")
    }
    views = {axis: [viewpoints(axis, part) for part in both] for axis in ("azimuth", "elevation")}
    # Of novel viewpoints matched and trained to the end, beside the CNN of their size, then likewise the paper's.
    pairs = [((0, 2), (0, 2)), ((4, 6), (4, 6)), ((6, 8), (6, 8)), ((4, 6), (10, 12))]
    differ = {
        axis: [counts(run[slice(*one)], beside[slice(*other)]) for one, other in pairs]
        for axis, (run, beside) in views.items()
    }
    assert differ == {"azimuth": [True, True, False, True], "elevation": [False, True, False, True]}
    assert counts(still_read("run", "robust", 0.02), still_read("beside", "robust", 0.02))
    assert counts(still_read("run", "fgsm", 0.02), still_read("beside", "fgsm", 0.02))
    wanted: dict[str, tuple[list[str], list[str], *tuple[str, ...]]] = {
        "capsules know when parts": tuple(spread(each[part]["exchanged"]["still"] for each in faces) for part in both),  # type: ignore[dict-item]
        "the same, of digits": tuple(per_cent(digits[part]["halves 8 px"]["still"]) for part in both),  # type: ignore[dict-item]
        "what was learned at every place": (
            per_cent(affine["affine_mnist_error"]),
            per_cent(affine_cnn["affine_mnist_error"])
            + per_cent(
                *(network[f"{split}_error"] for split in ("val", "test") for network in (affine_cnn, affine)), places=2
            ),
        ),
        "features carry over": (
            per_cent(*(other["run"][of] for of in ("trained", "untrained")), other["pixels"], places=2),
            per_cent(*(other["beside"][of] for of in ("trained", "untrained")), places=2),
        ),
        "matrix capsules generalise": (
            *views["azimuth"], ": both differences on novel ones count.", ": the latter difference counts |"
        ),
        "the same, of elevations": (
            *views["elevation"], "2.4 %: the latter difference counts.", "1.1 %: the latter difference counts |"
        ),
        "poses follow": (
            decimals(r2("run", "pose"), r2("run", "change")),
            decimals(
                *(r2("beside", of) for of in ("pose", "pose_reduced", "change", "change_reduced")),
                *thick, r2("run", "pose", "thicken"),
                *(r2("beside", of, "thicken") for of in ("pose", "pose_reduced")),
            ),
        ),
        "fewer labels suffice": (
            [*fewer(""), *few["CapsNet"]],
            [*fewer("-matched-cnn"), *fewer("-cnn"), *few["CNN"]],
        ),
        "CapsNet resists": (["0.1", "0.02", "0.1"], ["0.1"], *resist_digits),
        "matrix capsules resist": (*resists, "at ε = 0.1 none, at 0.02", "%, none, "),
    }  # fmt: skip
    table = CLAIMS.split("| claim | confirmed so far | found | beside it |")[1].split("\n\n")[0].splitlines()[2:]
    found = {next((claim for claim in wanted if row.startswith(f"| {claim}")), row): row for row in table}
    assert found.keys() == wanted.keys()
    for claim, row in found.items():
        cells = re.sub(r"\]\([^)]*\)", "]", row).split(" | ")[2:]
        numbers = [re.findall(r"(?<![\w.,])(?:\d+\.\d+(?: %)?(?! M)|\d+ %)", cell) for cell in cells]
        assert numbers == list(wanted[claim][:2]), claim
        assert all(text in row for text in wanted[claim][2:]), (claim, wanted[claim][2:])


def test_couplings_are_those_of_the_file() -> None:
    found = MEASURED["mnist-adam-0/routing"]["values"]
    entropy, wrong = ([found["run"][name][k - 1] for k in (1, 3, 10)] for name in ("active_entropy", "error"))
    said = f"their entropy is {100 * entropy[1]:.1f} % of its largest, weighted by activity, and with 1, 3 and 10"
    misclassified = "{:.0f}, {:.0f} and {:.0f}".format(*(found["n"] * share for share in wrong))
    assert f"{said} iterations in test {misclassified} of the {found['n']:,} are misclassified" in " ".join(
        CLAIMS.split()
    )


def test_what_is_said_of_pairs_is_that_of_the_files() -> None:
    adam, muon = (MEASURED[f"{name}/pairs"]["values"]["run"] for name in ("multimnist-adam-0", "multimnist-0"))
    said = re.sub(r"\]\([^)]*\)", "]", " ".join(CLAIMS.split()))
    told = [f"{100 * each['same_class']['told_apart']:.0f} %" for each in (adam, muon)]
    assert f"that of the two is the larger in {told[0]} of cases (of `multimnist` in [{told[1]}])" in said
    iou = f"by {adam['iou']['true']:.2f} (intersection over union), the whole input by {adam['iou']['input']:.2f}."
    assert iou in said


def test_rows_of_few_labels_are_in_a_table_of_the_results() -> None:
    tables = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "results" / "few-labels").glob("*.md"))
    for page in (STUDY, CLAIMS):
        rows = re.findall(
            r"^\| [^|`][^|]*\| (?:nearest labelled|spread over|mixture of|CNN|CapsNet).*$", page, flags=re.MULTILINE
        )
        assert rows and not [row for row in rows if row not in tables]
    (analysers,) = re.findall(
        r"\| poses of mnist-templates \| mixture of factor analysers \|[^|]*\| ([^|]*) \|", tables
    )
    assert f"By mixtures of factor analysers the error from 25 labels is {analysers} %." in " ".join(STUDY.split())
