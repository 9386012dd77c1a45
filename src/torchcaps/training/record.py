"""What a finished training came to: ``result.json``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torchcaps.data import Dataset
from torchcaps.models.baselines import count_parameters
from torchcaps.training.batches import Batches
from torchcaps.training.config import Experiment
from torchcaps.training.environment import versions
from torchcaps.training.files import write_json
from torchcaps.training.fit import Fitted
from torchcaps.training.more_epochs import as_in_one_go
from torchcaps.training.objective import evaluate
from torchcaps.training.per_class import count_classes
from torchcaps.training.run import Run
from torchcaps.training.session import Session


def record(session: Session, run: Run, fitted: Fitted, *, progress: bool) -> dict[str, Any]:
    """Evaluate the trained model on its splits, and write ``result.json``; returns its content."""
    config, dataset, batches, model = session.config, session.dataset, session.batches, session.model
    metrics = fitted.metrics
    model.to(session.device)
    tested = ["val"] if config.trial else [name for name in dataset.splits if name != "train"]
    world = session.world
    asked = {"classes": dataset.classes, "progress": progress and world.first, "loss": session.given.loss}
    scores = {name: evaluate(config, model, batches[name], **asked, world=world) for name in tested}
    for name in tested:
        scores[name] |= config.data.task.metrics(model.eval(), batches[name], world)
    result = {
        "recipe": config.recipe,
        "seed": config.seed,
        **{f"{split}_{name}": value for split in tested for name, value in scores[split].items()},
        "epochs": metrics.rows[-1]["epoch"],  # fewer than config's where stop_at ended it
        "kept_epoch": fitted.best.epoch if fitted.best else metrics.rows[-1]["epoch"],  # whose weights model.pt has
        "steps": fitted.steps,
        **({"went_on_from": metrics.befores, "as_in_one_go": as_in_one_go(config)} if metrics.befores else {}),
        "seconds": round(metrics.elapsed(), 1),
        "data": dataset.note,
        "held_out": dataset.held_out,
        "images": {name: len(each.source) for name, each in batches.items()},
        **_of_each_class(config, dataset, batches),
        **session.given.in_words(),
        "n_parameters": count_parameters(model),
        # Of every process that took part: a run may be resumed elsewhere, by other code than it was begun with.
        "device": "; ".join(metrics.devices),
        **({"processes": world.size} if world.size > 1 else {}),
        "versions": versions(),
        "commit": " ".join(metrics.commits),
        # Where the files lay says nothing about the result.
        "config": replace(config, data=replace(config.data, root=None)).to_dict(),
    }
    return world.decided(lambda: _written(run, result))


def _written(run: Run, result: dict[str, Any]) -> dict[str, Any]:
    write_json(run.result, result)
    return result


def _of_each_class(config: Experiment, dataset: Dataset, batches: dict[str, Batches]) -> dict[str, Any]:
    """Count the images of each class that a network was trained, validated and tested on."""
    if not (config.data.task.one_class or config.data.multi_label or config.data.masks):
        return {}
    return {
        "images_per_class": {
            name: count_classes(each.source.shown(), dataset.classes)
            for name, each in batches.items()
            if name == "train" or not config.trial or name == "val"
        }
    }
