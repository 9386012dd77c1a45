"""One trained network of the page: what it is, and what it says of an image."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchcaps import explain
from torchcaps.explain.receptive_fields import places_in
from torchcaps.playground.drawing import SIDE, fit_drawing, overlay_drawings
from torchcaps.playground.inside import Inside
from torchcaps.playground.meaning import name_dimensions
from torchcaps.training.checkpoint import load_model
from torchcaps.training.logits import gives_logits
from torchcaps.training.run import Run
from torchcaps.typed import typed

#: A second digit is there where its capsule is at least this long.
PRESENT = 0.5


class Seen(NamedTuple):
    """What a network says of one image.

    Attributes:
        scores: of the classes, ``[J]``: lengths of capsules, or a CNN's probabilities.
        shown: the classes that it found, strongest first: one, or up to two of a network for pairs.
        poses: their poses, ``[K, D]``; None of a network without capsules.
        reconstructions: of each of them, ``[K, C, H, W]``; None of a network without a decoder.
    """

    scores: Tensor
    shown: list[int]
    poses: Tensor | None
    reconstructions: Tensor | None


class Network:
    """A trained network, asked by one thread at a time: what looks inside it hangs hooks into it.

    Args:
        name: what the page calls it.
        model: in evaluation mode; takes ``[B, 1, H, W]``.
        classes: names of the J classes.
        image_shape: (1, height, width).
        pairs: it was trained on two overlapping digits.

    Raises:
        ValueError: images of several channels, or smaller than 28×28 or not square.
    """

    @typed
    def __init__(
        self,
        name: str,
        model: nn.Module,
        classes: tuple[str, ...],
        image_shape: tuple[int, int, int],
        *,
        pairs: bool = False,
        logits: bool = False,
    ) -> None:
        channels, height, width = image_shape
        if channels != 1 or height != width or height < SIDE or height % 2:
            raise ValueError(
                f"{name}: image_shape must be (1, 28, 28), or larger, square and even, to draw for; got {image_shape}"
            )
        self.name, self.model, self.classes = name, model.requires_grad_(False), classes
        self.pairs, self.logits = pairs, logits
        self.image_shape, self.margin = image_shape, (height - SIDE) // 2
        self._one_at_a_time = Lock()
        with self._one_at_a_time, torch.no_grad():
            as_probabilities = partial(probabilities, pairs=pairs) if logits else None
            self.inside = _inside(model, image_shape, as_probabilities)
            self.decoder = getattr(explain.unwrap(model), "decoder", None) if self.has_capsules else None

    @property
    def has_capsules(self) -> bool:
        """Return whether a map of capsules is routed to the classes, so that there is something to look into."""
        return self.inside is not None

    def fit(self, inks: list[Tensor]) -> Tensor:
        """Turn the drawings ``[H, W]`` of a canvas into the image ``[1, H, W]`` that this network takes."""
        if self.pairs:
            return overlay_drawings(inks, self.margin)
        together = torch.stack(inks).sum(dim=0).clamp_max(1)
        return torch.nn.functional.pad(fit_drawing(together), (self.margin,) * 4)

    def fit_each(self, inks: list[Tensor]) -> list[Tensor]:
        """Turn each drawing alone into an image, where it lies when all are there."""
        return [overlay_drawings([ink], self.margin) for ink in inks]

    @torch.no_grad()
    def see(self, image: Tensor) -> Seen:
        """Say what is in an image ``[1, H, W]``."""
        with self._one_at_a_time:
            if not self.has_capsules:
                scores = probabilities(explain.scores_of(self.model, image[None]), pairs=self.pairs)[0]
                return Seen(scores, self._shown(scores), None, None)
            scores, pose = explain.class_capsules(self.model, image[None])
            scores = probabilities(scores, pairs=self.pairs) if self.logits else scores
            shown = self._shown(scores[0])
            pictures = None
            if self.decoder is not None:
                pictures = explain.decoder_of(self.model).each(pose, torch.tensor([shown]))[0]
            return Seen(scores[0], shown, pose[0, shown], pictures)

    @torch.no_grad()
    def decode(self, poses: Tensor, label: int) -> Tensor:
        """Reconstruct a class from each of the poses ``[N, D]``: ``[N, 1, H, W]``.

        Raises:
            ValueError: poses of another size, an unknown class, or a network without a decoder.
        """
        decoder = explain.decoder_of(self.model)
        if poses.shape[1] != decoder.d_in:
            raise ValueError(f"pose must be {decoder.d_in} numbers, got {poses.shape[1]}")
        if not 0 <= label < len(self.classes):
            raise ValueError(f"label must be one of 0 … {len(self.classes) - 1}, got {label}")
        every = torch.zeros(len(poses), len(self.classes), poses.shape[1])
        every[:, label] = poses
        with self._one_at_a_time:
            return decoder(every, torch.full((len(poses),), label))

    @torch.no_grad()
    def explain(self, image: Tensor) -> dict[str, Any]:
        """Say how the capsules of an image ``[1, H, W]`` agree, iteration by iteration.

        Returns:
            ``extent`` of the map in pixels (left, right, bottom, top); ``iterations``, each with the classes'
            ``scores``, the ``share`` of each place's activity that goes to each class ``[J, H, W]``, the ``activity``
            of each place ``[H, W]``, and the strongest capsules of the parse ``tree``.

        Raises:
            ValueError: a network without capsules.
        """
        if self.inside is None:
            raise ValueError(f"{self.name} must route a map of capsules to its classes, got none to look into")
        _, height, width = self.inside.map_shape
        with self._one_at_a_time:
            found = self.inside(image[None])
        places = places_in(self.inside.extent, (height, width))[found.capsules % (height * width)]
        tree = {
            "places": _rounded(places),
            "types": (found.capsules // (height * width)).tolist(),
            "activation": _rounded(found.activation),
        }
        steps = zip(found.lengths, found.share, found.activity, found.coupling)
        iterations = [
            {
                "scores": _rounded(lengths),
                "share": _rounded(share),
                "activity": _rounded(activity),
                "tree": {**tree, "coupling": _rounded(coupling)},
            }
            for lengths, share, activity, coupling in steps
        ]
        return {"extent": list(self.inside.extent), "iterations": iterations}

    def meanings(self, pose: Tensor, label: int) -> list[str | None]:
        """Name what each number of this pose ``[D]`` does to the reconstruction, where that is clear."""
        return name_dimensions(lambda poses: self.decode(poses, label), pose)

    def attack(self, image: Tensor, epsilon: float) -> Tensor:
        """Change each pixel of an image ``[1, H, W]`` by at most ε, away from the class that the network finds.

        Source: Goodfellow, Shlens, Szegedy 2015, section 4 (the fast gradient sign method), on the lead of the class.
        """
        with self._one_at_a_time, torch.enable_grad():
            x = image[None].clone().requires_grad_()
            scores = explain.scores_of(self.model, x)
            label = scores.argmax(dim=1, keepdim=True)
            others = scores.scatter(1, label, -torch.inf)
            lead = (scores.gather(1, label) - others.amax(dim=1, keepdim=True)).sum()
            (slope,) = torch.autograd.grad(lead, x)
        return (image - epsilon * slope[0].sign()).clamp(0, 1)

    def _shown(self, scores: Tensor) -> list[int]:
        first, second = scores.topk(2).indices.tolist()
        return [first, second] if self.pairs and scores[second] >= PRESENT else [first]


@typed
def load_network(run: str | Path) -> Network:
    """Load the trained network of a run.

    Raises:
        ValueError: no finished run of a classifier, or images that cannot be drawn.
    """
    trained, owner = load_model(run), run_of(run)
    name = owner.pretrained or Path(run).expanduser().resolve().name
    config = owner.classifier()
    pairs, logits = config.data.pairs, gives_logits(config.loss, trained.model)
    return Network(name, trained.model, trained.classes, trained.image_shape, pairs=pairs, logits=logits)


def run_of(run: str | Path) -> Run:
    """Return the run of a folder, of a ``model.pt`` beside its configuration, or of the library's own weights."""
    path = Path(run).expanduser()
    return Run(path.parent if path.is_file() else path)


def _inside(
    model: nn.Module, image_shape: tuple[int, int, int], as_probabilities: Callable[[Tensor], Tensor] | None
) -> Inside | None:
    try:
        return Inside(model, image_shape, as_probabilities)
    except ValueError:
        return None


def probabilities(scores: Tensor, *, pairs: bool) -> Tensor:
    """Turn logits into probabilities."""
    return scores.sigmoid() if pairs else scores.softmax(dim=1)


def _rounded(values: Tensor) -> Any:
    """Return nested lists of four digits: a page shows two."""
    return (values.double() * 1e4).round().div(1e4).tolist()
