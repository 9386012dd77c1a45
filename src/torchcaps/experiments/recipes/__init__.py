"""One file per paper, one function per row of its table; each docstring states the claim."""

from __future__ import annotations

from collections.abc import Callable

from torchcaps.experiments.experiment import Experiment
from torchcaps.experiments.recipes import dynamic_routing as capsnet
from torchcaps.experiments.recipes import matrix_capsules as matrix
from torchcaps.experiments.recipes import transforming_autoencoders as transforming

#: Every recipe, by name.
RECIPES: dict[str, Callable[[], Experiment]] = {
    "digits": capsnet.digits,
    "digits-cnn": capsnet.digits_cnn,
    "digits-pairs": capsnet.digits_pairs,
    "digits-plain-autoencoder": transforming.digits_plain_autoencoder,
    "digits-stacked": capsnet.digits_stacked,
    "digits-templates": transforming.digits_templates,
    "digits-translation": transforming.digits_translation,
    "fashion-mnist": capsnet.fashion_mnist,
    "fashion-mnist-affine": transforming.fashion_mnist_affine,
    "fashion-mnist-templates": transforming.fashion_mnist_templates,
    "mnist": capsnet.mnist,
    "mnist-affine": transforming.mnist_affine,
    "mnist-affine-consistent": transforming.mnist_affine_consistent,
    "mnist-affine-local": transforming.mnist_affine_local,
    "mnist-cnn": capsnet.mnist_cnn,
    "mnist-em": matrix.mnist_em,
    "mnist-plain-autoencoder": transforming.mnist_plain_autoencoder,
    "mnist-templates": transforming.mnist_templates,
    "mnist-translation": transforming.mnist_translation,
    "mnist-translation-consistent": transforming.mnist_translation_consistent,
    "multimnist": capsnet.multimnist,
    "smallnorb": matrix.smallnorb,
    "smallnorb-affine": transforming.smallnorb_affine,
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
