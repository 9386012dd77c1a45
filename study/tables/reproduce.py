"""Train the rows of a table, going on where it stopped, and write the table."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from study import records
from study.recipes import recipe
from study.tables import TABLES
from study.tables.draw import draw
from study.tables.kept import (
    keep,
    not_kept,
    read_results,
    require_one_mean,
    require_same_data,
    results_of_runs,
    seeded,
)
from study.tables.table import Result, Results, Table
from study.tables.write import HERE, as_json, as_markdown
from torchcaps.checks import check_at_least, check_choice, check_positive, check_several
from torchcaps.training.callbacks import OutOfTime
from torchcaps.training.config import Device, Experiment, Progress, smoke
from torchcaps.training.files import require_place, write_json, write_picture, write_text
from torchcaps.training.module import NonFiniteLoss
from torchcaps.training.run import Run, placed
from torchcaps.training.train import default_folder, train


def reproduce(
    name: str,
    rows: Sequence[str] = (),
    *,
    seeds: int = 1,
    epochs: int | None = None,
    budget: float | None = None,
    root: str | Path | None = None,
    runs: str | Path = "runs",
    recorded: str | Path = "study/results",
    keep_in: str | Path | None = None,
    threads: int = 0,
    device: Device = "auto",
    quick: bool = False,
    progress: Progress = "bar",
    say: Callable[[str], object] = print,
) -> str:
    """Train a table's rows and write ``<runs>/tables/<name>.md``, ``.json`` and ``.png`` (``<name>-smoke`` if quick).

    Runs that are finished are not trained again, and one that was broken off goes on; so the same command
    given again and again ends with the whole table.

    Args:
        name: one of :data:`~study.tables.TABLES`.
        rows: recipes of the table, all of them where none is named. A row that is a mean over folds is trained whole.
        seeds: runs of each row, with the seeds 0 … seeds − 1.
        epochs: of each run, instead of the recipe's: below a row's minimum the table calls the number
            "shortened".
        budget: minutes after which training stops, to be gone on with by the same command; None for no end.
        root: folder of the data files, or the folder of the data sets' folders.
        runs: where runs are kept, ``<runs>/<recipe>`` as ``torchcaps train`` has it.
        recorded: folder of results that are kept for good, shown beside; it need not be there.
        keep_in: folder to put the finished results into; what is kept there is not trained again. None keeps
            results in their run folders alone.
        threads: threads on a CPU; 0 leaves torch's number, which is all cores unless it was set.
        device: where to train.
        quick: two steps of every run, to see that all of it runs; the table then reads "smoke".
        progress: of each training.
        say: Called with each run that begins, and the table at the end.

    Returns:
        The table as Markdown.

    Raises:
        ValueError: unknown table or row, a number out of range, data that are not available; a result of another
            experiment is kept under a run's name, or a run of one lies in its folder; what is kept or has run of a row
            is of other epochs or data; a smoke run is to be kept, or the folder to keep in cannot be written to. (A run
            that diverges is said to, and the others go on.)
    """
    check_choice("table", name, TABLES)
    check_several("rows", rows)
    check_at_least("seeds", seeds, 1)
    if budget is not None:
        check_positive("budget", budget)
    if quick and keep_in is not None:
        raise ValueError(f"keep_in must be None for a smoke run, which is no result; got {keep_in}")
    table, runs = TABLES[name], Path(runs).expanduser()
    wanted = {row.recipe: row for row in (map(table.row, rows) if rows else table.rows)}.values()
    planned = [
        (row, [config for name in row.recipes for config in _configs(name, seeds, epochs, quick)]) for row in wanted
    ]
    kept = None if keep_in is None else Path(keep_in).expanduser()
    todo = [config for _, every in planned for config in (every if kept is None else not_kept(every, kept))]
    recorded = Path(recorded)
    places: dict[str, Results] = {"recorded": read_results(recorded)} if recorded.is_dir() else {}
    own: Results = {} if kept is None or kept.resolve() == recorded.resolve() else read_results(kept)
    here = _here(table, runs, own, seeds, epochs, quick)
    as_markdown(table, places | {HERE: here}, name)  # before the first of them takes hours, as all that follows
    of_recipe: dict[str, list[tuple[Experiment, Run]]] = {}
    for config in todo:
        run = Run(runs / default_folder(config).name)
        run.check(config)
        of_recipe.setdefault(config.recipe, []).append((config, run))
    for every in of_recipe.values():
        done = [run for _, run in every if run.result.is_file()]
        waiting = next((config for config, run in every if run not in done), None)
        if done and waiting is not None:
            require_same_data(placed(waiting, root, threads, device), done)
    if kept is not None:
        for config in {config.recipe: config for config in todo}.values():
            require_one_mean(placed(config, root, threads, device), kept)
        require_place("keep_in", kept)
    end = None if budget is None else time.monotonic() + 60 * budget
    try:
        for row, config in ((row, config) for row, every in planned for config in every):
            if kept is not None and config not in todo:
                there = records.read("runs", f"{config.recipe}-{config.seed}", kept)["config"]["epochs"]
                say(f"{row.label}: {config.recipe}, seed {config.seed}, is kept already, of {there} epochs")
                continue
            say(f"{row.label}: {config.recipe}, seed {config.seed}")
            folder = runs / default_folder(config).name
            try:
                result = train(placed(config, root, threads, device), folder, progress=progress, until=end)
            except NonFiniteLoss as error:
                say(f"{config.recipe}, seed {config.seed}, has no result: {error}")
                continue
            if kept is not None:
                keep(result, kept)
    except OutOfTime:
        say("the budget is used up; the same command goes on")
    own = {} if kept is None or kept.resolve() == recorded.resolve() else read_results(kept)
    places[HERE] = _here(table, runs, own, seeds, epochs, quick)
    text = as_markdown(table, places, name)
    _write(table, places, text, runs / "tables" / (f"{name}-smoke" if quick else name))
    say(text)
    return text


def _configs(name: str, seeds: int, epochs: int | None, quick: bool) -> list[Experiment]:
    config = recipe(name)
    config = config if epochs is None else replace(config, epochs=epochs)
    return seeded(smoke(config) if quick else config, seeds)


def _here(table: Table, runs: Path, kept: Results, seeds: int, epochs: int | None, quick: bool) -> Results:
    """Of every recipe what is kept, and else what its runs came to."""
    found: dict[str, list[Result]] = {}
    for name in (name for row in table.rows for name in row.recipes):
        configs = _configs(name, seeds, epochs, quick)
        found[name] = [result for result in kept.get(name, ()) if result["seed"] < seeds]
        found[name] = found[name] or results_of_runs(configs, [runs / default_folder(one).name for one in configs])
    return found


def _write(table: Table, places: dict[str, Results], text: str, path: Path) -> None:
    write_text(path.with_suffix(".md"), text)
    write_json(path.with_suffix(".json"), as_json(table, places))
    write_picture(path.with_suffix(".png"), draw(table, places))
