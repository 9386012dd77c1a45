from __future__ import annotations

import base64

import pytest
import torch

from tests.playground.conftest import small_network, small_parts
from torchcaps import build, explain, load
from torchcaps.playground.answers import Playground
from torchcaps.playground.drawing import fit_drawing
from torchcaps.playground.load import PARTS
from torchcaps.playground.parts import Parts, load_parts


def test_each_part_is_what_its_capsule_draws_where_it_stands() -> None:
    parts, image = small_parts(), load("digits").test.images[0] / 255
    found = parts(image[None])
    torch.testing.assert_close(found.pictures, explain.part_reconstructions(parts.model, image)[:, 0])
    capsules = parts.model.encode(image[None])
    assert torch.equal(found.places, capsules.pose[0, :, :2, 2])


def test_what_the_page_is_told() -> None:
    parts = small_parts()
    ink = torch.zeros(140, 140, dtype=torch.uint8)
    ink[20:120, 60:80] = 255
    message = {"network": 0, "layers": [base64.b64encode(ink.numpy().tobytes()).decode()]}
    told = Playground([small_network()], parts=parts).take_apart(message)["parts"]
    wanted = parts(fit_drawing(ink / 255)[None])
    places = torch.tensor([[part["x"], part["y"]] for part in told])
    torch.testing.assert_close(places, wanted.places, atol=1e-5, rtol=0)
    for part, picture in zip(told, wanted.pictures, strict=True):
        pixels = torch.frombuffer(bytearray(base64.b64decode(part["image"])), dtype=torch.uint8)
        assert torch.equal(pixels.view(28, 28), (picture.clamp(0, 1) * 255).round().byte())
    with pytest.raises(ValueError, match="parts must be at hand to take a drawing apart, got none"):
        Playground([small_network()]).take_apart(message)


def test_another_network_finds_no_parts() -> None:
    with pytest.raises(ValueError, match="parts must be a template_autoencoder, got a CapsNet"):
        Parts(small_network().model)
    with pytest.raises(ValueError, match=r"parts must take images of \(1, 28, 28\), got \(1, 32, 32\)"):
        Parts(build("template_autoencoder", (1, 32, 32), n_capsules=2))


def test_the_trained_ones_draw_a_digit() -> None:
    pytest.importorskip("safetensors", reason="safetensors is not installed; it is of the extra train")
    parts, image = load_parts(PARTS), load("digits").test.images[3] / 255
    drawn = parts(image[None]).pictures.sum(dim=0) + parts.model.background[0]
    assert (drawn - image[0]).square().sum() < 0.5 * image.square().sum()
