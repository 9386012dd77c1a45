"""Masks laid over images, and their picture."""

from __future__ import annotations

import pytest
import torch

from torchcaps.data.mask_file import colour_of
from torchcaps.explain import colour_masks, draw_masks


def test_colours_by_hand() -> None:
    images = torch.tensor([[[[1.0, 1.0, 0.0, 0.0]]]])
    masks = torch.tensor([[[[0, 1, 1, 0]], [[0, 0, 1, 1]]]]).float()
    first, second = (torch.tensor(colour_of(k)) / 255 for k in range(2))
    wanted = torch.stack((torch.full((3,), 0.6), 0.45 + 0.55 * first, 0.55 * (first + second) / 2, 0.55 * second))
    torch.testing.assert_close(colour_masks(images, masks)[0, 0], wanted)


def test_draws_a_column_for_each_image() -> None:
    images, masks = torch.rand(3, 1, 8, 10), torch.rand(3, 2, 8, 10)
    figure = draw_masks(images, masks, masks, ("cat", "dog"))
    assert len(figure.axes) == 9
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["cat", "dog"]
    with pytest.raises(ValueError, match="classes must be 2 names, one for each mask, got 1"):
        draw_masks(images, masks, masks, ("cat",))
    with pytest.raises(ValueError, match="predicted"):
        draw_masks(images, masks, masks[:, :1], ("cat", "dog"))
