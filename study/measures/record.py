"""Take a measure of a finished run, and keep it in the run's folder."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

from study import records
from study.measures import MEASURES
from study.tables.kept import require_recipe
from torchcaps.checks import check_at_least, check_choice
from torchcaps.report import EvaluatedRun, evaluate_run
from torchcaps.training.environment import choose_device, commit, device_in_words, versions
from torchcaps.training.files import read_json, require_place, write_json, write_picture
from torchcaps.training.run import Run


def record(
    name: str,
    run: str | Path,
    *,
    beside: str | Path | None = None,
    n: int | None = None,
    root: str | Path | None = None,
    keep_in: str | Path | None = None,
) -> Path:
    """Write ``measures/<name>.json`` and a picture of the same name into the folder of a finished run.

    Beside another run it is ``<name>-beside-<recipe>-<seed>``, of that one: measures beside several are kept apart. One
    beside the same run takes the place of an earlier one, unless that was of more images.

    Args:
        name: one of :data:`~study.measures.MEASURES`.
        run: the run's folder.
        beside: folder of another run on the same data to compare it with, such as a CNN's.
        n: test images; the measure's own number by default.
        root: folder of the data files, where they are no longer where the runs found them.
        keep_in: folder to record the numbers in as well, in ``measures.jsonl`` as ``<recipe>-<seed>/<name>…``; None
            keeps them in the run's.

    Returns:
        The path of the JSON file: measure, values, n and seconds; recipe, seed, test error and commit of either run;
        device, versions and commit of the measurement.

    Raises:
        ValueError: an unknown measure, a folder without a finished run, runs that the measure does not apply to or
            whose folders have one name; such a measure is kept already, or there is one beside another folder or of
            more images; with ``keep_in`` a run of no recipe as it stands now. Nothing is written then, unless another
            process kept it meanwhile.
    """
    check_choice("measure", name, MEASURES)
    if n is not None:
        check_at_least("n", n, 1)
    folders = [Run(path) for path in (run, *([] if beside is None else [beside]))]
    results = [each.finished() for each in folders]
    several = [each.path for each in folders if each.experiment().data.multi_label]
    if several:
        raise ValueError(f"run must be of one label an image for a measure, got one of several: {several[0]}")
    named, *others_named = (f"{result['recipe']}-{result['seed']}" for result in results)
    file = Path("-beside-".join((name, *others_named)) + ".json")
    path = folders[0].path / "measures" / file
    names = [each.path.resolve().name for each in folders]
    if len(set(names)) < len(names):  # under which they stand in pictures and tables
        raise ValueError(f"beside must be a run in a folder of another name, got {' and '.join(map(str, names))}")
    _not_another(path, names[1:], MEASURES[name].n if n is None else n)
    require_place("run", path.parent)
    kept, key = None if keep_in is None else Path(keep_in).expanduser(), f"{named}/{file.stem}"
    if kept is not None:
        if key in records.every("measures", kept):
            raise ValueError(
                f"{records.place('measures', key, kept)} is kept already: remove that line to keep another"
            )
        for result in results:
            require_recipe(result["recipe"], result)  # else its numbers would stand under another experiment's name
        require_place("keep_in", kept)
    device = choose_device("auto")
    if device.type == "mps":  # which has no float64, in which probes are solved
        device = torch.device("cpu")
    tested, *others = (_moved(evaluate_run(each, root), device) for each in folders)
    other = others[0] if others else None
    code, started = commit() or "unknown", time.monotonic()  # the code that begins: it may change in the hours to come
    values = MEASURES[name].measure(tested, beside=other, n=n)
    content: dict[str, Any] = {
        "measure": name,
        "recipe": tested.result["recipe"],
        "seed": tested.result["seed"],
        "values": values,
        "n": values["n"],
        "device": device_in_words(device),
        "versions": versions(),
        "commit": code,
        "seconds": round(time.monotonic() - started, 1),
        "run": _of(tested),
        "beside": None if other is None else _of(other),
    }
    figure = MEASURES[name].draw(values, tested, other)
    _write(path, content, figure)
    if kept is not None:
        records.write("measures", key, content, kept)
    return path


def _not_another(path: Path, beside: list[str], n: int | None) -> None:
    """Runs of one recipe and seed may differ in their options; and a quick look is to take no long one's place."""
    if not path.is_file():
        return
    there = read_json(path, "beside", "n")
    if there["beside"] is not None and [there["beside"]["folder"]] != beside:
        raise ValueError(f"{path} is beside {there['beside']['folder']}, a run of the same recipe and seed: move it")
    before = there["n"][0] if isinstance(there["n"], list) else there["n"]  # the images that fit a probe come first
    if n is not None and n < before:
        raise ValueError(f"{path} is of {before} images: n must be as many, or move it; got {n}")


def _write(path: Path, content: dict[str, Any], figure: Any) -> None:
    """The picture first: where the numbers are, it is too."""
    write_picture(path.with_suffix(".png"), figure)
    write_json(path, content)


def _moved(tested: EvaluatedRun, device: Any) -> EvaluatedRun:
    """On the device where the measure is taken."""
    names = ("images", "labels", "parts", "predicted", "wrong")
    return tested._replace(model=tested.model.to(device), **{name: getattr(tested, name).to(device) for name in names})


def _of(tested: EvaluatedRun) -> dict[str, Any]:
    """Which run it was, and what is known of it already."""
    kept = {key: tested.result.get(key) for key in ("recipe", "seed", "test_error", "n_parameters", "epochs", "commit")}
    return {"folder": tested.run.path.resolve().name} | kept
