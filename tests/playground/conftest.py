"""A playground of small untrained networks: what it says is held against the networks themselves."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from torchcaps import build, load
from torchcaps.data import Images
from torchcaps.models.baselines import BaselineCNN
from torchcaps.playground import Network
from torchcaps.playground.answers import Playground
from torchcaps.playground.parts import Parts
from torchcaps.playground.segmenter import Segmenter
from torchcaps.playground.toys import Toy, Toys

CLASSES = tuple("0123456789")
#: A U-Net of few parameters.
SMALL = {"n_parameters": 5000}


def small_network(name: str = "small", side: int = 28, *, pairs: bool = False) -> Network:
    torch.manual_seed(3)
    model = build("capsnet_small", (1, side, side), 10, channels=8, n_types=2, decoder=(32,)).eval()
    with torch.no_grad():
        for parameter in model.decoder.parameters():
            parameter.mul_(4)  # so that a pose is seen in what is decoded
    return Network(name, model, CLASSES, (1, side, side), pairs=pairs)


def small_parts() -> Parts:
    torch.manual_seed(5)
    model = build("template_autoencoder", (1, 28, 28), n_capsules=4, channels=(4, 4), width=8)
    with torch.no_grad():
        model.background.fill_(0.25)  # which is no part
    return Parts(model.eval())


def small_toys() -> Toys:
    """Two toys from four sides round and two above, of which the second is always mistaken."""
    generator = torch.Generator().manual_seed(6)
    azimuths = torch.tensor([0, 90, 180, 270]).repeat(2)
    elevations = torch.tensor([30, 60]).repeat_interleave(4)
    scores = torch.tensor([0.9, 0.2]).expand(8, 2)
    pictures, poses = (torch.rand(2, 8, *size, generator=generator) for size in ((8, 8), (16,)))
    toys = [Toy(k, azimuths, elevations, pictures[k], scores, poses[k]) for k in (0, 1)]
    return Toys("norb", ("cat", "dog"), toys)


def small_cnn() -> Network:
    torch.manual_seed(4)
    model = BaselineCNN((1, 28, 28), 10, (4, 4), (8,), pool=True).eval()
    return Network("cnn", model, CLASSES, (1, 28, 28))


def small_segmenter(name: str = "masks", shape: tuple[int, int, int] = (1, 16, 24)) -> Segmenter:
    """Capsules of grey images that are no squares, whose classes are here and there; of colours a U-Net."""
    torch.manual_seed(7)
    caps: dict[str, Any] = {"n_types": [2, 2, 2], "d_pose": [4, 4, 8], "d_class": 4, "n_iters": 1}
    of_capsules = shape[0] == 1
    model = build("segcaps_small" if of_capsules else "matched_unet", shape, 2, **(caps if of_capsules else SMALL))
    images = torch.randint(256, (5, *shape), dtype=torch.uint8)
    samples = Images(images, torch.zeros(5, dtype=torch.int64), masks=torch.rand(5, 2, *shape[1:]) > 0.5)
    return Segmenter(name, model.eval(), ("cell", "wall"), shape, samples)


@pytest.fixture
def playground() -> Any:
    networks = [small_network(), small_network("pair", 36, pairs=True)]
    return Playground(networks, small_cnn(), load("digits").test, small_parts(), small_toys())


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Debian's Chromium, which playwright drives."""
    driver = pytest.importorskip("playwright.sync_api", reason="playwright, which drives the browser, is not installed")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is not installed")
    with driver.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()
