"""A bare loop of Adam at 1e-3, without warm-up, as docs/do/own-network.md shows it: many classes, bright features.

``benchmarks/initial_values.py`` does so at full length (study/results/checks.jsonl: initial-values).
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from torchcaps.layers import DenseCaps, PrimaryCaps
from torchcaps.ops import margin_loss


def trained(primary: PrimaryCaps, classes: DenseCaps, steps: int = 40) -> tuple[float, float]:
    """Accuracy on four noisy patterns of positive features, and the primary capsules' mean length."""
    torch.manual_seed(1)
    patterns = torch.rand(4, 64, 10, 10)
    labels = torch.arange(64) % 4
    features = patterns[labels] + 0.3 * torch.rand(64, 64, 10, 10)
    model = nn.Sequential(primary, classes)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(steps):
        batch = torch.randint(64, (32,))
        loss = margin_loss(model(features[batch]).activation, labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        lengths = primary(features).activation.mean().item()
        right = model(features).activation.argmax(dim=1) == labels
    return right.float().mean().item(), lengths


@pytest.mark.parametrize("n_classes", [4, 47, 200])
def test_any_number_of_classes_is_learned_without_warm_up(n_classes: int) -> None:
    torch.manual_seed(0)
    accuracy, lengths = trained(PrimaryCaps(64, 8, 8, 9), DenseCaps(32, n_classes, 8, 16))
    assert accuracy > 0.9 and lengths < 0.95


def test_without_a_factor_the_first_steps_saturate() -> None:
    torch.manual_seed(0)
    _, lengths = trained(PrimaryCaps(64, 8, 8, 9, scale=1.0), DenseCaps(32, 47, 8, 16), steps=3)
    assert lengths > 0.95
