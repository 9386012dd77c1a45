"""The networks of the page, from the runs that they come from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torchcaps.playground.answers import Playground
from torchcaps.playground.network import Network, load_network
from torchcaps.playground.parts import load_parts
from torchcaps.playground.samples import find_samples
from torchcaps.playground.segmenter import Segmenter, load_segmenter, segments
from torchcaps.playground.toys import load_toys

#: What is shown where no run is named: networks that come trained.
OURS = ("pretrained:mnist-small", "pretrained:multimnist-small")
#: What takes digits apart there.
PARTS = "pretrained:mnist-templates-small"


def load_playground(
    runs: Sequence[str | Path] = OURS,
    beside: str | Path | None = None,
    parts: str | Path | None = None,
    toys: str | Path | None = None,
) -> Playground:
    """Load trained networks, one to compare them with, one that finds parts, one that knows toys, and test images.

    Raises:
        ValueError: no run, or one that does not fit.
    """
    if not runs:
        raise ValueError("runs must name at least one, such as runs/digits or pretrained:mnist-small; got none")
    networks = [_load(run) for run in runs]
    found = (find_samples(run, each.classes) for run, each in zip(runs, networks) if isinstance(each, Network))
    samples = next((each for each in found if each is not None), None)
    return Playground(
        networks,
        None if beside is None else _load(beside),
        samples,
        None if parts is None else load_parts(parts),
        None if toys is None else load_toys(toys),
    )


def _load(run: str | Path) -> Network | Segmenter:
    return load_segmenter(run) if segments(run) else load_network(run)
