"""Toys that a trained network of capsules is shown from all sides."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchcaps import explain
from torchcaps.data import Images
from torchcaps.data.files import cache_folder
from torchcaps.playground.messages import as_text, numbers_of
from torchcaps.playground.network import run_of
from torchcaps.training.batches import Batches
from torchcaps.training.checkpoint import data_for, load_model
from torchcaps.training.logits import gives_logits
from torchcaps.training.run import with_data_in

#: What is known of each view of small NORB.
_FACTORS = ("azimuth", "elevation", "instance", "lighting")


class Toy(NamedTuple):
    """One toy from V sides, and what a network says of each.

    Attributes:
        label: its class.
        azimuths: of the views in degrees, ``[V]``.
        elevations: of the views in degrees, ``[V]``.
        pictures: their first channel, ``[V, H, W]``.
        scores: of the J classes, ``[V, J]``.
        poses: of the capsule of the toy's own class, ``[V, D]``.
    """

    label: int
    azimuths: Tensor
    elevations: Tensor
    pictures: Tensor
    scores: Tensor
    poses: Tensor


class Toys(NamedTuple):
    """Toys of a network's test data, one of each class.

    Attributes:
        name: of the network.
        classes: their names.
        toys: one of each class, in their order.
    """

    name: str
    classes: tuple[str, ...]
    toys: list[Toy]

    def describe(self) -> dict[str, Any]:
        """Say which toys there are."""
        return {"name": self.name, "toys": list(self.classes)}

    def show(self, index: int) -> dict[str, Any]:
        """Say all of one toy: the page needs no further question to go round it."""
        toy = self.toys[index]
        return {
            "label": toy.label,
            "side": toy.pictures.shape[-1],
            "azimuths": toy.azimuths.tolist(),
            "elevations": toy.elevations.tolist(),
            "images": as_text(toy.pictures),
            "scores": [numbers_of(each) for each in toy.scores],
            "poses": [numbers_of(each) for each in toy.poses],
        }


def load_toys(run: str | Path, root: str | Path | None = None) -> Toys:
    """Load a trained network and its test images, and look at one toy of each class from all sides.

    Args:
        run: of small NORB, such as "pretrained:smallnorb-small".
        root: folder of the data; None takes the run's own, else the cache. Nothing is downloaded for the page.

    Raises:
        ValueError: no finished run, data that are not at hand or have no viewpoints, or a network without capsules.
    """
    owner, trained = run_of(run), load_model(run)
    config = owner.classifier()
    config = with_data_in(config, root or config.data.root or cache_folder())
    test = data_for(config, trained, owner.path).splits["test"]
    missing = [name for name in _FACTORS if name not in test.factors]
    if missing:
        raise ValueError(f"toys must be a run of small NORB, got one of {config.data.name}, without {missing[0]}")
    toys, logits = [], gives_logits(config.loss, trained.model)
    for label in range(len(trained.classes)):
        views = _one_toy(test, label)
        batches = Batches(config.data, views, len(views), seed=0, train=False)
        toy = _seen(trained.model.eval(), next(iter(batches)).images, views, label)
        toys.append(toy._replace(scores=toy.scores.softmax(dim=1)) if logits else toy)
    return Toys(owner.pretrained or Path(run).expanduser().resolve().name, trained.classes, toys)


def _one_toy(test: Images, label: int) -> Images:
    """Return the first toy of a class in its first light, from all sides: round it, then from above."""
    views = test.take(test.labels == label)
    for name in ("instance", "lighting"):
        views = views.take(views.factors[name] == views.factors[name].min())
    return views.take((views.factors["elevation"] * 1000 + views.factors["azimuth"]).argsort())


@torch.no_grad()
def _seen(model: torch.nn.Module, images: Tensor, views: Images, label: int) -> Toy:
    scores, poses = explain.class_capsules(model, images)
    azimuths = 10 * views.factors["azimuth"]  # which counts tens of degrees
    elevations = 30 + 5 * views.factors["elevation"]
    return Toy(label, azimuths, elevations, images[:, 0], scores, poses[:, label])
