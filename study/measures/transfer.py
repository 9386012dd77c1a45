"""Features of one data set on another: what a linear probe reads off a frozen network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from study.analysis import LinearProbe, logistic
from study.analysis.probes import choose
from study.draw.charts import Bars, draw_charts
from study.measures.said import Said, per_cent
from study.measures.sample import bar, name_of, networks, number, spaced
from torchcaps import explain
from torchcaps.data import Dataset, Images, load
from torchcaps.data.images import to_float
from torchcaps.models import build
from torchcaps.report import EvaluatedRun
from torchcaps.training.batches import image_shape

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: What a network that was trained on one is probed on.
OTHER = {"mnist": "fashion-mnist", "fashion-mnist": "mnist", "digits": "mnist"}
#: Images that fit the probe, choose its penalty, and test it.
SIZES = (5000, 1000, 2000)


def measure(tested: EvaluatedRun, *, beside: EvaluatedRun | None = None, n: int | None = None) -> dict[str, Any]:
    """Fit a multinomial logistic probe to each network's features of images of other things.

    Args:
        tested: the run, on one of :data:`OTHER`. The other data are looked for in a folder of their name beside the
            run's own, then downloaded.
        beside: another on the same data, such as a CNN.
        n: images that fit the probe, 5,000 by default; a fifth as many choose it, two fifths test it.

    Returns:
        ``to``, the other data; accuracies there of the probe on ``pixels``, and for "run" and "beside" on its
        ``trained`` features and on those of the same network ``untrained``; their ``n_features``.

    Raises:
        ValueError: a run on pairs or on other data, runs on different images, or files that cannot be loaded.
    """
    every = networks(tested, beside)
    data = tested.config.data
    if data.pairs or data.crop or data.name not in OTHER:
        raise ValueError(f"run must be of whole images of one of {', '.join(OTHER)}, got {tested.run.path}")
    other = _load_beside(data.root, OTHER[data.name], data.image_size)
    sizes = SIZES if n is None else (len(spaced(len(other.train), n, n)), max(1, n // 5), max(1, 2 * n // 5))
    splits = _images(other, sizes, tested.images.device)
    classes = int(max(labels.max() for _, labels in splits)) + 1
    values: dict[str, Any] = {"to": OTHER[data.name], "n": [len(labels) for _, labels in splits]}
    values["pixels"] = _accuracy(lambda x: x.flatten(1), splits, classes)
    for part, each in every.items():
        born = _untrained(each)
        found = {}
        for what, model in bar({"trained": each.model, "untrained": born}.items(), f"{name_of(each)}: transfer"):
            found[what] = _accuracy(
                lambda x, model=model: explain.extract_features(model, x).features.flatten(1), splits, classes
            )
        found["n_features"] = explain.extract_features(each.model, splits[0][0][:1]).features.flatten(1).shape[1]
        values[part] = found
    return values


def _load_beside(root: str | None, name: str, image_size: tuple[int, int] | None) -> Dataset:
    """The data in ``name`` beside the folder ``root``, else from the cache."""
    folder = None if root is None else Path(root).resolve().parent / name
    return load(name, folder if folder is not None and folder.is_dir() else None, image_size)


def _images(dataset: Dataset, sizes: tuple[int, int, int], device: torch.device) -> list[tuple[Tensor, Tensor]]:
    """Images and classes that fit, choose and test."""
    sources: tuple[Images, ...] = (dataset.train, dataset.val, dataset.test)
    some = [source.take(spaced(len(source), None, size)) for source, size in zip(sources, sizes, strict=True)]
    return [(to_float(part.images).to(device), part.labels.to(device)) for part in some]


def _untrained(tested: EvaluatedRun) -> nn.Module:
    """Return the same architecture with the initial weights of the run: its seed draws them."""
    model = tested.config.model
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(tested.config.seed)
        born = build(model.name, image_shape(tested.config, tested.data), len(tested.classes), **model.options)
    return born.to(tested.images.device)


def _accuracy(features: Any, splits: list[tuple[Tensor, Tensor]], n_classes: int) -> float | None:
    """On the last split, of a probe fitted on the first, whose penalty was chosen on the second."""
    (x, y), (x_choose, y_choose), (x_test, y_test) = ((features(images), labels) for images, labels in splits)

    def right(probe: LinearProbe, seen: Tensor, true: Tensor) -> float:
        return float((probe(seen).argmax(dim=1) == true).float().mean())

    probe = choose(lambda penalty: logistic(x, y, n_classes, penalty), lambda p: right(p, x_choose, y_choose))
    return number(right(probe, x_test, y_test))


def headline(values: dict[str, Any], part: str) -> dict[str, Said]:
    """What to read first."""
    return {
        f"features: accuracy on {values['to']}": per_cent(values[part]["trained"], 2),
        "numbers in the features": Said(str(values[part]["n_features"])),
        "the same network untrained": per_cent(values[part]["untrained"], 2),
        "pixels": per_cent(values["pixels"], 2),
    }


def draw(values: dict[str, Any], tested: EvaluatedRun, beside: EvaluatedRun | None = None) -> Figure:
    """Bars of accuracy: trained, untrained, pixels."""
    bars = {
        name_of(each): [values[part]["trained"], values[part]["untrained"], None]
        for part, each in networks(tested, beside).items()
    }
    bars["pixels"] = [None, None, values["pixels"]]
    title = f"{values['to']}: accuracy of a linear probe"
    return draw_charts([Bars(title, ("trained", "untrained", "no network"), bars)])
