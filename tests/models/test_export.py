"""Models as exported programs, which are saved and loaded."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path
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


def test_what_a_model_found_can_be_saved() -> None:
    """And loaded by torch.load as it comes, which takes no class that it was not told of."""
    found, file = build("capsnet_small", (1, 20, 20), 3, channels=4)(torch.rand(2, 1, 20, 20)), io.BytesIO()
    torch.save(found, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    assert type(loaded) is type(found) and type(loaded.capsules[-1]) is type(found.capsules[-1])
    assert loaded.capsules[-1].pose.equal(found.capsules[-1].pose) and loaded.scores.equal(found.scores)


def test_an_exported_model_is_loaded_where_nothing_else_was_done(tmp_path: Path) -> None:
    """In another process, as the guide says: importing ``torchcaps.models`` makes operators and results known."""
    models = {
        "dynamic": build("capsnet_small", (1, 20, 20), 3, channels=4),
        "em": build("matrix_capsnet_small", (1, 24, 24), 3, A=4, B=2, C=2, D=2),
    }
    for name, model in models.items():
        images = torch.rand(2, *model.image_shape)
        torch.export.save(torch.export.export(model.eval(), (images,)), tmp_path / f"{name}.pt2")
        torch.save((images, model(images).scores), tmp_path / f"{name}.pt")
    script = (
        "import sys, torch, torchcaps.models\n"
        "for name in sys.argv[1:]:\n"
        "    images, scores = torch.load(f'{name}.pt')\n"
        "    found = torch.export.load(f'{name}.pt2').module()(images)\n"
        "    torch.testing.assert_close(found.scores, scores)\n"
    )
    command = [sys.executable, "-c", script, *models]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_an_exported_auto_encoder_can_be_saved() -> None:
    model, file = build("translation_autoencoder", (1, 20, 20)).eval(), io.BytesIO()
    given = torch.rand(2, 1, 20, 20), torch.eye(3).repeat(2, 1, 1)
    torch.export.save(torch.export.export(model, given), file)
    file.seek(0)
    torch.testing.assert_close(torch.export.load(file).module()(*given).images, model(*given).images)
