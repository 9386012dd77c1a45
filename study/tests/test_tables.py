"""Tables: what stands in a cell, and what reproducing one trains, keeps and never overwrites."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from study import records
from study.recipes import RECIPES, recipe
from study.tables import TABLES, Row, Table, read_table
from study.tables.document import document
from study.tables.draw import draw, number
from study.tables.kept import is_of, keep, read_results, require_free, stale
from study.tables.measured import recorded
from study.tables.poses import cells, poses_as_markdown
from study.tables.routings import tables
from study.tables.summary import summarise
from study.tables.write import as_json, as_markdown
from torchcaps.training.config import smoke

ROOT = Path(__file__).resolve().parents[1]
KEPT = read_results(ROOT / "results")
ROW = Row("ours", "digits", 1000, {"test_error": "0.25 ± 0.005"})
TABLE = Table("Digits", "Nowhere", (ROW, Row("theirs", "digits-cnn", 1000)))


def result(name: str = "digits", seed: int = 0, error: float = 0.01, steps: int = 100, **others: Any) -> dict[str, Any]:
    config = replace(recipe(name), seed=seed).to_dict()
    facts = {"seconds": 90.0, "n_parameters": 7, "device": "abacus, 1 thread"}
    return {"recipe": name, "seed": seed, "test_error": error, "steps": steps, **facts, "config": config, **others}


def test_a_cell_is_the_mean_and_the_spread_over_seeds() -> None:
    one = summarise(TABLE, ROW, {"digits": [result()]})
    two = summarise(TABLE, ROW, {"digits": [result(), result(seed=1, error=0.03)]})
    assert one is not None and one.cell("test_error") == "1.00"
    assert two is not None and two.cell("test_error") == "2.00 ± 1.41"
    assert (two.seeds, two.images, two.minutes) == ((0, 1), 3200, 1.5)
    assert summarise(TABLE, ROW, {}) is None


def test_a_run_below_the_minimum_reads_smoke() -> None:
    """Even where another seed is long enough; 31 steps of 32 images are 992."""
    found = summarise(TABLE, ROW, {"digits": [result(), result(seed=1, steps=31)]})
    assert found is not None and found.cell("test_error") == "smoke"
    enough = summarise(TABLE, ROW, {"digits": [result(steps=32)]})
    assert enough is not None and enough.cell("test_error") == "1.00"


def test_shortened_trainings_have_a_mean_where_they_ran_and_nowhere_else() -> None:
    """Said to be shortened, never among recorded results nor in the picture; two steps say nothing."""
    config = replace(recipe("digits"), epochs=2)
    short = [result(seed=k, steps=20, error=error, config=config.to_dict()) for k, error in enumerate((0.01, 0.03))]

    def row(**places: list[dict[str, Any]]) -> str:
        text = as_markdown(TABLE, {place: {"digits": runs} for place, runs in places.items()}, "digits")
        assert ("is no result of the row" in text) == ("shortened:" in text)
        return next(line for line in text.splitlines() if line.startswith("| ours"))

    assert "| 2.00 ± 1.41 (shortened: `--epochs 2`, 2 seeds) | 2 | 640 |" in row(here=short)
    beside = row(recorded=[result()], here=short)
    assert "| 1.00 | 2.00 ± 1.41 (shortened: `--epochs 2`, 2 seeds) | 1 | 3,200 |" in beside
    assert "| smoke | 2.00 |" in row(recorded=short, here=[result(error=0.02)])
    axes = draw(TABLE, {"here": {"digits": short}}).axes[0]
    assert [list(map(float, line.get_xydata().ravel())) for line in axes.lines] == [[0.25, 1.0]]
    quick = [result(steps=2, config=smoke(recipe("digits")).to_dict())]
    assert "| smoke | 1 |" in row(here=quick)


def test_markdown_has_paper_and_places_side_by_side() -> None:
    text = as_markdown(TABLE, {"recorded": {"digits": [result()]}, "here": {"digits": [result(error=0.02)]}}, "digits")
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert rows[0].startswith("| row | recipe | paper | recorded: test error, % | here: test error, % | seeds |")
    assert rows[2] == ("| ours | `digits` | 0.25 ± 0.005 | 1.00 | 2.00 | 1 | 3,200 | 7 | 2 | abacus, 1 thread |")
    assert rows[3] == "| theirs | `digits-cnn` | – | – | – | – | at least 1,000 | – | – | – |"
    assert len({row.count("|") for row in rows}) == 1


def test_facts_are_those_of_the_number_beside_them() -> None:
    """Those of here, except for a smoke run, where the recorded one has the number; and each says what its data are."""
    mine = result(error=0.02, seconds=6000.0, device="mine, 8 threads")
    text = as_markdown(TABLE, {"recorded": {"digits": [result()]}, "here": {"digits": [mine]}}, "digits")
    assert "| 1.00 | 2.00 | 1 | 3,200 | 7 | 100 | mine, 8 threads |" in text
    assert "Seeds and what follows them are those of the number here or else recorded." in text
    places = {
        "recorded": {"digits": [result(data="small copies")]},
        "here": {"digits": [result(steps=1, data="crumbs")]},
    }
    lines = as_markdown(TABLE, places, "digits").splitlines()
    row = next(line for line in lines if line.startswith("| ours"))
    assert (
        row
        == "| ours | `digits` | 0.25 ± 0.005 | 1.00 | 1.00 (shortened: 1 seed) | 1 | 3,200 | 7 | 2 | abacus, 1 thread |"
    )
    assert lines[-3:] == ["Data of `digits`: small copies.", "", "Data of `digits`: crumbs."]


def test_epochs_are_those_of_the_number_beside_them() -> None:
    """Not those of another place, nor of a smoke run, of which no number is shown."""
    short = result(error=0.03, config=replace(recipe("digits"), epochs=3).to_dict())

    def row(*runs: dict[str, Any]) -> str:
        places = {place: {"digits": [run]} for place, run in zip(("recorded", "here"), runs, strict=False)}
        return next(line for line in as_markdown(TABLE, places, "digits").splitlines() if line.startswith("| ours"))

    assert row(result(), short).startswith("| ours | `digits` | 0.25 ± 0.005 | 1.00 | 3.00 (`--epochs 3`) |")
    assert row(short, short).startswith("| ours | `digits` `--epochs 3` | 0.25 ± 0.005 | 3.00 | 3.00 |")
    assert row(short, result()).startswith("| ours | `digits` | 0.25 ± 0.005 | 3.00 (`--epochs 3`) | 1.00 |")
    assert row(short | {"steps": 1}).startswith("| ours | `digits` | 0.25 ± 0.005 | smoke |")


@pytest.mark.parametrize(
    "other", [{"data": "half-size copies"}, {"config": replace(recipe("digits"), epochs=3).to_dict()}]
)
def test_what_differs_has_no_mean(other: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"results of digits must be of the same (data|epochs), got .*"):
        summarise(TABLE, ROW, {"digits": [result(), result(seed=1) | other]})


def test_folds_of_different_epochs_have_no_mean() -> None:
    row = Row("ours", "digits", 1000, folds=("digits-cnn",))
    longer = result("digits-cnn", config=replace(recipe("digits-cnn"), epochs=99).to_dict())
    with pytest.raises(ValueError, match=r"results of digits and digits-cnn must be of the same epochs"):
        summarise(TABLE, row, {"digits": [result()], "digits-cnn": [longer]})


def test_a_column_is_of_all_seeds_or_none() -> None:
    table = replace(TABLE, columns=dict.fromkeys(("test_error", "novel_error"), "error"))
    found = summarise(table, ROW, {"digits": [result(), result(seed=1, novel_error=0.5)]})
    assert found is not None and list(found.values) == ["test_error"] and found.cell("novel_error") == "–"


def test_json_has_every_seed() -> None:
    rows = as_json(TABLE, {"here": {"digits": [result(), result(seed=1, error=0.03)]}})["rows"]
    assert rows[0]["here"]["per_cent"] == {"test_error": [1.0, 3.0]} and not rows[0]["here"]["smoke"]
    assert "here" not in rows[1]


def test_every_device_that_took_part_is_named() -> None:
    """Of a run that was resumed elsewhere, too."""
    runs = [result(device="Abacus; slide rule"), result(seed=1, device="slide rule; fingers")]
    summary = summarise(TABLE, ROW, {"digits": runs})
    assert summary is not None and summary.devices == ("Abacus", "slide rule", "fingers")


@pytest.mark.parametrize("errors", [(0.0, 0.0), (0.0, 0.3)])
def test_no_error_is_drawn_negative(errors: tuple[float, float]) -> None:
    results = {name: [result(name, error=e)] for name, e in zip(("digits", "digits-cnn"), errors, strict=True)}
    table = Table("Digits", "Nowhere", (Row("ours", "digits", 1000), Row("theirs", "digits-cnn", 1000)))
    axes = draw(table, {"here": results}).axes[0]
    low, high = axes.get_xlim()
    assert low < 0 < 100 * max(errors) < high or max(errors) == 0
    assert not [tick for tick in axes.get_xticks() if low <= tick < 0]


def test_the_picture_leaves_smoke_out() -> None:
    axes = draw(TABLE, {"here": {"digits": [result()], "digits-cnn": [result("digits-cnn", steps=1)]}}).axes[0]
    assert [list(map(float, line.get_xydata().ravel())) for line in axes.lines] == [[0.25, 1.0], [1.0, 1.0]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("title = ", "Invalid value"),
        ('title = "A"\nsource = "B"\nrows = []', "'minimum'"),
        ('title = "A"\nminimum = 1\nrows = []', "source"),
        ('title = "A"\nsource = "B"\nminimum = 1\nrows = []\nnotes = "C"', "unexpected keyword argument 'notes'"),
        ('title = "A"\nsource = "B"\nminimum = 1\nrows = [{ label = "C" }]', "recipe"),
        ('title = "A"\nsource = "B"\nminimum = 1\nrows = []\nnote = 3', "no attribute 'split'"),
    ],
)
def test_a_broken_table_is_named(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(
        ValueError, match=rf"mine\.toml must hold a table as study/tables/__init__.py says, got .*{message}"
    ):
        read_table(tmp_path / "mine.toml")


def test_every_table_is_read() -> None:
    assert {path.stem for path in (ROOT / "tables").glob("*.toml")} | set(tables()) == set(TABLES)
    assert TABLES["smallnorb"].row("smallnorb") == Row(
        "3 iterations, matrix, spread loss, coordinates", "smallnorb", 150_000, {"test_error": "1.8"}
    )


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_made_of_recipes(name: str) -> None:
    for row in TABLES[name].rows:
        assert set(row.recipes) <= set(RECIPES) and set(row.paper) <= set(TABLES[name].columns)
        assert all(number(text) > 0 for text in row.paper.values())


def test_a_result_is_of_its_recipe_wherever_it_ran() -> None:
    mine = result()
    assert is_of(mine, replace(recipe("digits"), threads=7, device="cpu", seed=5))
    assert is_of(mine, replace(recipe("digits"), epochs=21))  # how much training that was, the minimum judges
    assert not is_of(mine, replace(recipe("digits"), batch_size=31))
    assert not is_of({"recipe": "digits"}, recipe("digits"))
    affine = recipe("expanded-mnist")
    tested_on_more = replace(affine, data=replace(affine.data, options={"affnist": True}))
    assert is_of({"config": tested_on_more.to_dict()}, affine)


def test_results_are_read_in_the_order_of_seeds(tmp_path: Path) -> None:
    for seed in (10, 2):
        keep(result(seed=seed), tmp_path)
    old = result("digits-cnn") | {"config": replace(recipe("digits-cnn"), batch_size=1).to_dict()}
    records.write("runs", "digits-cnn-0", old, tmp_path)
    assert {name: [one["seed"] for one in found] for name, found in read_results(tmp_path).items()} == {
        "digits": [2, 10]
    }


def test_records_that_are_no_results_are_none_of_ours(tmp_path: Path) -> None:
    records.write("runs", "mine", {"accuracy": 1}, tmp_path)
    records.write("runs", "theirs", result() | {"recipe": "a"}, tmp_path)
    records.write("runs", "them", result() | {"recipe": ["a"]}, tmp_path)
    assert read_results(tmp_path) == {}
    assert stale(tmp_path) == [f"{tmp_path}/runs.jsonl: {name}" for name in ("mine", "theirs", "them")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (result(seed=1), "must be named after its recipe and seed, digits, 1"),
        ({"recipe": "digits", "seed": 0}, "must hold recipe, seed, config; got recipe, seed"),
        ({key: value for key, value in result().items() if key != "steps"}, "must hold steps, "),
    ],
)
def test_a_lacking_or_misnamed_result_is_not_passed_over(content: dict[str, Any], message: str, tmp_path: Path) -> None:
    records.write("runs", "digits-0", content, tmp_path)
    with pytest.raises(ValueError, match=rf"runs\.jsonl: digits-0 {message}"):
        read_results(tmp_path)


def test_a_kept_result_is_never_replaced(tmp_path: Path) -> None:
    where = keep(result(), tmp_path)
    assert keep(result(), tmp_path) == where == f"{tmp_path}/runs.jsonl: digits-0"
    with pytest.raises(ValueError, match="digits-0 is another record: remove that line to keep this one"):
        keep(result(error=0.5), tmp_path)
    assert records.read("runs", "digits-0", tmp_path)["test_error"] == 0.01
    with pytest.raises(ValueError, match="digits-0 is another record: remove that line to keep this one"):
        require_free(recipe("digits"), tmp_path)


def test_what_would_have_no_mean_with_what_is_kept_is_not(tmp_path: Path) -> None:
    """Of other epochs or data; where it can be known, that is said before any work."""
    keep(result(data="small copies"), tmp_path)
    with pytest.raises(ValueError, match=r"data must be 'small copies', as those of .*digits-0, got 'whole'; or"):
        keep(result(seed=1, data="whole"), tmp_path)
    with pytest.raises(ValueError, match=r"data must be 'small copies', as those of .*digits-0, got ''; or move"):
        require_free(replace(recipe("digits"), seed=1), tmp_path)
    more = replace(recipe("digits"), seed=1, epochs=21)
    with pytest.raises(ValueError, match=r"epochs must be 20, as .*digits-0 has, got 21; or move that line"):
        keep(result(seed=1, data="small copies", config=more.to_dict()), tmp_path)
    with pytest.raises(ValueError, match=r"epochs must be 20, as .*digits-0 has, got 21; or move that line"):
        require_free(more, tmp_path)
    assert records.names("runs", tmp_path) == ["digits-0"]


def test_folds_go_together(tmp_path: Path) -> None:
    one, other = TABLES["viewpoints-folds"].rows[0].recipes[:2]
    keep(result(one), tmp_path)
    with pytest.raises(ValueError, match=rf"epochs must be \d+, as .*{one}-0 has, got 99; or move"):
        require_free(replace(recipe(other), epochs=99), tmp_path)


def test_only_what_a_recipe_is_is_kept(tmp_path: Path) -> None:
    """Even of a finished run, which was not looked at before."""
    other = replace(recipe("digits"), batch_size=7)
    for config in (other, replace(recipe("digits"), trial=True)):
        with pytest.raises(ValueError, match="keep wants a recipe as it is except for seed and epochs"):
            keep(result(config=config.to_dict()), tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_document_is_what_the_results_say() -> None:
    assert (ROOT / "results.md").read_text(encoding="utf-8") == document(ROOT / "results")


def test_how_poses_follow_by_hand() -> None:
    one = {"slope": 0.9, "r2": 0.8}
    other = {"slope": 1.0, "r2": 0.9}
    alone = {"slope": [0.7, 0.8, 0.9], "r2": [0.1, 0.2, 0.3]}
    found = {
        "test_follows": {
            "shift x": one,
            "shift y": other,
            "rotation": one,
            "scale x": one,
            "scale y": one,
            "shear": other,
        },
        "test_capsules": {"n": 3, "active": 2, "shift x": alone, "shift y": alone | {"slope": [0.75, 0.8, 1.1]}},
        "test_consistency": 0.056,
        "seconds": 100.0,
        "epochs": 7,
    }
    wanted = ["0.95", "0.85", "0.80", "0.80", "0.90", "0.70 … 1.10", "0.10 … 0.30", "6 %", "2"]
    assert cells(found) == wanted
    points = found | {"test_follows": {"shift x": one, "shift y": other}, "test_consistency": None}
    assert cells(points | {"test_capsules": {"n": 3, "active": 0}}) == [*wanted[:2], *"––––––", "2"]
    table = poses_as_markdown({"mnist-affine": [found], "mnist-plain-autoencoder": [{"test_loss": 1.0}]})
    assert [line for line in table.splitlines() if line.startswith("| `")] == [
        f"| `mnist-affine` | {(RECIPES['mnist-affine'].__doc__ or '').splitlines()[0]} | 7 | {' | '.join(wanted)} |"
    ]


def folded(recipe: str, error: float, **others: Any) -> dict[str, Any]:
    return result(error=error, **others) | {"recipe": recipe, "data": f"toys of {recipe}"}


def test_a_row_of_folds_is_their_mean() -> None:
    row = replace(ROW, minimum=10, folds=("digits-1", "digits-2"))
    table = replace(TABLE, rows=(row,))
    found = {name: [folded(name, error)] for name, error in (("digits", 0.01), ("digits-1", 0.02), ("digits-2", 0.06))}
    one = summarise(table, row, found)
    assert one is not None and (len(one.folds), one.seeds, one.cell("test_error")) == (3, (0,), "3.00")
    assert one.in_words(table.columns).startswith("Ours: 3.00 % (3 folds, 1 seed, ")
    assert table.row("digits-2") is row
    text = as_markdown(table, {"recorded": found}, "digits")
    assert "| 1, 3 of 3 folds |" in text and "Data of `digits-1`: toys of digits-1." in text
    with pytest.raises(ValueError, match="digits must be of the same data, got"):
        summarise(table, row, {"digits": [folded("digits", 0.1), folded("digits", 0.1) | {"data": "other toys"}]})


def test_a_row_of_folds_that_is_half_done() -> None:
    """Means are taken over the seeds that every fold so far has run with."""
    row = replace(ROW, minimum=10, folds=("digits-1", "digits-2"))
    first, second, other = folded("digits", 0.01), folded("digits", 0.03, seed=1), folded("digits-1", 0.05)
    part = summarise(TABLE, row, {"digits": [first, second]})
    assert part is not None and part.cell("test_error") == "2.00 ± 1.41" and part.runs_in_words(3) == "2, 1 of 3 folds"
    part = summarise(TABLE, row, {"digits": [first, second], "digits-1": [other]})
    assert part is not None and part.cell("test_error") == "3.00" and part.runs_in_words(3) == "1, 2 of 3 folds"
    assert part.as_json()["folds"] == ["digits", "digits-1"] and part.as_json()["seeds"] == [0]
    assert summarise(TABLE, row, {"digits": [second], "digits-1": [other]}) is None


def kept_measure(folder: Path, name: str, right: float, beside: tuple[str, int] | None = None, seed: int = 0) -> str:
    """A measure of pictures that shows one form, as it is; returns its key."""
    parts = {"run": {"as it is": {"still": right}}} | ({"beside": {"as it is": {"still": 0.5}}} if beside else {})
    of = {"recipe": name, "seed": seed, "folder": f"{name}-{seed}"}
    other = {"recipe": beside[0], "seed": beside[1], "folder": "cnn"} if beside else None
    content = {"measure": "picasso", "values": parts, "n": 7, "device": "abacus", "run": of, "beside": other}
    named = "picasso" if beside is None else f"picasso-beside-{beside[0]}-{beside[1]}"
    records.write("measures", key := f"{name}-{seed}/{named}", content, folder)
    return key


def test_measures_of_several_seeds_are_put_together(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    one = kept_measure(folder, "digits", 0.8, ("digits-cnn", 0))
    table = [
        "",
        "| picasso | `digits` | `digits-cnn` |",
        "| --- | --- | --- |",
        "| as it is: still called the same | 80.0 % | 50.0 % |",
        "",
    ]
    link = f'[`{one}`](results/measures.jsonl "{one}")'
    assert recorded(folder) == [*table, f"7 images, abacus: {link}."]
    picture = tmp_path / "pictures" / f"{one}.png"
    picture.parent.mkdir(parents=True)
    picture.touch()
    assert recorded(folder) == [*table, f"7 images, abacus: {link}, [picture](pictures/{one}.png)."]
    picture.unlink()
    # Beside a network of another seed it is another comparison.
    kept_measure(folder, "digits", 0.1, ("digits-cnn", 1))
    assert sum(line.startswith("| picasso") for line in recorded(folder)) == 2
    lines = (folder / "measures.jsonl").read_text().splitlines(keepends=True)
    (folder / "measures.jsonl").write_text("".join(line for line in lines if "beside-digits-cnn-1" not in line))
    two = kept_measure(folder, "digits", 0.6, ("digits-cnn", 1), seed=1)
    table[3] = "| as it is: still called the same | 70.0 ± 14.1 % | 50.0 ± 0.0 % |"
    links = "; ".join(f'[`digits-{k}`](results/measures.jsonl "{each}")' for k, each in ((0, one), (1, two)))
    assert recorded(folder) == [*table, f"7 images, 2 seeds, abacus: {links}."]


def test_measures_of_folds_are_one_mean_a_seed(tmp_path: Path) -> None:
    """And a seed without one of the folds is left out."""
    folder = tmp_path / "results"
    for k, right in enumerate((0.3, 0.6, 0.9)):
        kept_measure(folder, f"smallnorb-azimuth-fold-{k}", right)
        if k:
            kept_measure(folder, f"smallnorb-azimuth-fold-{k}", 0.0, seed=1)
    lines = recorded(folder)
    assert lines[1] == "| picasso | `smallnorb-azimuth-fold-*` |" and lines[3].endswith("| 60.0 % |")
    assert lines[-1].startswith("7 images, 3 folds, abacus: [`smallnorb-azimuth-fold-0-0`](")
    kept_measure(folder, "smallnorb-azimuth-fold-0", 0.0, seed=1)
    assert recorded(folder)[3].endswith("| 30.0 ± 42.4 % |")


def test_a_measure_that_there_is_not_is_not_passed_over(tmp_path: Path) -> None:
    key = kept_measure(tmp_path, "digits", 0.8)
    found = records.read("measures", key, tmp_path)
    records.write("measures", key, found | {"measure": "taste"}, tmp_path, replace=True)
    with pytest.raises(ValueError, match=r"measures.jsonl: .* must be of one of robustness, .*, got taste"):
        recorded(tmp_path)
    records.write("measures", key, {"measure": "picasso"}, tmp_path, replace=True)
    with pytest.raises(ValueError, match=r"digits-0/picasso must hold beside, device, .*; got measure"):
        recorded(tmp_path)
    records.write("measures", key, found | {"values": {}}, tmp_path, replace=True)
    with pytest.raises(ValueError, match=r"digits-0/picasso must hold what picasso measures, got other values"):
        recorded(tmp_path)
