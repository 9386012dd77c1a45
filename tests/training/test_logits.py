"""Which networks' scores are logits."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from torchcaps import build
from torchcaps.training.logits import are_logits
from torchcaps.types import Capsules, ModelOutput, as_output

CAPSNET = {"channels": 8, "n_types": 2, "d_primary": 16, "decoder": None}


class Own(nn.Module):
    """Capsules of somebody's own."""

    def forward(self, x: Tensor) -> ModelOutput:
        capsules = Capsules(x.flatten(2).transpose(1, 2), x.flatten(2).norm(dim=1))
        return ModelOutput(capsules.activation, (capsules,))


@pytest.mark.parametrize(
    ("routing", "wanted"),
    [
        *(("dynamic", False), ("em", False), ("self_routing", False), ("variational_bayes", False), ("uniform", False)),
        *(("elementwise", True), ("inverted_attention", True), ("heinsen_matrix", True), ("heinsen_vector", True)),
    ],
)
def test_the_routing_to_the_classes_says(routing: str, wanted: bool) -> None:
    model = build("capsnet_small", (1, 28, 28), 10, **CAPSNET, routing=routing).eval()
    output = as_output(model(torch.rand(2, 1, 28, 28)))
    assert are_logits("cross_entropy", model, output) is wanted
    assert not are_logits("margin", model, output)
    assert wanted or bool(((output.scores >= 0) & (output.scores <= 1)).all())


@pytest.mark.parametrize("depth", [0, 1])
def test_logarithms_of_probabilities_are_logits(depth: int) -> None:
    model = build("self_routing_resnet", (3, 32, 32), 10, depth=depth).eval()
    output = as_output(model(torch.rand(2, 3, 32, 32)))
    assert are_logits("cross_entropy", model, output)
    if depth:
        torch.testing.assert_close(output.scores.softmax(dim=1), output.capsules[-1].activation)


def test_of_networks_of_ones_own_the_loss_says() -> None:
    model = Own()
    output = model(torch.rand(2, 3, 2, 2))
    assert are_logits("cross_entropy", model, output) and not are_logits("margin", model, output)


def test_without_capsules_scores_are_logits() -> None:
    model = build("matched_cnn", (1, 16, 16), 3, n_parameters=3000)
    assert are_logits("own", model, as_output(model(torch.rand(2, 1, 16, 16))))
