"""Dynamic Routing Between Capsules (Sabour, Frosst, Hinton 2017, arXiv 1710.09829)."""

from __future__ import annotations

from dataclasses import replace

from torchcaps.experiments.experiment import Data, Experiment, Model, Optim


def digits() -> Experiment:
    """The small CapsNet on scikit-learn's bundled digits: no download, seconds on a CPU."""
    return Experiment(
        recipe="digits",
        data=Data("digits"),
        model=Model("capsnet_small"),
        optim=Optim(lr=2e-3, schedule="cosine", warmup=0.05),
        epochs=20,
        batch_size=32,
    )


def digits_cnn() -> Experiment:
    """A CNN with as many parameters as the capsules of ``digits``, trained alike."""
    return replace(
        digits(), recipe="digits-cnn", model=Model("matched_cnn", {"n_parameters": 707_000}), loss="cross_entropy"
    )


def digits_stacked() -> Experiment:
    """Three layers of capsules (primary, convolutional, class) on the bundled digits."""
    return replace(digits(), recipe="digits-stacked", model=Model("capsnet_stacked"))


def digits_pairs() -> Experiment:
    """Two overlapping bundled digits, told apart and reconstructed each from its own capsule."""
    return replace(digits(), recipe="digits-pairs", data=Data("digits", pairs=True))


def mnist() -> Experiment:
    """The paper's network on MNIST."""
    return Experiment(
        recipe="mnist",
        data=Data("mnist"),
        model=Model("capsnet"),
        optim=Optim(lr=1e-3, schedule="cosine", warmup=0.02),
        epochs=14,
        batch_size=64,
        precision="bf16",
        compile=True,
    )


def mnist_cnn() -> Experiment:
    """The paper's baseline CNN on MNIST (0.39 % in its table 1)."""
    return replace(mnist(), recipe="mnist-cnn", model=Model("baseline_cnn"), loss="cross_entropy", compile=False)


def fashion_mnist() -> Experiment:
    """The paper's network on Fashion-MNIST, which the paper does not have."""
    return replace(mnist(), recipe="fashion-mnist", data=Data("fashion-mnist"))


def multimnist() -> Experiment:
    """Two overlapping MNIST digits; the paper reports 5.2 % after far more training."""
    return replace(mnist(), recipe="multimnist", data=Data("mnist", pairs=True, n_pairs=(100_000, 10_000)), epochs=10)
