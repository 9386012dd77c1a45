from __future__ import annotations

import base64
from pathlib import Path

import pytest
import torch

from tests.playground.conftest import small_network, small_toys
from torchcaps.playground.answers import Playground
from torchcaps.playground.toys import load_toys
from torchcaps.training.checkpoint import load_model


def test_a_real_toy_is_seen_from_all_sides_as_the_network_sees_it(shared_smallnorb: Path) -> None:
    pytest.importorskip("safetensors", reason="safetensors is not installed; it is of the extra train")
    found = load_toys("pretrained:smallnorb-small", shared_smallnorb)
    assert found.describe() == {"name": "smallnorb-small", "toys": ["animal", "human", "airplane", "truck", "car"]}
    assert [toy.label for toy in found.toys] == [0, 1, 2, 3, 4]
    for toy in found.toys:
        sides = list(zip(toy.elevations.tolist(), toy.azimuths.tolist(), strict=True))
        assert sides == [(30 + 5 * up, 20 * round_) for up in range(9) for round_ in range(18)]
        assert toy.pictures.shape == (162, 32, 32)
    # The network was right of 96 % of all test images: of these it would not be, were they cut or scaled otherwise.
    right = torch.cat([toy.scores.argmax(dim=1) == toy.label for toy in found.toys])
    assert right.float().mean() > 0.9
    model = load_model("pretrained:smallnorb-small").model
    assert found.toys[0].poses.shape[1] == model.classes.d_out


def test_what_the_page_is_told() -> None:
    toys = small_toys()
    told = Playground([small_network()], toys=toys).toy({"toy": 1})
    assert (told["label"], told["side"], told["azimuths"]) == (1, 8, [0, 90, 180, 270] * 2)
    pixels = torch.frombuffer(bytearray(base64.b64decode(told["images"])), dtype=torch.uint8)
    assert torch.equal(pixels.view(8, 8, 8), (toys.toys[1].pictures * 255).round().byte())
    assert torch.allclose(torch.tensor(told["poses"]), toys.toys[1].poses, atol=1e-5)
    with pytest.raises(ValueError, match="toy must be a whole number from 0 to 1, got 2"):
        Playground([small_network()], toys=toys).toy({"toy": 2})
    with pytest.raises(ValueError, match="toys must be at hand to be shown, got none"):
        Playground([small_network()]).toy({"toy": 0})


def test_nothing_is_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("safetensors", reason="safetensors is not installed; it is of the extra train")
    monkeypatch.setenv("TORCHCAPS_DATA", str(tmp_path / "data"))
    monkeypatch.setattr("pooch.retrieve", lambda *_, **__: pytest.fail("something is downloaded"))
    with pytest.raises(ValueError, match="data.root must hold"):
        load_toys("pretrained:smallnorb-small")


def test_data_without_viewpoints_are_refused(shared_mnist: Path) -> None:
    pytest.importorskip("safetensors", reason="safetensors is not installed; it is of the extra train")
    with pytest.raises(ValueError, match="toys must be a run of small NORB, got one of mnist, without azimuth"):
        load_toys("pretrained:mnist-small", shared_mnist)
