from __future__ import annotations

from pathlib import Path

import pytest
import torch

from torchcaps.data.images import to_float
from torchcaps.data.mnist import read_idx
from torchcaps.playground import fit_drawing, transform_image
from torchcaps.playground.drawing import overlay_drawings


def large(image: torch.Tensor) -> torch.Tensor:
    return image.repeat_interleave(5, 0).repeat_interleave(5, 1)


def test_mnists_own_digits_come_back_as_they_were(shared_mnist: Path) -> None:
    images = to_float(read_idx(shared_mnist / "t10k-images-idx3-ubyte.gz")[:200])
    fitted = torch.cat([fit_drawing(large(image)) for image in images])
    assert (fitted - images).abs().max() < 0.05  # except for the faintest pixels at an edge
    same = ((fitted - images).abs().amax(dim=(1, 2)) < 1e-5).float().mean()
    assert same > 0.9


@pytest.mark.parametrize("scale", [1, 3])
def test_a_drawing_may_lie_anywhere_and_be_of_any_size(scale: int) -> None:
    ink = torch.zeros(140, 140)
    ink[5 : 5 + 20 * scale, 7 : 7 + 8 * scale] = 1
    moved = ink.roll((40, 30), (0, 1))
    assert torch.equal(fit_drawing(ink), fit_drawing(moved))
    rows, columns = (fit_drawing(ink)[0] > 0.5).nonzero().T
    assert (rows.max() - rows.min() + 1, columns.max() - columns.min() + 1) == (20, 8)


def test_an_empty_canvas_is_black_and_a_speck_is_a_box() -> None:
    assert not fit_drawing(torch.zeros(140, 140)).any()
    ink = torch.zeros(140, 140)
    ink[0, 139] = 1
    assert fit_drawing(ink).sum() == 400


def test_two_digits_lie_as_they_were_drawn() -> None:
    ink = torch.zeros(140, 140)
    ink[20:120, 60:80] = 1
    image = overlay_drawings([ink.roll(-15, 1), ink.roll(15, 1)], margin=4)
    assert image.shape == (1, 36, 36)
    columns = (image[0, 18] > 0.5).nonzero().flatten().tolist()
    assert columns == [13, 14, 15, 16, 19, 20, 21, 22]  # 3 pixels to each side of 16 … 19
    far = overlay_drawings([ink.roll(-60, 1)], margin=4)
    assert (far[0, 18] > 0.5).nonzero().flatten().tolist() == [12, 13, 14, 15]  # no further than in training


def dot(row: int, column: int) -> torch.Tensor:
    image = torch.zeros(1, 28, 28)
    image[0, row, column] = 1
    return image


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"shift": (3.0, 0.0)}, (5, 13)),
        ({"shift": (0.0, 4.0)}, (9, 10)),
        ({"rotate": 90.0}, (10, 22)),  # what is above goes to the right
        ({"rotate": 180.0}, (22, 17)),
        ({"shear": 0.5}, None),
    ],
)
def test_changes_go_where_they_say(change: dict, place: tuple[int, int] | None) -> None:
    image = transform_image(dot(5, 10), **change)
    if place is not None:
        assert torch.allclose(image, dot(*place), atol=1e-4)
        return
    mean = (image[0] * torch.arange(28)).sum() / image.sum()
    assert mean == pytest.approx(10 + 0.5 * (13.5 - 5), abs=1e-3)  # upper rows go to the right


def test_no_change_is_none() -> None:
    image = torch.rand(1, 28, 28)
    assert transform_image(image) is image


@pytest.mark.parametrize("shape", [(28,), (1, 28, 28)])
def test_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="ink must be"):
        fit_drawing(torch.zeros(shape))
