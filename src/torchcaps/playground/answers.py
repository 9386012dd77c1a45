"""What the page can ask of the networks, and what they say of a drawing."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, TypeVar

import torch
from torch import Tensor

from torchcaps.data import Images
from torchcaps.playground import masks
from torchcaps.playground.drawing import fit_drawing, transform_image
from torchcaps.playground.messages import (
    CANVAS,
    LARGEST,
    Drawing,
    as_text,
    largest_with,
    numbers_of,
    read_drawing,
    read_index,
    read_number,
    read_pose,
)
from torchcaps.playground.network import Network, Seen
from torchcaps.playground.parts import Parts
from torchcaps.playground.segmenter import Segmenter
from torchcaps.playground.toys import Toys

_Kind = TypeVar("_Kind", Network, Segmenter)


class Playground:
    """What the page can ask.

    Args:
        networks: those to choose from, at least one. Classifiers must have capsules.
        beside: one to compare with, of the same task, classes and image size.
        samples: test images 28×28, for classifiers.
        parts: an auto-encoder that takes a digit apart.
        toys: toys from all sides, and what a network says of them.

    Raises:
        ValueError: no network, a classifier without capsules, or one beside that does not fit.
    """

    def __init__(
        self,
        networks: Sequence[Network | Segmenter],
        beside: Network | Segmenter | None = None,
        samples: Images | None = None,
        parts: Parts | None = None,
        toys: Toys | None = None,
    ) -> None:
        if not networks:
            raise ValueError("networks must hold at least one, got none")
        for network in networks:
            if isinstance(network, Network) and not network.has_capsules:
                raise ValueError(
                    f"{network.name} must route a map of capsules to its classes, got none to look into: "
                    "give it by --beside"
                )
        if beside is not None and not any(_fits(beside, network) for network in networks):
            raise ValueError(
                f"beside must have the task, the classes and the image shape of a network on the page, got "
                f"{beside.name} with {beside.image_shape}"
            )
        self.networks, self.beside, self.samples = list(networks), beside, samples
        self.parts, self.toys = parts, toys

    def describe(self) -> dict[str, Any]:
        """Say which networks there are."""
        return {
            "canvas": CANVAS,
            "samples": 0 if self.samples is None else len(self.samples),
            "attacks": True,
            "parts": self.parts is not None,
            "toys": None if self.toys is None else self.toys.describe(),
            "networks": [self._describe(network) for network in self.networks],
        }

    @property
    def largest(self) -> int:
        """Return the bytes that a message has at most."""
        return max(LARGEST, *(largest_with(each.image_shape) for each in self.networks))

    def see(self, message: dict[str, Any]) -> dict[str, Any]:
        """Say what is in a drawing, and in what was made of it."""
        network = self._network(message)
        if isinstance(network, Segmenter):
            return masks.see(network, self.beside_of(network), message)
        drawing = read_drawing(message, len(self.networks))
        return self._seen(network, _moved(drawing, network.fit(drawing.inks)), drawing)

    def explain(self, message: dict[str, Any]) -> dict[str, Any]:
        """Say how the capsules agree on a drawing, and what each number of the poses does; or how long they are."""
        network = self._network(message)
        if isinstance(network, Segmenter):
            return masks.explain(network, message)
        drawing = read_drawing(message, len(self.networks))
        image = _moved(drawing, network.fit(drawing.inks))
        seen = _in_order_of_pens(network, drawing, network.see(image))
        named = [] if seen.poses is None or seen.reconstructions is None else zip(seen.poses, seen.shown)
        meanings = [network.meanings(pose, label) for pose, label in named]
        return {**network.explain(image), "image": as_text(image), "labels": seen.shown, "meanings": meanings}

    def decode(self, message: dict[str, Any]) -> dict[str, Any]:
        """Reconstruct an image from a pose."""
        network = self._classifier(message)
        label = read_index(message, "label", len(network.classes))
        return {"image": as_text(network.decode(read_pose(message)[None], label)[0])}

    def attack(self, message: dict[str, Any]) -> dict[str, Any]:
        """Change a drawing against one of the two networks, and say what both see in it."""
        network = self._classifier(message)
        drawing = read_drawing(message, len(self.networks))
        image = _moved(drawing, network.fit(drawing.inks))
        epsilon = read_number(message, "epsilon", 0, 1)
        against = message.get("against", "capsules")
        beside = self.beside_of(network)
        attacked = {"capsules": network} if beside is None else {"capsules": network, "beside": beside}
        if not isinstance(against, str) or against not in attacked:
            raise ValueError(f"against must be one of {', '.join(attacked)}, got {against!r:.40}")
        return self._seen(network, attacked[against].attack(image, epsilon), drawing)

    @torch.no_grad()
    def take_apart(self, message: dict[str, Any]) -> dict[str, Any]:
        """Say which parts a drawing is made of, where each stands, and what it draws."""
        drawing = read_drawing(message, len(self.networks))
        if self.parts is None:
            raise ValueError("parts must be at hand to take a drawing apart, got none")
        image = _moved(drawing, fit_drawing(torch.stack(drawing.inks).sum(dim=0).clamp_max(1)))
        found = self.parts(image[None])
        return {
            "parts": [
                {"image": as_text(picture), "x": x, "y": y}
                for picture, (x, y) in zip(found.pictures, map(numbers_of, found.places))
            ]
        }

    def toy(self, message: dict[str, Any]) -> dict[str, Any]:
        """Give a toy from all sides, and what the network says of each."""
        if self.toys is None:
            raise ValueError("toys must be at hand to be shown, got none")
        return self.toys.show(read_index(message, "toy", len(self.toys.toys)))

    def sample(self, message: dict[str, Any]) -> dict[str, Any]:
        """Give a test image: number ``seed`` of a fixed random order."""
        network = self._network(message)
        if isinstance(network, Segmenter):
            return masks.sample(network, message)
        if self.samples is None:
            raise ValueError("samples must be at hand for a test image, got none: draw, or load an image file")
        seed = read_index(message, "seed", 2**31)
        index = Random(seed).randrange(len(self.samples))
        image, label = self.samples[index]
        return {"image": as_text(image), "label": int(label), "index": index}

    def beside_of(self, network: _Kind) -> _Kind | None:
        """Return the network beside, where it fits this one."""
        beside = self.beside
        return beside if isinstance(beside, type(network)) and _fits(beside, network) else None

    def _describe(self, network: Network | Segmenter) -> dict[str, Any]:
        if isinstance(network, Segmenter):
            beside, further = self.beside_of(network), masks.describe(network)
        else:
            side, decodes = network.image_shape[1], network.decoder is not None
            further = {"segments": False, "pairs": network.pairs, "side": side, "decodes": decodes}
            further["logits"] = network.logits
            beside = self.beside_of(network)
        name = None if beside is None else beside.name
        return {"name": network.name, "classes": list(network.classes), "beside": name, **further}

    def _network(self, message: dict[str, Any]) -> Network | Segmenter:
        return self.networks[read_index(message, "network", len(self.networks))]

    def _classifier(self, message: dict[str, Any]) -> Network:
        network = self._network(message)
        if isinstance(network, Segmenter):
            raise ValueError(f"network must be a classifier to decode or to attack, got {network.name}, which segments")
        return network

    def _seen(self, network: Network, image: Tensor, drawing: Drawing) -> dict[str, Any]:
        seen = _in_order_of_pens(network, drawing, network.see(image))
        poses = [] if seen.poses is None else seen.poses
        beside = self.beside_of(network)
        return {
            "image": as_text(image),
            "scores": numbers_of(seen.scores),
            "shown": [
                {
                    "label": label,
                    "pose": numbers_of(pose),
                    "image": None if seen.reconstructions is None else as_text(seen.reconstructions[k]),
                }
                for k, (label, pose) in enumerate(zip(seen.shown, poses))
            ],
            "beside": None if beside is None else numbers_of(beside.see(image).scores),
        }


def _moved(drawing: Drawing, image: Tensor) -> Tensor:
    return transform_image(image, **drawing.moves._asdict())


def _in_order_of_pens(network: Network, drawing: Drawing, seen: Seen) -> Seen:
    """Put first of two reconstructions that which lies on the first pen's ink, so that colours are the pens'."""
    if seen.poses is None or seen.reconstructions is None or len(seen.shown) < 2 or len(drawing.inks) < 2:
        return seen
    first, second = network.fit_each(drawing.inks)
    one, two = seen.reconstructions
    lead = _moved(drawing, first) - _moved(drawing, second)
    if float((one * lead).sum()) >= float((two * lead).sum()):
        return seen
    return Seen(seen.scores, seen.shown[::-1], seen.poses.flip(0), seen.reconstructions.flip(0))


def _fits(one: Network | Segmenter, other: Network | Segmenter) -> bool:
    if isinstance(one, Network) and isinstance(other, Network) and one.pairs != other.pairs:
        return False
    return (type(one), one.classes, one.image_shape) == (type(other), other.classes, other.image_shape)
