"""Models as exported programs, which are saved and loaded."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch

from torchcaps.models import build


@pytest.mark.parametrize(
    ("name", "shape", "options"),
    [
        ("capsnet_small", (1, 28, 28), {}),
        ("matrix_capsnet_small", (2, 32, 32), {"A": 4, "B": 2, "C": 2, "D": 2}),
        ("matched_cnn", (1, 28, 28), {"n_parameters": 3000}),
    ],
)
def test_an_exported_model_can_be_saved(name: str, shape: tuple[int, int, int], options: dict[str, Any]) -> None:
    model, images = build(name, shape, 5, **options).eval(), torch.rand(2, *shape)
    program, file = torch.export.export(model, (images,)), io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    found, wanted = torch.export.load(file).module()(images), model(images)
    assert type(found) is type(wanted) and len(found.capsules) == len(wanted.capsules)
    torch.testing.assert_close(found.scores, wanted.scores)


def test_an_exported_auto_encoder_can_be_saved() -> None:
    model, file = build("translation_autoencoder", (1, 20, 20)).eval(), io.BytesIO()
    given = torch.rand(2, 1, 20, 20), torch.eye(3).repeat(2, 1, 1)
    torch.export.save(torch.export.export(model, given), file)
    file.seek(0)
    torch.testing.assert_close(torch.export.load(file).module()(*given).images, model(*given).images)
