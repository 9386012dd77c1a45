"""One file per paper, one function per row of its table; each docstring states the claim."""

from __future__ import annotations

from collections.abc import Callable

from study.recipes import affine, controls, efficient_capsnet, mnist_rows, other_images, viewpoints
from study.recipes import dynamic_routing as capsnet
from study.recipes import matrix_capsules as matrix
from study.recipes import transforming_autoencoders as transforming
from torchcaps.training.config import Experiment
from torchcaps.training.recipes import RECIPES, recipe

#: Recipes that are rows of tables; importing this enters them among the library's.
_ROWS: dict[str, Callable[[], Experiment]] = {
    "cifar10-em": matrix.cifar10_em,
    "expanded-mnist": affine.expanded_mnist,
    "expanded-mnist-cnn": affine.expanded_mnist_cnn,
    "expanded-mnist-shared": controls.expanded_mnist_shared,
    "faces": capsnet.faces,
    "faces-cnn": capsnet.faces_cnn,
    "fashion-mnist-affine": transforming.fashion_mnist_affine,
    "fashion-mnist-templates": transforming.fashion_mnist_templates,
    "mnist-1-iteration": mnist_rows.mnist_1_iteration,
    "mnist-1-iteration-no-reconstruction": mnist_rows.mnist_1_iteration_no_reconstruction,
    "mnist-2-iterations": mnist_rows.mnist_2_iterations,
    "mnist-4-iterations": mnist_rows.mnist_4_iterations,
    "mnist-5-iterations": mnist_rows.mnist_5_iterations,
    "mnist-10-iterations": mnist_rows.mnist_10_iterations,
    "mnist-100-labels": mnist_rows.mnist_100_labels,
    "mnist-1000-labels": mnist_rows.mnist_1000_labels,
    "mnist-10000-labels": mnist_rows.mnist_10000_labels,
    "mnist-affine": transforming.mnist_affine,
    "mnist-affine-consistent": transforming.mnist_affine_consistent,
    "mnist-affine-parts": transforming.mnist_affine_parts,
    "mnist-affine-local": transforming.mnist_affine_local,
    "mnist-augmented": capsnet.mnist_augmented,
    "mnist-cnn-100-labels": mnist_rows.mnist_cnn_100_labels,
    "mnist-cnn-1000-labels": mnist_rows.mnist_cnn_1000_labels,
    "mnist-cnn-10000-labels": mnist_rows.mnist_cnn_10000_labels,
    "mnist-efficient": efficient_capsnet.mnist_efficient,
    "mnist-efficient-dynamic": efficient_capsnet.mnist_efficient_dynamic,
    "mnist-efficient-uniform": efficient_capsnet.mnist_efficient_uniform,
    "mnist-elementwise": controls.mnist_elementwise,
    "mnist-heavy-reconstruction": capsnet.mnist_heavy_reconstruction,
    "mnist-matched-cnn": capsnet.mnist_matched_cnn,
    "mnist-matched-cnn-100-labels": mnist_rows.mnist_matched_cnn_100_labels,
    "mnist-matched-cnn-1000-labels": mnist_rows.mnist_matched_cnn_1000_labels,
    "mnist-matched-cnn-10000-labels": mnist_rows.mnist_matched_cnn_10000_labels,
    "mnist-no-reconstruction": mnist_rows.mnist_no_reconstruction,
    "mnist-plain-autoencoder": transforming.mnist_plain_autoencoder,
    "mnist-primary-scale": capsnet.mnist_primary_scale,
    "mnist-random": controls.mnist_random,
    "mnist-retrained": capsnet.mnist_retrained,
    "mnist-shared": controls.mnist_shared,
    "mnist-muon-augmented": capsnet.mnist_muon_augmented,
    "mnist-translation-consistent": transforming.mnist_translation_consistent,
    "multimnist": capsnet.multimnist,
    "multimnist-adam": capsnet.multimnist_adam,
    "multimnist-efficient": efficient_capsnet.multimnist_efficient,
    "multimnist-cnn": capsnet.multimnist_cnn,
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
    "smallnorb-efficient": efficient_capsnet.smallnorb_efficient,
    "smallnorb-elevation": viewpoints.smallnorb_elevation,
    "smallnorb-elevation-fold-0": viewpoints.smallnorb_elevation_fold_0,
    "smallnorb-elevation-cnn": viewpoints.smallnorb_elevation_cnn,
    "smallnorb-elevation-cnn-fold-0": viewpoints.smallnorb_elevation_cnn_fold_0,
    "smallnorb-elevation-cnn-small": viewpoints.smallnorb_elevation_cnn_small,
    "smallnorb-elevation-cnn-small-fold-0": viewpoints.smallnorb_elevation_cnn_small_fold_0,
    "smallnorb-em-augmented": matrix.smallnorb_em_augmented,
    "smallnorb-em-held-out": matrix.smallnorb_em_held_out,
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
RECIPES.update(_ROWS)

__all__ = ["RECIPES", "recipe"]
