from __future__ import annotations

import pytest
import torch

from torchcaps import build, explain
from torchcaps.models.baselines import BaselineCNN
from torchcaps.playground import Network
from torchcaps.playground.inside import Inside

NETWORKS = {
    "capsnet_small": {"channels": 8, "n_types": 2, "decoder": (8,)},
    "capsnet_stacked": {"channels": 8, "n_types": 2, "decoder": None},
    "matrix_capsnet_small": {},
}


@pytest.mark.parametrize("name", NETWORKS)
def test_one_pass_says_what_the_explanations_say(name: str) -> None:
    torch.manual_seed(1)
    model = build(name, (1, 28, 28), 5, **NETWORKS[name]).eval().requires_grad_(False)
    image = torch.rand(1, 28, 28)
    found = Inside(model, (1, 28, 28))(image[None])
    scores, poses = explain.class_capsules(model, image[None])
    couplings = explain.coupling_maps(model, image[None])
    assert torch.equal(found.scores, scores[0])
    assert torch.equal(found.poses, poses[0])
    torch.testing.assert_close(found.lengths, couplings.scores[:, 0])
    maps = found.share * found.activity[:, None]
    torch.testing.assert_close(maps / maps.max(), couplings.maps[:, 0] / couplings.maps.max())
    for t, coupling in enumerate(found.coupling):
        tree = explain.parse_tree(model, image, t + 1, len(found.capsules))
        torch.testing.assert_close(coupling, tree.coupling)
        torch.testing.assert_close(found.activation, tree.activation)


def test_a_network_without_capsules_has_nothing_inside() -> None:
    with pytest.raises(ValueError, match="must have a routed layer"):
        Inside(BaselineCNN((1, 28, 28), 10, (4, 4), (8,), pool=True).eval(), (1, 28, 28))


@pytest.mark.parametrize("pairs", [False, True])
def test_logits_are_shown_as_probabilities(pairs: bool) -> None:
    model = build(
        "capsnet_small", (1, 28, 28), 5, channels=8, n_types=2, d_primary=16, routing="inverted_attention", decoder=None
    )
    network = Network("logits", model.eval(), tuple("abcde"), (1, 28, 28), pairs=pairs, logits=True)
    image = torch.rand(1, 28, 28)
    with torch.no_grad():
        scores = explain.scores_of(model, image[None])[0]
    wanted = scores.sigmoid() if pairs else scores.softmax(dim=0)
    assert network.inside is not None
    found = network.inside(image[None])
    for probabilities in (network.see(image).scores, found.scores, found.lengths[-1]):
        torch.testing.assert_close(probabilities, wanted)
