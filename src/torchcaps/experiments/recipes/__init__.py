"""One file per paper, one function per row of its table; each docstring states the claim."""

from __future__ import annotations

from collections.abc import Callable

from torchcaps.experiments.experiment import Experiment
from torchcaps.experiments.recipes import dynamic_routing as capsnet

#: Every recipe, by name.
RECIPES: dict[str, Callable[[], Experiment]] = {
    "digits": capsnet.digits,
    "digits-cnn": capsnet.digits_cnn,
    "digits-pairs": capsnet.digits_pairs,
    "digits-stacked": capsnet.digits_stacked,
    "fashion-mnist": capsnet.fashion_mnist,
    "mnist": capsnet.mnist,
    "mnist-cnn": capsnet.mnist_cnn,
    "multimnist": capsnet.multimnist,
}


def recipe(name: str) -> Experiment:
    """The experiment of that name.

    Raises:
        ValueError: an unknown name; lists the known ones.
    """
    if name not in RECIPES:
        raise ValueError(f"recipe must be one of {', '.join(RECIPES)}; got {name!r}")
    return RECIPES[name]()
