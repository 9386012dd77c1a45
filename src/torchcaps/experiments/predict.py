"""What a trained model sees in image files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from torchcaps.data.folder import read_image
from torchcaps.data.images import to_float
from torchcaps.experiments.run import Run
from torchcaps.experiments.saved import load_model

#: How many classes are named for each image.
N_NAMED = 3


@torch.no_grad()
def predict(run: Run, paths: Sequence[str | Path], *, invert: bool = False) -> dict[str, list[tuple[str, float]]]:
    """The most probable classes of each image.

    Args:
        run: a finished run.
        paths: image files of any size; they are resized to what the model takes.
        invert: exchange light and dark first.

    Returns:
        For every path its classes with their probabilities, most probable first: lengths of
        capsules, or a CNN's softmax (for pairs of images its sigmoid).

    Raises:
        ValueError: no finished run, or a file that is no image.
    """
    model, (channels, height, width), classes = load_model(run)
    config = run.experiment()
    images = torch.stack([read_image(Path(path), (height, width), channels) for path in paths])
    scores = model(to_float(255 - images if invert else images)).scores
    if config.loss == "cross_entropy":
        scores = scores.sigmoid() if config.data.pairs else scores.softmax(dim=1)
    top = scores.topk(min(N_NAMED, len(classes)), dim=1)
    named = ([classes[k] for k in row] for row in top.indices.tolist())
    return {
        str(path): list(zip(names, values, strict=True))
        for path, names, values in zip(paths, named, top.values.tolist(), strict=True)
    }
