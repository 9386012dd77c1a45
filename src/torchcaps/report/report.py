"""Write ``report.html``: what a finished run has learned, in numbers and pictures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchcaps import explain
from torchcaps.models.baselines import count_parameters
from torchcaps.report import page
from torchcaps.report.autoencoders import pictures_of_autoencoder
from torchcaps.report.capsnet import pictures, pictures_of_pairs
from torchcaps.report.evaluated import evaluate_run
from torchcaps.report.page import Album
from torchcaps.report.segmentation import pictures_of_segmentation
from torchcaps.training.checkpoint import load_model
from torchcaps.training.config import Experiment, is_smoke
from torchcaps.training.errors_in_words import further_errors, if_seen
from torchcaps.training.files import write_text
from torchcaps.training.per_class import are_unequal
from torchcaps.training.run import Run
from torchcaps.training.tasks import OverlappingPairs
from torchcaps.typed import typed


@typed
def write_report(run_path: str | Path, beside: Sequence[str | Path] = (), root: str | Path | None = None) -> Path:
    """Write ``report.html`` and ``pictures/*.png`` into the folder of a finished run.

    The page embeds its pictures. Examples are the first ones of the test split, so the same run gives the same report.

    Args:
        run_path: the run's folder.
        beside: folders of runs to compare it with, such as a CNN of equal size. Runs on pairs show their segmentation
            too.
        root: folder of the run's data files, if they have moved since training; it also serves those runs of
            ``beside`` that use the same data.

    Returns:
        The path of ``report.html``.

    Raises:
        ValueError: a folder holds no finished run, or a trial; two folders share a name; or data cannot be loaded.
    """
    run, others = Run(run_path), [Run(path) for path in beside]
    names = [_name(each) for each in (run, *others)]
    if len(set(names)) < len(names):  # curves and tables name runs by it
        raise ValueError(f"beside must be runs in folders of other names, got {', '.join(names)}")
    results = [(each, each.finished()) for each in (run, *others)]
    body = [headline(run)]
    if others:
        body.append(_comparison(results))
    album = Album(run)
    body.append(_curves(album, results))
    data = run.experiment().data
    if data.task.segments:
        body += pictures_of_segmentation(album, run, root)
    elif data.task.classifies:
        body += pictures(album, evaluate_run(run, root))
    else:
        body += pictures_of_autoencoder(album, run, root)
    for other in others:
        if _is_of_pairs(other) and not _is_of_pairs(run):
            same = other.experiment().data.name == data.name
            seen = evaluate_run(other, root if same else None)
            body += pictures_of_pairs(album, seen, f" ({_name(other)})", f"{_name(other)}-")
    body.append(page.section("How it was made", *_origin(results[0][1])))
    html = page.page(f"torchcaps: {_name(run)}", body)
    write_text(run.report, html)
    return run.report


def headline(run: Run) -> str:
    """Build the title, one sentence, and the facts in boxes."""
    config, result = run.experiment(), run.finished()
    n_classes = len(load_model(run).classes)
    task = config.data.task
    seen = f" ({result['data']})" if "copies of training images" in result.get("data", "") else " held out of training"
    classes = "1 class" if n_classes == 1 else f"{n_classes} classes"
    on = f"{config.data.name} ({classes if task.classifies or task.segments else 'without labels'})"
    epochs = f"{result['epochs']} epoch{'' if result['epochs'] == 1 else 's'}"
    text = (
        f"{config.model.name}, trained for {epochs} on {on}, evaluated on {task.shown}{seen}. "
        f"Seed {result['seed']}, commit {_commit(result)}, on {result['device']}."
    )
    if is_smoke(config):
        text += " This is a smoke test (--smoke): two steps on eight images, whose numbers mean nothing."
    facts = [
        *_facts(config, result),
        ("parameters", f"{result['n_parameters']:,}"),
        ("training time", _time(result["seconds"])),
    ]
    return page.headline(run.path.resolve().name, text, facts)


def _facts(config: Experiment, result: dict[str, Any]) -> list[tuple[str, str]]:
    task = config.data.task
    if task.segments:
        validation = f"validation Dice score{if_seen(result)}"
        return [("test Dice score", f"{result['test_dice']:.4f}"), (validation, f"{result['val_dice']:.4f}")]
    return _classifier_facts(result) if task.classifies else _autoencoder_facts(config, result)


def percent(fraction: float) -> str:
    """Format a fraction, such as "12.34 %"."""
    return f"{100 * fraction:.2f} %"


def _classifier_facts(result: dict[str, Any]) -> list[tuple[str, str]]:
    further = [(text, percent(result[key])) for key, text in further_errors(result).items()]
    validation = (f"validation error{if_seen(result)}", percent(result["val_error"]))
    error = ("test error", percent(result["test_error"]))
    if result.get("test_f1") is not None:
        labels = [("mean F1 of the labels", f"{result['test_f1']:.3f}"), *_auc(result)]
        return [
            *labels,
            ("images with a label missed or too many", percent(result["test_error"])),
            *further,
            validation,
        ]
    counts = result.get("images_per_class", {}).get("test")
    unequal = counts is not None and are_unequal(counts) and "test_error_balanced" in result
    balanced = [("balanced test error", percent(result["test_error_balanced"])), *_auc(result)] if unequal else []
    return [error, *balanced, *further, validation]


def _auc(result: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the mean AUC, of results that have it."""
    return [] if result.get("test_auc_macro") is None else [("mean AUC", f"{result['test_auc_macro']:.3f}")]


def _autoencoder_facts(config: Experiment, result: dict[str, Any]) -> list[tuple[str, str]]:
    what = "squared error of an image" if not config.consistency else "loss: squared error and inconsistency"
    loss = (what, f"{result['test_loss']:.1f}")
    if "test_follows" not in result:
        return [loss]
    follows = [(f"R² of {name}", f"{found['r2']:.3f}") for name, found in result["test_follows"].items()]
    consistency = result["test_consistency"]
    return [
        *follows,
        loss,
        ("consistency error, of that with T ignored", "–" if consistency is None else percent(consistency)),
    ]


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _commit(result: dict[str, Any]) -> str:
    """Format the commits of all processes that took part, oldest first."""
    commits = (result.get("commit") or "unknown").split()
    return ", ".join(commit[:10] + "-dirty" * commit.endswith("-dirty") for commit in commits)


def _name(run: Run) -> str:
    """Return the folder's name, which tells seeds of one recipe apart."""
    return run.path.resolve().name


def _is_of_pairs(run: Run) -> bool:
    return isinstance(run.experiment().data.task, OverlappingPairs)


def _comparison(results: Sequence[tuple[Run, dict[str, Any]]]) -> str:
    rows, tested = [], set[str]()
    for run, result in results:
        trained = load_model(run)
        model = trained.model
        if "test" in trained.splits:
            n, of = result.get("images", {}).get("test"), trained.splits["test"]  # older versions counted none
            tested.add(of if n is None or of.startswith(f"{n:,} images") else f"{n:,} of {of}")
        decoder = getattr(model, "decoder", None)
        n = count_parameters(model)
        rows.append(
            (
                f"{_name(run)} ({result['config']['model']['name']})",
                *(_measure(result, split) for split in ("test", "val")),
                f"{n - (count_parameters(decoder) if decoder is not None else 0):,}",
                f"{n:,}",
                f"{result['seconds']:,.0f}",
                result["device"],
            )
        )
    segments = all("test_dice" in result for _, result in results)
    measure, part = ("Dice score", "segmentation") if segments else ("error", "classification")
    head = ("run", f"test {measure}", f"validation {measure}", "parameters", "with decoder", "seconds", "device")
    text = (
        f"The same metrics for each run. The decoder takes no part in {part}, so compare sizes by the parameters "
        "without it."
    )
    text += "" if segments else " A prediction for a pair is wrong unless both classes are correct."
    if len(tested) > 1:
        text += f" Their test images differ: {'; '.join(sorted(tested))}."
    return page.section("Side by side", page.paragraph(text), page.table(head, rows))


def _measure(result: dict[str, Any], split: str) -> str:
    """Format the error, or the Dice score where there are masks."""
    if f"{split}_dice" in result:
        return f"{result[f'{split}_dice']:.4f}" + (if_seen(result) if split == "val" else "")
    if f"{split}_error" not in result:
        return "–"
    return percent(result[f"{split}_error"]) + (if_seen(result) if split == "val" else "")


def _curves(album: Album, results: Sequence[tuple[Run, dict[str, Any]]]) -> str:
    runs = [run for run, _ in results]
    figure = explain.draw_curves(
        {f"{_name(run)}{if_seen(result)}": explain.read_metrics(run.metrics) for run, result in results}
    )
    seen = any(if_seen(result) for _, result in results)
    measure = "Dice scores" if all("test_dice" in result for _, result in results) else "errors"
    alike = not seen and len(set(map(_is_of_pairs, runs))) == 1
    text = (
        "Training, epoch by epoch. "
        + (
            "These validation images were trained on too, so they do not measure generalization. "
            if seen
            else "Where the training loss keeps falling and the validation loss does not, the network overfits. "
        )
        + f"Different kinds of network have losses on different scales{'; their {measure} are comparable' * alike}."
    )
    if any(run.experiment().loss == "spread" for run in runs):
        text += (
            " The margin of the spread loss grows during training, so the training loss may rise; the validation loss "
            "uses the final margin throughout."
        )
    return page.section("Training", album.add("curves", figure, text))


def _origin(result: dict[str, Any]) -> list[str]:
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    config = json.dumps(result["config"], indent=2)
    data = [page.paragraph(f"Data: {result['data']}.")] if result.get("data") else []
    return [
        *data,
        page.paragraph(f"Commit {result.get('commit') or 'unknown'}; {versions}."),
        page.fold("Configuration", page.preformatted(config)),
    ]
