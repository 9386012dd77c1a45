"""Real test digits, put through the page's own canvas and preprocessing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.playground import N_DIGITS, read_digits
from tests.playground.pages import BACKENDS, opened
from torchcaps.data import Images
from torchcaps.data.images import to_float
from torchcaps.data.mnist import read_idx
from torchcaps.playground import load_network
from torchcaps.playground.answers import Playground


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_page_reads_digits_as_well_as_the_network(
    browser: Any, backend: str, shared_mnist: Path, tmp_path: Path
) -> None:
    pytest.importorskip("safetensors", reason="safetensors is not installed; it is of the extra train")
    network = load_network("pretrained:mnist-small")
    images = read_idx(shared_mnist / "t10k-images-idx3-ubyte.gz")[:, None]
    labels = read_idx(shared_mnist / "t10k-labels-idx1-ubyte.gz").long()
    # Hard ones: the page's reading of easy ones would survive much.
    with torch.no_grad():
        scores = network.model(to_float(images[:2000])).scores
    first, second = scores.topk(2).values.T
    chosen = (first - second).argsort()[:N_DIGITS]
    own = scores[chosen].argmax(dim=1)
    with opened(Playground([network], None, Images(images, labels)), backend, tmp_path) as address:
        page = browser.new_page()
        page.goto(address)
        page.locator("html[data-ready]:not([data-working])").wait_for()
        said = torch.tensor([int(text) for text in read_digits(page, images[chosen])])
        page.close()
    right, of_network = ((found == labels[chosen]).float().mean().item() for found in (said, own))
    assert abs(right - of_network) <= 0.005
