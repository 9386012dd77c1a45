"""``model.pt``: all that is needed to use a trained model, without its training data."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchcaps import __version__
from torchcaps.checks import check_choice
from torchcaps.data import DATASETS, Dataset, load
from torchcaps.layers import ROUTINGS
from torchcaps.layers.modes import eval_mode
from torchcaps.models import MODELS, Reconstruction, build, cards
from torchcaps.training import own_code
from torchcaps.training.batches import image_shape
from torchcaps.training.config import Experiment
from torchcaps.training.environment import in_float32, splits_in_words
from torchcaps.training.files import write_atomically, write_tensors
from torchcaps.training.run import Run, differing
from torchcaps.typed import typed
from torchcaps.types import as_output

#: Ends the name of a model or data set that was handed over as an object.
HANDED_OVER = " (handed over)"


class Trained(NamedTuple):
    """A trained model, ready to predict.

    Attributes:
        model: in evaluation mode, on the CPU.
        image_shape: (channels, height, width) of what it takes.
        classes: their names, in the order of its scores.
        uncropped: (height, width) of the images whose central windows it takes.
        data: which form and split of its data it was trained on, as ``Dataset.note`` has it.
        splits: how many images each split had then, with a checksum of their labels, by its name.
    """

    model: nn.Module
    image_shape: tuple[int, int, int]
    classes: tuple[str, ...]
    uncropped: tuple[int, int]
    data: str
    splits: dict[str, str]


def save_model(run: Run, model: nn.Module, config: Experiment, dataset: Dataset) -> None:
    """Write ``model.pt``: name, options, shapes, classes and the plain ``state_dict``.

    It holds nothing but numbers, texts and tensors, so that it loads with ``weights_only=True``.
    """
    content = {
        "model": config.model.name,
        "options": config.model.options,
        "image_shape": image_shape(config, dataset),
        "uncropped": (dataset.image_shape if config.data.crop else image_shape(config, dataset))[1:],
        "classes": dataset.classes,
        "data": dataset.note,
        "splits": splits_in_words(dataset),
        "torchcaps": __version__,
        "said": _says(model, image_shape(config, dataset)),
        "state_dict": {name: value.cpu() for name, value in model.state_dict().items()},
    }
    write_atomically(run.model, lambda path: write_tensors(path, content))


@typed
def load_model(run: Run | str | Path, model: nn.Module | None = None) -> Trained:
    """Load the trained model of a run, of its folder, or of a ``model.pt`` alone, wherever it lies.

    Args:
        run: a run, its folder, or the file; or ``"pretrained:mnist-small"``, the weights of this name that come with
            the library, see :func:`torchcaps.models.cards`.
        model: the network to put the weights into, for runs to which one was handed over; None builds what the file
            names.

    Raises:
        ValueError: there is none, it is broken, or it is the checkpoint of another model than the
            configuration in a run's folder says.
    """
    run = run if isinstance(run, Run) else Run(run)
    if run.pretrained is not None:
        return _load_pretrained(run.pretrained)
    path = run.path
    file = path if path.is_file() else path / "model.pt"
    if not file.is_file():
        what = "has no model.pt" if path.is_dir() else "is no folder"
        raise ValueError(f"{path} must hold a finished run, but it {what}")
    try:
        content = torch.load(file, weights_only=True, map_location="cpu")
        name, options, shape, classes, weights = (
            content[key] for key in ("model", "options", "image_shape", "classes", "state_dict")
        )
    except Exception as error:  # torch raises whatever the broken bytes lead it to
        raise ValueError(f"{file} is not a whole model.pt: {error}") from error
    if file != path:
        folder = Run(path)
        wanted = folder.experiment().model
        for what, mine, theirs in (("model", wanted.name, name), ("options", wanted.options, options)):
            if differing({what: theirs}, {what: mine}):
                raise ValueError(f"{file} must hold the {what} {mine} as {folder.config} says, got {theirs}")
    with in_float32(), torch.device("cpu"):  # as it was trained, whatever torch's defaults are here
        try:
            model = build(name, shape, len(classes), **_without_downloads(options)) if model is None else model
        except (TypeError, ValueError) as error:
            advice = _of_ones_own(name, options) + own_code.advice(file.parent)
            raise ValueError(f"{file} names a model that cannot be built: {error}{advice}") from error
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise ValueError(f"{file} does not fit the {name} that it names: {error}") from error
    _note_what_is_computed_otherwise(file, model, content)
    # Models that were saved by older versions lack what these did not know.
    uncropped, note, splits = tuple(content.get("uncropped", shape[1:])), content.get("data", ""), content.get("splits")
    return Trained(model.eval(), tuple(shape), tuple(map(str, classes)), uncropped, note, splits or {})


def _load_pretrained(name: str) -> Trained:
    check_choice("pretrained", name, cards())
    card = cards()[name]
    model = build(card.model, card.image_shape, len(card.classes) or None, pretrained=name)
    note = card.data.partition(": ")[2]
    return Trained(model.eval(), card.image_shape, card.classes, card.uncropped, note, {})


def _without_downloads(options: dict[str, Any]) -> dict[str, Any]:
    """Leave out weights that a backbone would download: those of the file take their place."""
    return {name: value for name, value in options.items() if name != "pretrained"}


def _of_ones_own(name: str, options: dict[str, Any]) -> str:
    """Return what is to be done before a model is loaded that this library alone does not know."""
    if name.endswith(HANDED_OVER):
        return ". It was handed over to train: hand it over again, load_model(run, model)"
    if name not in MODELS:
        return ". One of your own is entered in torchcaps.models.MODELS first"
    if options.get("routing", "dynamic") not in ROUTINGS:
        return ". A routing of your own is entered in torchcaps.layers.ROUTINGS first"
    return ""


def _note_what_is_computed_otherwise(file: Path, model: nn.Module, content: dict[str, Any]) -> None:
    """Weights may fit another version of a model whose constants or defaults are others by now."""
    before = content.get("said")
    if before is None:
        return
    near = 1e-3 * before.abs().max().item()  # far above the rounding of other processors
    if not torch.allclose(_says(model, content["image_shape"]), before, rtol=0, atol=near, equal_nan=True):
        logging.getLogger("torchcaps").warning(
            "%s computes otherwise than when it was saved, by torchcaps %s (this is %s): its errors may be others",
            file, content["torchcaps"], __version__,
        )  # fmt: skip


@torch.no_grad()
def _says(model: nn.Module, shape: Sequence[int]) -> Tensor:
    """Return what the model makes of one image, from black to white."""
    with eval_mode(model):
        weight = next(model.parameters())
        image = torch.linspace(0, 1, math.prod(shape), dtype=weight.dtype, device=weight.device).view(1, *shape)
        output = as_output(model(image))
    return (output.images if isinstance(output, Reconstruction) else output.scores).float().cpu()


def data_for(config: Experiment, trained: Trained, folder: Path | None = None) -> Dataset:
    """Load the run's data, once it is known to be what the model was trained on.

    Images that came or went since, as in a folder of one's own, are named in a warning.

    Raises:
        ValueError: the data cannot be loaded, or have other classes, sizes or splits by now.
    """
    if config.data.name.endswith(HANDED_OVER):
        raise ValueError(f"data must be named to be loaded again, got {config.data.name}: train was given an object")
    if config.data.name not in DATASETS:
        advice = own_code.advice(folder) if folder is not None else ""
        raise ValueError(f"data.name must be one of {', '.join(DATASETS)}, got {config.data.name!r}{advice}")
    dataset = load(config.data.name, config.data.root, config.data.image_size, **config.data.options)
    if dataset.classes != trained.classes:
        raise ValueError(f"the data must have the model's classes {list(trained.classes)}, got {list(dataset.classes)}")
    if image_shape(config, dataset) != trained.image_shape:
        raise ValueError(
            f"the data must have the model's image shape {trained.image_shape}, got {image_shape(config, dataset)}"
        )
    of_folder = config.data.name == "folder"  # whose note counts copies too, which come and go with its images
    notes = {note.partition(";")[0] if of_folder else note for note in (trained.data, dataset.note)}
    if len(notes) > 1:  # else it might be tested on what it was trained on
        raise ValueError(f"the data must be those of the model ({trained.data}), got {dataset.note}")
    now = splits_in_words(dataset)
    then = trained.splits.items()
    changed = [f"{name}: {before}, now {now.get(name, 'gone')}" for name, before in then if before != now.get(name)]
    if changed:
        logging.getLogger("torchcaps").warning(
            "the data are not as they were when the model was trained (%s): its errors may be others",
            "; ".join(changed),
        )
    return dataset
