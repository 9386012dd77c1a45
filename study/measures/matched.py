"""Viewpoints never trained on, of two networks that are as good on familiar ones.

The better one on validation images, which are all of familiar viewpoints, is trained again, and stopped as soon as it
is as good as the other: only then does an error on novel viewpoints say something of how well viewpoints are
generalised over. It is looked at ten times an epoch: in a whole one it may leave the other far behind.
"""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from study.draw.charts import Bars, draw_charts
from study.measures.said import Said, per_cent
from study.measures.sample import name_of, networks, number
from torchcaps.report import EvaluatedRun
from torchcaps.training.train import train

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Rows of metrics have been through float32.
_ROUNDING = 5e-7
_ERRORS = ("val_error", "test_error", "novel_error")
#: Validations in each epoch of the training that is stopped by them.
LOOKS = 10


def measure(tested: EvaluatedRun, *, beside: EvaluatedRun | None = None, n: int | None = None) -> dict[str, Any]:
    """Train the better run again, up to the other's validation error, in a folder within its own.

    Args:
        tested: the run, on data with a split by viewpoint.
        beside: another on the same data, such as a CNN; there must be one.
        n: None: all images are taken.

    Returns:
        For "run" and "beside": validation error ("val_error"), error on familiar ("test_error") and on novel viewpoints
        ("novel_error"), as the runs are and as "matched"; which was trained again as "again" (None if they are equal),
        the ``epochs`` of the better one then, a tenth of one at the least, and the device which it was ``trained_on``.

    Raises:
        ValueError: no other run, runs on other images or without novel viewpoints, or a number of images.
    """
    if beside is None:
        raise ValueError("beside must be another run, to be matched with; got None")
    if n is not None:
        raise ValueError(f"n must be None for matched, which takes all images; got {n}")
    every = networks(tested, beside)
    for each in every.values():
        if "novel_error" not in each.result:
            raise ValueError(f"{each.run.path} must be on data split by viewpoint, got a run without novel viewpoints")
    if tested.data.note != beside.data.note:
        raise ValueError(f"beside must be a run with the same split, {tested.data.note}; got {beside.data.note}")
    values: dict[str, Any] = {part: {"whole": _errors(each.result)} for part, each in every.items()}
    validation = {part: each.result["val_error"] for part, each in every.items()}
    better, worse = sorted(every, key=lambda part: validation[part])
    values[worse]["matched"] = values[worse]["whole"]
    again = None if validation[better] == validation[worse] else better
    whole = every[better].result
    result = whole if again is None else _train_again(every[better], validation[worse])
    values[better]["matched"] = _errors(result)
    epochs = result["steps"] * whole["epochs"] / whole["steps"]
    return values | {
        "n": len(tested.images),
        "again": again,
        "epochs": round(epochs, 3),
        "trained_on": result["device"],
    }


def _train_again(tested: EvaluatedRun, until: float) -> dict[str, Any]:
    """For as many steps under the same schedule, in epochs that are a tenth as long."""
    config = tested.config
    in_an_epoch = tested.result["steps"] // tested.result["epochs"]
    steps = in_an_epoch * config.epochs  # all that the schedule was made for, though the run may have ended before
    each = max(1, in_an_epoch // LOOKS)
    config = replace(
        config,
        data=replace(config.data, n_shown=each * config.batch_size),
        epochs=math.ceil(steps / each),
        stop_at=until,
        device="auto",
    )
    folder = tested.run.path / f"matched-at-{until}-by-tenths"
    return train(config, folder, progress="bar" if sys.stderr.isatty() else "lines")


def _errors(result: dict[str, Any]) -> dict[str, float | None]:
    return {name: number(result[name]) for name in _ERRORS}


def _met(values: dict[str, Any]) -> str:
    """Say whether training again came down to the other's validation error; else the pair is not matched."""
    again = values["again"]
    if again is None:
        return "yes"
    other = "beside" if again == "run" else "run"
    got, wanted = values[again]["matched"]["val_error"], values[other]["matched"]["val_error"]
    return "yes" if got <= wanted + _ROUNDING else f"no: {100 * got:.2f} % instead of {100 * wanted:.2f} %"


def headline(values: dict[str, Any], part: str) -> dict[str, Said]:
    """What to read first."""
    words = ("validation error, matched", "familiar viewpoints: error, matched", "novel viewpoints: error, matched")
    said = {text: per_cent(values[part]["matched"][name]) for text, name in zip(words, _ERRORS, strict=True)}
    said["at one validation error"] = Said(_met(values))
    return said | {"novel viewpoints: error, each trained to its end": per_cent(values[part]["whole"]["novel_error"])}


def draw(values: dict[str, Any], tested: EvaluatedRun, beside: EvaluatedRun | None = None) -> Figure:
    """Bars of errors: trained to the end, and matched."""
    kinds = {
        "whole": "Errors, each trained to its end",
        "matched": "Errors, matched on validation",
    }
    charts = []
    for kind, title in kinds.items():
        bars = {
            name_of(each): [values[part][kind][name] for name in _ERRORS]
            for part, each in networks(tested, beside).items()
        }
        charts.append(Bars(title, ("validation", "familiar", "novel"), bars))
    return draw_charts(charts)
