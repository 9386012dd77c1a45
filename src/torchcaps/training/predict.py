"""What a trained model sees in image files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from torchcaps.checks import check_at_least
from torchcaps.data.augment import central_crop
from torchcaps.data.folder import read_image
from torchcaps.data.images import to_float
from torchcaps.training.checkpoint import Trained, load_model
from torchcaps.training.logits import are_logits
from torchcaps.training.run import Run
from torchcaps.training.tasks import Classification
from torchcaps.typed import typed
from torchcaps.types import as_output

#: Images that the network sees together: however many files there are, memory is that of these.
_AT_ONCE = 64
#: Classes with their probabilities, most probable first.
Named = list[tuple[str, float]]


@typed
def predict(
    run: Run | str | Path, paths: Sequence[str | Path], *, invert: bool = False, top: int = 3
) -> dict[str, Named]:
    """Predict the most probable classes of each image.

    Args:
        run: a finished run, its folder, or "pretrained:mnist-small", weights that come with the library.
        paths: image files of any size; they are resized to the size of the images it was trained on, of which
            it takes the central window if it was trained on crops. A model of two eyes sees the same with both.
        invert: exchange light and dark first.
        top: how many classes are named for each image; all, where there are fewer.

    Returns:
        For every path, as text, these classes with their probabilities, most probable first: lengths of
        capsules (or their activations); or the softmax of logits, of a CNN and of some routings (for pairs of images
        the sigmoid).

    Raises:
        ValueError: no finished run, a file that is no image, or a ``top`` below 1.
    """
    found = {}
    for path, named in predictions(run, paths, invert=invert, top=top):
        if isinstance(named, ValueError):
            raise named
        found[path] = named
    return found


def predictions(
    run: Run | str | Path, paths: Sequence[str | Path], *, invert: bool = False, top: int = 3
) -> Iterator[tuple[str, Named | ValueError]]:
    """:func:`predict` of many files, as they are read: those that are no images come with what is wrong with them."""
    run = run if isinstance(run, Run) else Run(run)

    check_at_least("top", top, 1)
    trained, config = load_model(run), run.classifier()
    data, task = config.data, config.data.task
    assert isinstance(task, Classification)
    channels = 3 if trained.image_shape[0] == 3 else 1
    # Files are read as those of its folder were.
    reading = {name: data.options[name] for name in ("max_value", "frames") if name in data.options}
    for first in range(0, len(paths), _AT_ONCE):
        some = [str(path) for path in paths[first : first + _AT_ONCE]]
        found: dict[str, Named | ValueError] = {}
        images = {}
        for path in some:
            try:
                images[path] = read_image(Path(path), trained.uncropped, channels, **reading)
            except ValueError as error:
                found[path] = error
        if images:
            named = _named(trained, torch.stack(list(images.values())), invert, top, task, config.loss)
            found |= dict(zip(images, named, strict=True))
        yield from ((path, found[path]) for path in some)


@torch.no_grad()
def _named(trained: Trained, images: Tensor, invert: bool, n: int, task: Classification, loss: str) -> list[Named]:
    channels, height, width = trained.image_shape
    images = central_crop(images, (height, width)).expand(-1, channels, -1, -1)
    output = as_output(trained.model(to_float(255 - images if invert else images)))
    scores = output.scores
    if are_logits(loss, trained.model, output):
        scores = task.probabilities(scores)
    top = scores.topk(min(n, len(trained.classes)), dim=1)
    return [
        [(trained.classes[k], value) for k, value in zip(classes, values, strict=True)]
        for values, classes in zip(top.values.tolist(), top.indices.tolist(), strict=True)
    ]
