"""The head of a report: what was run, and the numbers that it came to."""

from __future__ import annotations

from typing import Any

from torchcaps.experiments.errors_in_words import further_errors, if_seen
from torchcaps.experiments.experiment import Experiment
from torchcaps.experiments.per_class import are_unequal
from torchcaps.experiments.run import Run
from torchcaps.experiments.saved import load_model
from torchcaps.experiments.smoke import is_smoke
from torchcaps.report import page


def headline(run: Run) -> str:
    """Title, one sentence, and the facts in boxes."""
    config, result = run.experiment(), run.finished()
    n_classes = len(load_model(run).classes)
    what = "pairs of overlapping images" if config.data.pairs else "images"
    seen = f" ({result['data']})" if "copies of training images" in result.get("data", "") else " that it never saw"
    on = f"{config.data.name} ({'without labels' if config.data.transformed else f'{n_classes} classes'})"
    epochs = f"{result['epochs']} epoch{'' if result['epochs'] == 1 else 's'}"
    text = (
        f"{config.model.name}, trained for {epochs} on {on}, measured on {what}{seen}. "
        f"Seed {result['seed']}, commit {_commit(result)}, on {result['device']}."
    )
    if is_smoke(config):
        text += " Two steps on eight images (--smoke) show that it runs; its numbers say nothing."
    facts = [
        *(_of_an_autoencoder(config, result) if config.data.transformed else _of_a_classifier(result)),
        ("parameters", f"{result['n_parameters']:,}"),
        ("training time", _time(result["seconds"])),
    ]
    return page.headline(run.path.resolve().name, text, facts)


def percent(fraction: float) -> str:
    """Such as "12.34 %"."""
    return f"{100 * fraction:.2f} %"


def _of_a_classifier(result: dict[str, Any]) -> list[tuple[str, str]]:
    further = [(text, percent(result[key])) for key, text in further_errors(result).items()]
    validation = (f"validation error{if_seen(result)}", percent(result["val_error"]))
    counts = result.get("images_per_class", {}).get("test")
    unequal = counts is not None and are_unequal(counts) and "test_error_balanced" in result
    balanced = [("balanced test error", percent(result["test_error_balanced"]))] if unequal else []
    return [("test error", percent(result["test_error"])), *balanced, *further, validation]


def _of_an_autoencoder(config: Experiment, result: dict[str, Any]) -> list[tuple[str, str]]:
    what = "squared error of an image" if not config.consistency else "loss: squared error and inconsistency"
    loss = (what, f"{result['test_loss']:.1f}")
    if "test_follows" not in result:
        return [loss]
    follows = [(f"R² of {name}", f"{found['r2']:.3f}") for name, found in result["test_follows"].items()]
    told = result["test_told"]
    return [*follows, loss, ("error, of that without T", "–" if told is None else percent(told))]


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _commit(result: dict[str, Any]) -> str:
    """Of each process that took part, oldest first."""
    commits = (result.get("commit") or "unknown").split()
    return ", ".join(commit[:10] + "-dirty" * commit.endswith("-dirty") for commit in commits)
