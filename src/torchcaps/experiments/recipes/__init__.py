"""One file per paper, one function per row of its table; each docstring states the claim."""

from __future__ import annotations

from collections.abc import Callable

from torchcaps.experiments.experiment import Experiment
from torchcaps.experiments.recipes import dynamic_routing as capsnet
from torchcaps.experiments.recipes import matrix_capsules as matrix

#: Every recipe, by name.
RECIPES: dict[str, Callable[[], Experiment]] = {
    "digits": capsnet.digits,
    "digits-cnn": capsnet.digits_cnn,
    "digits-pairs": capsnet.digits_pairs,
    "digits-stacked": capsnet.digits_stacked,
    "faces": capsnet.faces,
    "faces-cnn": capsnet.faces_cnn,
    "fashion-mnist": capsnet.fashion_mnist,
    "mnist": capsnet.mnist,
    "mnist-cnn": capsnet.mnist_cnn,
    "mnist-em": matrix.mnist_em,
    "multimnist": capsnet.multimnist,
    "smallnorb": matrix.smallnorb,
    "smallnorb-1-iteration": matrix.smallnorb_1_iteration,
    "smallnorb-2-iterations": matrix.smallnorb_2_iterations,
    "smallnorb-5-iterations": matrix.smallnorb_5_iterations,
    "smallnorb-cnn": matrix.smallnorb_cnn,
    "smallnorb-cnn-small": matrix.smallnorb_cnn_small,
    "smallnorb-cross-entropy": matrix.smallnorb_cross_entropy,
    "smallnorb-margin-loss": matrix.smallnorb_margin_loss,
    "smallnorb-no-coordinates": matrix.smallnorb_no_coordinates,
    "smallnorb-small": matrix.smallnorb_small,
    "smallnorb-vector": matrix.smallnorb_vector,
    "smallnorb-vector-no-coordinates": matrix.smallnorb_vector_no_coordinates,
}


def recipe(name: str) -> Experiment:
    """The experiment of that name.

    Raises:
        ValueError: an unknown name; lists the known ones.
    """
    if name not in RECIPES:
        raise ValueError(f"recipe must be one of {', '.join(RECIPES)}; got {name!r}")
    return RECIPES[name]()
