"""Scores alone, for tools that know tensors only."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from torchcaps import DenseCaps, PrimaryCaps
from torchcaps.models import Scores, build

X = torch.rand(3, 1, 28, 28)


@pytest.mark.parametrize("name", ["capsnet_small", "matrix_capsnet_small", "baseline_cnn"])
def test_they_are_the_networks_own(name: str) -> None:
    model = build(name, (1, 28, 28), 5).eval()
    with torch.no_grad():
        assert torch.equal(Scores(model)(X), model(X).scores)


def test_of_capsules_alone_they_are_the_activations() -> None:
    model = nn.Sequential(PrimaryCaps(1, 2, 4, 3, stride=9), DenseCaps(18, 5, 4, 4)).eval()
    with torch.no_grad():
        assert torch.equal(Scores(model)(X), model(X).activation)


def test_an_exported_program_gives_one_tensor() -> None:
    model = Scores(build("capsnet_small", (1, 28, 28), 5, backend="reference")).eval()
    program = torch.export.export(model, (X,))
    assert len(program.graph_signature.user_outputs) == 1
    with torch.no_grad():
        torch.testing.assert_close(program.module()(X), model(X))


def test_an_auto_encoder_has_none() -> None:
    with pytest.raises(ValueError, match="model must return scores, got a Reconstruction"):
        Scores(build("template_autoencoder", (1, 28, 28), 5))(X)


def test_a_hook_lets_primary_capsules_return_one_tensor() -> None:
    """As Captum's layer methods want; vector capsules are their poses, so the scores stay."""
    model = build("capsnet_small", (1, 20, 20), 3, channels=4).eval()
    x, seen = torch.rand(2, 1, 20, 20), []
    wanted = Scores(model)(x)
    model.primary.register_forward_hook(lambda layer, images, capsules: capsules.pose)
    model.primary.register_forward_hook(lambda layer, images, pose: seen.append(pose))
    assert torch.equal(Scores(model)(x), wanted)
    assert len(seen) == 1 and isinstance(seen[0], torch.Tensor) and seen[0].shape == (2, 8, 2, 2, 8)
