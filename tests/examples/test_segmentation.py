"""The example of segmentation: its images and masks, and a run of a few steps."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from examples.segmentation import count, draw, main, make_networks
from torchcaps import load
from torchcaps.data.digit_masks import DIGIT, INK


def test_masks_are_where_digits_are() -> None:
    digits = load("digits").train
    images, masks = draw(digits, 3, 20, seed=0)
    assert images.shape == (20, 1, 32, 32) and masks.shape == (20, 3, 32, 32)
    inside = masks.amax(dim=1, keepdim=True).bool()
    assert bool((images[inside] * 255 > INK).all()) and not bool((images[~inside] * 255 > INK).any())
    present = masks.flatten(2).any(dim=2).sum(dim=1)
    assert set(present.tolist()) == {1, 2}  # both digits may be of one class
    assert int(masks.flatten(2).sum(dim=2).max()) < 2 * DIGIT**2
    again = draw(digits, 3, 20, seed=0)[0]
    assert torch.equal(images, again) and not torch.equal(images, draw(digits, 3, 20, seed=1)[0])


def test_networks_have_about_as_many_parameters() -> None:
    caps, cnn = make_networks(4).values()
    assert count(cnn) == pytest.approx(count(caps), rel=0.15)


def test_runs_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "masks.png"
    options = {"classes": 2, "steps": 2, "batch": 2, "images": 3, "out": out}
    got = main([f"--{name}={value}" for name, value in options.items()])
    assert set(got) == {"SegCaps", "U-Net"} and all(0 <= score <= 1 for score in got.values())
    said = capsys.readouterr().out
    assert "SegCaps, 32," in said and "Dice" in said and str(out) in said
    assert out.read_bytes().startswith(b"\x89PNG")
