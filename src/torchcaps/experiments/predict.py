"""What a trained model sees in image files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from torchcaps.data.augment import central_crop
from torchcaps.data.folder import read_image
from torchcaps.data.images import to_float
from torchcaps.experiments.run import Run
from torchcaps.experiments.saved import load_model

#: How many classes are named for each image.
N_NAMED = 3
#: Images that the network sees together: however many files there are, memory is that of these.
_AT_ONCE = 64


@torch.no_grad()
def predict(
    run: Run | str | Path, paths: Sequence[str | Path], *, invert: bool = False
) -> dict[str, list[tuple[str, float]]]:
    """The most probable classes of each image.

    Args:
        run: a finished run, or its folder.
        paths: image files of any size; they are resized to the size of the images it was trained on, of which
            it takes the central window if it was trained on crops. A model of two eyes sees the same with both.
        invert: exchange light and dark first.

    Returns:
        For every path its classes with their probabilities, most probable first: lengths of
        capsules (or their activations), or a CNN's softmax (for pairs of images its sigmoid).

    Raises:
        ValueError: no finished run, or a file that is no image.
    """
    run = run if isinstance(run, Run) else Run(run)
    if isinstance(paths, str | Path):
        raise ValueError(f"paths must be several, such as [{paths!r}], got one")
    trained, config = load_model(run), run.experiment()
    if config.data.transformed:
        raise ValueError(f"{run.path} must hold a classifier, got an auto-encoder, which knows no classes")
    channels, height, width = trained.image_shape
    found = {}
    for first in range(0, len(paths), _AT_ONCE):
        some = paths[first : first + _AT_ONCE]
        read = [read_image(Path(path), trained.uncropped, 3 if channels == 3 else 1) for path in some]
        images = central_crop(torch.stack(read), (height, width)).expand(-1, channels, -1, -1)
        output = trained.model(to_float(255 - images if invert else images))
        scores = output.scores
        if not output.capsules:
            scores = scores.sigmoid() if config.data.pairs else scores.softmax(dim=1)
        top = scores.topk(min(N_NAMED, len(trained.classes)), dim=1)
        for path, values, classes in zip(some, top.values.tolist(), top.indices.tolist(), strict=True):
            found[str(path)] = [(trained.classes[k], value) for k, value in zip(classes, values, strict=True)]
    return found
