from __future__ import annotations

import pytest
import torch

from torchcaps.playground.drawing import transform_image
from torchcaps.playground.meaning import measure_strokes, name_dimensions


def bar(height: float = 16, width: float = 4, x: float = 0, y: float = 0) -> torch.Tensor:
    """A bar with soft edges, so that a little of it is seen."""
    rows, columns = torch.arange(28) - 13.5, torch.arange(28) - 13.5
    up = (height / 2 - (rows - y).abs() + 0.5).clamp(0, 1)
    across = (width / 2 - (columns - x).abs() + 0.5).clamp(0, 1)
    return (up[:, None] * across[None])[None]


def test_a_slant_is_that_of_the_shear() -> None:
    sheared = transform_image(bar(), shear=0.3)
    assert measure_strokes(sheared[None])["slant"].item() == pytest.approx(16.7, abs=0.5)  # the arc tangent of 0.3


def test_each_number_is_called_by_what_it_does() -> None:
    def decode(poses: torch.Tensor) -> torch.Tensor:
        return torch.stack(
            [
                transform_image(bar(height=16 + 12 * p[0].item(), x=-8 * p[1].item()), shear=2 * p[2].item())
                for p in poses
            ]
        )

    assert name_dimensions(decode, torch.zeros(4)) == ["+height", "−left–right", "+slant", None]


def test_what_bends_has_no_name() -> None:
    def decode(poses: torch.Tensor) -> torch.Tensor:
        return torch.stack([bar(x=200 * (p[0].item() - 0.1) ** 2) for p in poses])

    assert name_dimensions(decode, torch.zeros(1)) == [None]
