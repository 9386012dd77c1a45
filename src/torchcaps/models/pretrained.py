"""Trained weights that come with the library: safetensors files, each with a card that says what it is."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from torch import Tensor, nn

#: Where the files lie.
FOLDER = Path(__file__).parent / "weights"
#: What depends on the number of classes: the beginnings of the names of these weights.
_OF_CLASSES = ("classes.", "decoder.")


@dataclass(frozen=True)
class Card:
    """Say what a file of weights holds.

    Attributes:
        name: Name of the weights.
        model: The network, one of :data:`torchcaps.models.MODELS`.
        options: Its options.
        image_shape: (channels, height, width) of what it takes.
        classes: Their names, in the order of its scores; none of an auto-encoder.
        uncropped: (height, width) of the images whose central windows it takes.
        preprocessing: What is done to an image first, in words.
        recipe: What it was trained by.
        data: What it was trained on.
        result: Its numbers in test, by name: an error as a share, as the file's half precision gives it.
        record: The record of that training, and what the numbers were in single precision.
        licence: Of the weights, and of the data.
        sha256: Checksum of the file.
        size: Its bytes.
    """

    name: str
    model: str
    options: dict[str, Any]
    image_shape: tuple[int, int, int]
    classes: tuple[str, ...]
    uncropped: tuple[int, int]
    preprocessing: str
    recipe: str
    data: str
    result: dict[str, float]
    record: str
    licence: str
    sha256: str
    size: int

    def write(self, folder: Path = FOLDER) -> Path:
        """Write the card beside its weights; return where."""
        path = folder / f"{self.name}.json"
        path.write_text(json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        return path


def read_card(path: Path) -> Card:
    """Read a card.

    Raises:
        ValueError: It is no card.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        values: dict[str, Any] = {field.name: found[field.name] for field in fields(Card)}
        values |= {name: tuple(found[name]) for name in ("image_shape", "classes", "uncropped")}
        return Card(**values)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} must be the card of a file of weights: {error!r}") from error


@cache
def cards() -> Mapping[str, Card]:
    """Return the card of each file of weights, by its name.

    Example:
        >>> cards()["mnist-small"].model
        'capsnet_small'
    """
    return {path.stem: read_card(path) for path in sorted(FOLDER.glob("*.json"))}


def choose_card(model: str, which: bool | str) -> Card:
    """Return the card that ``build(model, ..., pretrained=which)`` asks for.

    Raises:
        ValueError: There are no such weights, or they are another network's.
    """
    mine = [card.name for card in cards().values() if card.model == model]
    if not mine:
        known = sorted({card.model for card in cards().values()})
        raise ValueError(f"pretrained must be False for {model}, got {which!r}: weights are of {', '.join(known)}")
    if which is True:
        if len(mine) != 1:
            raise ValueError(f"pretrained must be one of {', '.join(mine)} for {model}, got True")
        return cards()[mine[0]]
    if which not in mine:
        raise ValueError(f"pretrained must be True or one of {', '.join(mine)} for {model}, got {which!r}")
    return cards()[which]


def read_weights(card: Card, folder: Path = FOLDER) -> dict[str, Tensor]:
    """Read the weights of a card, which are kept in half precision.

    Raises:
        ValueError: The file is missing, or is not the one that the card is about.
        ModuleNotFoundError: The package safetensors is not installed.
    """
    try:
        from safetensors.torch import load
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("pretrained weights need safetensors: pip install safetensors") from error
    path = folder / f"{card.name}.safetensors"
    if not path.is_file():
        raise ValueError(f"{path} must hold the weights {card.name}, and is missing: install torchcaps again")
    content = path.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != card.sha256:
        raise ValueError(f"{path} must have the sha256 {card.sha256}, got {found}: install torchcaps again")
    return load(content)


def fill(model: nn.Module, card: Card, n_classes: int | None) -> None:
    """Put the weights of a card into a network of its options, in place.

    With another number of classes than the weights have, the features are kept. Class capsules and decoder keep their
    initial values, and a warning says so.

    Raises:
        ValueError: As :func:`read_weights`, or the network has other options than the weights.
    """
    weights = read_weights(card)
    others = n_classes is not None and len(card.classes) not in (0, n_classes)
    if others:
        weights = {name: value for name, value in weights.items() if not name.startswith(_OF_CLASSES)}
        weights = model.state_dict() | weights
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise ValueError(f"options must be those of the weights {card.name}, {card.options}: {error}") from None
    if not others:
        return
    warnings.warn(
        f"the weights {card.name} have {len(card.classes)} classes, not {n_classes}: the features are theirs, class "
        "capsules and decoder are new and have to be trained",
        stacklevel=3,
    )
