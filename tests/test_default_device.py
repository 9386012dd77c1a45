"""``torch.set_default_device`` must not matter: data comes on the CPU, and all else lies where its input does.

Routings, layers and models are held to the same in ``test_properties.py``. The default device is "meta" here: whatever
is made on it by mistake has no values.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from study import analysis
from study.analysis.factor_mixture import fit_factor_mixture
from study.analysis.label_propagation import affinity, nearest, propagate_labels
from study.data import disarrange, faces
from torchcaps import data, explain
from torchcaps.data import augment
from torchcaps.models import CapsNet
from torchcaps.models.baselines import BaselineCNN

IMAGES, LABELS = torch.rand(6, 1, 20, 20), torch.tensor([0, 1, 2, 0, 1, 2])
POINTS = torch.randn(40, 3)


def drawn() -> torch.Generator:
    return torch.Generator("cpu").manual_seed(0)


CAPSULES = CapsNet((1, 20, 20), 3, channels=4, n_types=2, d_class=4, decoder=(6,)).eval()
CNN = BaselineCNN((1, 20, 20), 3, (2,), (5,)).eval()

CASES: dict[str, Callable[[], Tensor | tuple[Tensor, ...]]] = {
    "load": lambda: data.load("digits").train.images,
    "load-drawn": lambda: data.load("faces").train.images[::100],
    "pairs": lambda: data.Pairs(data.load("digits").train, seed=0).batch(0, 4).images,
    "transformed": lambda: data.transformed_pairs(IMAGES, data.Limits(2, 20, 0.1, 0.1), drawn())[:3],
    "faces": lambda: faces.draw_faces(3, 0),
    "tiles": lambda: disarrange.shuffle_tiles(IMAGES, 2),
    "halves": lambda: disarrange.shift_halves(IMAGES, 2),
    "shift": lambda: augment.random_shift(IMAGES, 2, drawn()),
    "flip": lambda: augment.random_flip(IMAGES, drawn()),
    "gamma": lambda: augment.random_gamma(IMAGES, 0.5, drawn()),
    "shading": lambda: augment.random_shading(IMAGES, 0.5, drawn()),
    "brightness": lambda: augment.random_brightness(IMAGES, 0.1, drawn()),
    "contrast": lambda: augment.random_contrast(IMAGES, (0.5, 1.5), drawn()),
    "affine": lambda: augment.random_affine(IMAGES, drawn(), degrees=20.0, scale=0.1, shear=0.1),
    "corners": lambda: augment.random_corners(IMAGES, (8, 8), drawn()),
    "pgd": lambda: analysis.pgd(CNN, IMAGES, LABELS, 0.1),
    "robustness": lambda: analysis.accuracy_under_attack(CNN, IMAGES, LABELS, (0.0, 0.1), analysis.fgsm).accuracy,
    "targets": lambda: analysis.random_targets(LABELS, 3),
    "same_class_overlap": lambda: tuple(
        analysis.same_class_overlap(CAPSULES, IMAGES, LABELS, IMAGES.unsqueeze(1).expand(-1, 2, -1, -1, -1))
    ),
    "couplings": lambda: explain.coupling_maps(CAPSULES, IMAGES)[0],
    "parts": lambda: explain.part_maps(CAPSULES, IMAGES)[0],
    "responses": lambda: analysis.responses(CNN, IMAGES, LABELS, lambda x, by: x * by, (0.5, 1.0)).features,
    "spread": lambda: propagate_labels(
        affinity(nearest(POINTS, POINTS, 3, same=True)),
        torch.tensor([[0, 1]], device="cpu"),
        torch.tensor([[0, 1]], device="cpu"),
        2,
    ),
    "perturb": lambda: explain.perturb(CAPSULES, IMAGES, LABELS),
    "statistics": lambda: tuple(analysis.routing_statistics(CAPSULES, IMAGES)),
    "places": lambda: explain.capsule_places(CAPSULES),
    "plane": lambda: tuple(explain.principal_components(POINTS)),
    "ridge": lambda: analysis.ridge(POINTS, POINTS[:, :1], 0.1).weight,
    "mixture": lambda: tuple(fit_factor_mixture(POINTS, 2, 1)),
}


@pytest.mark.parametrize("name", CASES)
def test_results_are_the_same(name: str) -> None:
    usual = CASES[name]()
    with torch.device("meta"):
        found = CASES[name]()
    torch.testing.assert_close(found, usual, rtol=0, atol=0)
