"""The experiment: one auto-encoder's poses beside everything else, on the same few labels."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from study.few_labels.codes import Codes, model_codes, pixel_codes
from study.few_labels.draws import draw_labelled
from study.few_labels.finished import Finished
from study.few_labels.readouts import N_NEIGHBOURS, READOUTS, Draw, Readout, one_by_one
from study.few_labels.supervised import NETWORKS, classes_of, train_on_few
from torchcaps.data import Dataset, Images
from torchcaps.data.augment import central_crop
from torchcaps.training.checkpoint import Trained, data_for, load_model
from torchcaps.training.config import Experiment
from torchcaps.training.environment import versions
from torchcaps.training.run import Run, with_data_in


@dataclass(frozen=True)
class Settings:
    """What is compared.

    Attributes:
        labels: numbers of labelled examples.
        draws: how often they are drawn; the same draws for all.
        n_unlabelled: training images that read-outs are fitted to, the labelled ones among them; None for all. The
            auto-encoders were trained on all that their runs say.
        steps: of the supervised networks, at least; 0 leaves them out.

    Raises:
        ValueError: nothing to do.
    """

    labels: tuple[int, ...] = (10, 25, 50, 100, 1000)
    draws: int = 10
    n_unlabelled: int | None = None
    steps: int = 100

    def __post_init__(self) -> None:
        unlabelled = 1 if self.n_unlabelled is None else self.n_unlabelled
        if not self.labels or self.draws < 1 or self.steps < 0 or unlabelled < 1:
            raise ValueError(
                f"labels, draws and unlabelled images must be at least one, steps not negative; got {self}"
            )


def compare(
    run: Run,
    beside: Sequence[Run],
    settings: Settings,
    finished: Finished,
    root: str | Path | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Measure every kind of code with every read-out, and the supervised networks.

    Args:
        run: a finished run of an auto-encoder; its data are used.
        beside: further ones on the same data, such as a plain auto-encoder's.
        settings: what is compared.
        finished: rows that need not be measured again, and where new ones are kept.
        root: folder of the data files, where they are no longer where the run found them.
        say: called with of each row when it is done.

    Returns:
        what ``few-labels.json`` holds: ``rows`` of code, read-out and, for every number of labels, mean validation
        error, mean test error, its standard deviation over the draws, and the test errors of all draws.

    Raises:
        ValueError: a run is no auto-encoder's, or the data do not fit.
    """
    config = with_data_in(run.experiment(), root)
    trained = load_model(run)
    dataset = data_for(config, trained)
    if not dataset.held_out:
        raise ValueError(f"{run.path} must have validation images that it was not trained on, to choose rows by")
    others = {each.path.resolve().name: load_model(each) for each in beside}
    if len({run.path.resolve().name, *others}) != 1 + len(beside):
        raise ValueError(
            f"beside must be runs in folders of other names, got {', '.join(str(each.path) for each in beside)}"
        )
    for each in beside:
        _require_same_data(each, others[each.path.resolve().name], config, trained)
    train, val, test = _images(dataset, config.data.crop, settings.n_unlabelled)
    if len(train) <= N_NEIGHBOURS:
        raise ValueError(f"n_unlabelled must leave more than {N_NEIGHBOURS} images to train on, got {len(train)}")
    draws = {
        n: [draw_labelled(train.labels, n, len(dataset.classes), seed) for seed in range(settings.draws)]
        for n in settings.labels
    }
    splits = (train.images, val.images, test.images)
    codes = pixel_codes(splits)
    for name, each in (*others.items(), (run.path.resolve().name, trained)):
        codes += model_codes(name, each.model, splits)
    for code, readout, make in _methods(codes, train, splits, len(dataset.classes), settings.steps):
        if finished.has(code, readout):
            say(f"{code}, {readout}: was finished before")
            continue
        began = time.monotonic()
        errors = _errors(make(), draws, train.labels, val.labels, test.labels)
        finished.add({"code": code, "readout": readout, "errors": errors}, time.monotonic() - began)
        say(f"{code}, {readout}: " + ", ".join(f"{n} labels {e['test_error']:.2%}" for n, e in errors.items()))
    return {
        "run": run.path.resolve().name,
        "recipe": config.recipe,
        "seed": config.seed,
        "config": replace(run.experiment(), data=replace(config.data, root=None)).to_dict(),
        "trained": trained_as(run, beside),
        "data": config.data.name,
        "n_unlabelled": len(train),
        "draws": settings.draws,
        "steps": settings.steps,
        "rows": finished.rows,
        "seconds": round(finished.seconds, 1),
        "device": "; ".join(finished.devices),
        "versions": versions(),
        "commit": " ".join(finished.commits),
    }


