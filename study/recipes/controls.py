"""What networks do without routing: ``mnist-adam`` and ``expanded-mnist`` with the controls of every comparison.

Each differs from the recipe it begins from in its routing alone, unless it says more. ``mnist-1-iteration`` is the
control with even couplings. Of these only the small networks of ``expanded-mnist-small`` were trained yet.
"""

from __future__ import annotations

from dataclasses import replace

from study.recipes.affine import expanded_mnist
from torchcaps.training.config import NO_FACTORS, Experiment, Model
from torchcaps.training.recipes import mnist_adam

_SHARED = {**NO_FACTORS, "routing": "uniform", "shared": True}


def mnist_random() -> Experiment:
    """``mnist-adam`` with random couplings that stay, between 0.8 / J and 1.2 / J before they are made to sum to 1."""
    return replace(mnist_adam(), recipe="mnist-random", model=Model("capsnet", {**NO_FACTORS, "routing": "random"}))


def mnist_shared() -> Experiment:
    """``mnist-adam`` with even couplings, and one matrix a class that all lower capsules share (Gu, Tresp 2020)."""
    return replace(mnist_adam(), recipe="mnist-shared", model=Model("capsnet", _SHARED))


def mnist_elementwise() -> Experiment:
    """``mnist-adam`` with elementwise votes, classes of 8 numbers and cross-entropy, without a decoder.

    The vote is that of Byerly et al. 2021; their network has nine convolutions and three branches.
    """
    options = {"primary_scale": 1.0, "routing": "elementwise", "d_class": 8, "decoder": None}
    model = Model("capsnet", options)
    return replace(mnist_adam(), recipe="mnist-elementwise", model=model, loss="cross_entropy")


def expanded_mnist_shared() -> Experiment:
    """``expanded-mnist`` with even couplings and shared matrices: 93.21 % right on affNIST in Gu, Tresp 2020.

    That paper's network and training were not read; this is CapsNet's, with the change that its abstract names.
    """
    return replace(expanded_mnist(), recipe="expanded-mnist-shared", model=Model("capsnet", _SHARED))


def expanded_mnist_small() -> Experiment:
    """``expanded-mnist`` with the small CapsNet, which a core trains in half an hour. Nothing stops it early."""
    model = Model("capsnet_small", NO_FACTORS)
    return replace(expanded_mnist(), recipe="expanded-mnist-small", model=model, stop_at=None)


def expanded_mnist_small_uniform() -> Experiment:
    """``expanded-mnist-small`` with even couplings; each lower capsule keeps its own matrices."""
    model = Model("capsnet_small", {**NO_FACTORS, "routing": "uniform"})
    return replace(expanded_mnist_small(), recipe="expanded-mnist-small-uniform", model=model)


def expanded_mnist_small_shared() -> Experiment:
    """``expanded-mnist-small`` with both changes of ``expanded-mnist-shared``."""
    return replace(expanded_mnist_small(), recipe="expanded-mnist-small-shared", model=Model("capsnet_small", _SHARED))
