"""One file per paper, one function per row of its table; each docstring states the claim."""

from __future__ import annotations

import difflib
from collections.abc import Callable

from torchcaps.experiments.experiment import Experiment
from torchcaps.experiments.recipes import affine, mnist_rows, other_images, viewpoints
from torchcaps.experiments.recipes import dynamic_routing as capsnet
from torchcaps.experiments.recipes import matrix_capsules as matrix
from torchcaps.experiments.recipes import transforming_autoencoders as transforming

#: Every recipe, by name.
RECIPES: dict[str, Callable[[], Experiment]] = {
    "cifar10": other_images.cifar10,
    "cifar10-em": matrix.cifar10_em,
    "digits": capsnet.digits,
    "digits-cnn": capsnet.digits_cnn,
    "digits-pairs": capsnet.digits_pairs,
    "digits-plain-autoencoder": transforming.digits_plain_autoencoder,
    "digits-stacked": capsnet.digits_stacked,
    "digits-templates": transforming.digits_templates,
    "digits-translation": transforming.digits_translation,
    "expanded-mnist": affine.expanded_mnist,
    "expanded-mnist-cnn": affine.expanded_mnist_cnn,
    "faces": capsnet.faces,
    "faces-cnn": capsnet.faces_cnn,
    "fashion-mnist": capsnet.fashion_mnist,
    "fashion-mnist-affine": transforming.fashion_mnist_affine,
    "fashion-mnist-templates": transforming.fashion_mnist_templates,
    "mnist": capsnet.mnist,
    "mnist-1-iteration": mnist_rows.mnist_1_iteration,
    "mnist-1-iteration-no-reconstruction": mnist_rows.mnist_1_iteration_no_reconstruction,
    "mnist-2-iterations": mnist_rows.mnist_2_iterations,
    "mnist-4-iterations": mnist_rows.mnist_4_iterations,
    "mnist-5-iterations": mnist_rows.mnist_5_iterations,
    "mnist-10-iterations": mnist_rows.mnist_10_iterations,
    "mnist-100-labels": mnist_rows.mnist_100_labels,
    "mnist-1000-labels": mnist_rows.mnist_1000_labels,
    "mnist-10000-labels": mnist_rows.mnist_10000_labels,
    "mnist-adam": capsnet.mnist_adam,
    "mnist-affine": transforming.mnist_affine,
    "mnist-affine-consistent": transforming.mnist_affine_consistent,
    "mnist-affine-parts": transforming.mnist_affine_parts,
    "mnist-affine-local": transforming.mnist_affine_local,
    "mnist-augmented": capsnet.mnist_augmented,
    "mnist-cnn": capsnet.mnist_cnn,
    "mnist-cnn-100-labels": mnist_rows.mnist_cnn_100_labels,
    "mnist-cnn-1000-labels": mnist_rows.mnist_cnn_1000_labels,
    "mnist-cnn-10000-labels": mnist_rows.mnist_cnn_10000_labels,
    "mnist-em": matrix.mnist_em,
    "mnist-heavy-reconstruction": capsnet.mnist_heavy_reconstruction,
    "mnist-matched-cnn": capsnet.mnist_matched_cnn,
    "mnist-matched-cnn-100-labels": mnist_rows.mnist_matched_cnn_100_labels,
    "mnist-matched-cnn-1000-labels": mnist_rows.mnist_matched_cnn_1000_labels,
    "mnist-matched-cnn-10000-labels": mnist_rows.mnist_matched_cnn_10000_labels,
    "mnist-no-reconstruction": mnist_rows.mnist_no_reconstruction,
    "mnist-plain-autoencoder": transforming.mnist_plain_autoencoder,
    "mnist-primary-scale": capsnet.mnist_primary_scale,
    "mnist-retrained": capsnet.mnist_retrained,
    "mnist-muon-augmented": capsnet.mnist_muon_augmented,
    "mnist-templates": transforming.mnist_templates,
    "mnist-translation": transforming.mnist_translation,
    "mnist-translation-consistent": transforming.mnist_translation_consistent,
    "multimnist": capsnet.multimnist,
    "multimnist-adam": capsnet.multimnist_adam,
    "multimnist-cnn": capsnet.multimnist_cnn,
    "multimnist-deep": capsnet.multimnist_deep,
    "smallnorb": matrix.smallnorb,
    "smallnorb-1-iteration": matrix.smallnorb_1_iteration,
    "smallnorb-2-iterations": matrix.smallnorb_2_iterations,
    "smallnorb-5-iterations": matrix.smallnorb_5_iterations,
    "smallnorb-affine": transforming.smallnorb_affine,
    "smallnorb-azimuth": viewpoints.smallnorb_azimuth,
    "smallnorb-azimuth-fold-0": viewpoints.smallnorb_azimuth_fold_0,
    "smallnorb-azimuth-cnn": viewpoints.smallnorb_azimuth_cnn,
    "smallnorb-azimuth-cnn-fold-0": viewpoints.smallnorb_azimuth_cnn_fold_0,
    "smallnorb-azimuth-cnn-small": viewpoints.smallnorb_azimuth_cnn_small,
    "smallnorb-azimuth-cnn-small-fold-0": viewpoints.smallnorb_azimuth_cnn_small_fold_0,
    "smallnorb-capsnet": other_images.smallnorb_capsnet,
    "smallnorb-cnn": matrix.smallnorb_cnn,
    "smallnorb-cnn-small": matrix.smallnorb_cnn_small,
    "smallnorb-cross-entropy": matrix.smallnorb_cross_entropy,
    "smallnorb-elevation": viewpoints.smallnorb_elevation,
    "smallnorb-elevation-fold-0": viewpoints.smallnorb_elevation_fold_0,
    "smallnorb-elevation-cnn": viewpoints.smallnorb_elevation_cnn,
    "smallnorb-elevation-cnn-fold-0": viewpoints.smallnorb_elevation_cnn_fold_0,
    "smallnorb-elevation-cnn-small": viewpoints.smallnorb_elevation_cnn_small,
    "smallnorb-elevation-cnn-small-fold-0": viewpoints.smallnorb_elevation_cnn_small_fold_0,
    "smallnorb-em-augmented": matrix.smallnorb_em_augmented,
    "smallnorb-em-held-out": matrix.smallnorb_em_held_out,
    "smallnorb-em-small": matrix.smallnorb_em_small,
    "smallnorb-em-weight-decay": matrix.smallnorb_em_weight_decay,
    "smallnorb-em-deep": matrix.smallnorb_em_deep,
    "smallnorb-em-light": matrix.smallnorb_em_light,
    "smallnorb-margin-loss": matrix.smallnorb_margin_loss,
    "smallnorb-no-coordinates": matrix.smallnorb_no_coordinates,
    "smallnorb-vector": matrix.smallnorb_vector,
    "smallnorb-vector-no-coordinates": matrix.smallnorb_vector_no_coordinates,
    "svhn": other_images.svhn,
    **viewpoints.further_folds(),
}


def recipe(name: str) -> Experiment:
    """The experiment of that name.

    Raises:
        ValueError: an unknown name; says which is meant, if one is near.
    """
    if name not in RECIPES:
        near = " or ".join(difflib.get_close_matches(str(name), RECIPES, n=2))
        raise ValueError(
            f"recipe must be one that torchcaps list shows{f', such as {near}' * bool(near)}; got {name!r}"
        )
    return RECIPES[name]()