def trained_as(run: Run, beside: Sequence[Run]) -> list[dict[str, Any]]:
    """Which trainings stand behind the codes."""
    results = (each.finished() for each in (run, *beside))
    return [{key: result[key] for key in ("recipe", "seed", "epochs", "commit")} for result in results]


def _require_same_data(run: Run, trained: Trained, config: Experiment, wanted: Trained) -> None:
    """See that a run was trained on the same images: else it might be tested on what it was trained on.

    Raises:
        ValueError: it was not.
    """

    def of(each: Experiment, model: Trained) -> tuple[object, ...]:
        return each.data.name, each.data.options, each.data.crop, each.data.image_size, model.data, model.classes

    both = trained.splits.get("test"), wanted.splits.get("test")  # not in models of older versions
    if of(run.experiment(), trained) != of(config, wanted) or (None not in both and both[0] != both[1]):
        raise ValueError(
            f"beside must be runs on the same data, {(*of(config, wanted), both[1])}; got {run.path}, on "
            f"{(*of(run.experiment(), trained), both[0])}"
        )


def _images(dataset: Dataset, crop: tuple[int, int] | None, n: int | None) -> tuple[Images, Images, Images]:
    """What a model sees of each split when nothing is transformed."""
    parts = (dataset.train if n is None else dataset.train.take(slice(n)), dataset.val, dataset.test)
    train, val, test = (Images(central_crop(p.images, crop), p.labels) if crop else p for p in parts)
    return train, val, test


def _methods(
    codes: Sequence[Codes], train: Images, splits: tuple[Tensor, Tensor, Tensor], n_classes: int, steps: int
) -> Iterator[tuple[str, str, Callable[[], Readout]]]:
    """Names of code and read-out, and what fits it."""
    for code in codes:
        for name, readout in READOUTS.items():
            if code.name != "pixels" or name == "nearest labelled":  # the others take fewer dimensions
                yield code.name, name, partial(readout, code, n_classes)
    for name in NETWORKS if steps else ():
        yield "none: labelled images alone", name, partial(_network, name, train, splits, n_classes, steps)


def _network(name: str, train: Images, splits: tuple[Tensor, Tensor, Tensor], n_classes: int, steps: int) -> Readout:
    def classes(draw: Draw) -> tuple[Tensor, Tensor]:
        index, labels = draw
        labelled = Images(train.images[index], labels)
        model = train_on_few(name, labelled, n_classes, steps, seed=int(index.sum()))
        return classes_of(model, splits[1]), classes_of(model, splits[2])

    return one_by_one(classes)


def _errors(
    ask: Readout, draws: dict[int, list[Tensor]], train: Tensor, val: Tensor, test: Tensor
) -> dict[str, dict[str, Any]]:
    found = {}
    for n, places in draws.items():
        answers = ask([(index, train[index]) for index in places])
        on_val, on_test = (
            [(answer[k] != true).float().mean().item() for answer in answers] for k, true in enumerate((val, test))
        )
        found[str(n)] = {
            "val_error": statistics.mean(on_val),
            "test_error": statistics.mean(on_test),
            "test_std": statistics.stdev(on_test) if len(on_test) > 1 else None,
            "test_errors": on_test,
        }
    return found
