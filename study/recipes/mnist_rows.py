"""What CapsNet owes to its iterations, its reconstruction and its labels, on MNIST.

Each recipe is ``mnist-adam`` or ``mnist-cnn`` except for what it names: compare it with that, not with ``mnist``.
Table 1 is that of Dynamic Routing Between Capsules (Sabour, Frosst, Hinton 2017); its numbers are means of 3 trials.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from study.recipes.dynamic_routing import mnist_matched_cnn
from torchcaps.training.config import NO_FACTORS, Experiment, Model
from torchcaps.training.recipes import mnist_adam, mnist_cnn


def mnist_no_reconstruction() -> Experiment:
    """``mnist-adam`` (three iterations) without reconstruction: 0.35 % ± 0.036 in the paper's table 1."""
    return _row("mnist-no-reconstruction", decoder=None)


def mnist_1_iteration() -> Experiment:
    """``mnist-adam`` with one iteration: 0.29 % ± 0.011 in the paper's table 1."""
    return _row("mnist-1-iteration", n_iters=1)


def mnist_1_iteration_no_reconstruction() -> Experiment:
    """``mnist-adam`` with one iteration, without reconstruction: 0.34 % ± 0.032 in the paper's table 1."""
    return _row("mnist-1-iteration-no-reconstruction", n_iters=1, decoder=None)


def mnist_2_iterations() -> Experiment:
    """``mnist-adam`` with two iterations; the paper gives no error for it."""
    return _row("mnist-2-iterations", n_iters=2)


def mnist_4_iterations() -> Experiment:
    """``mnist-adam`` with four iterations; the paper gives no error for it."""
    return _row("mnist-4-iterations", n_iters=4)


def mnist_5_iterations() -> Experiment:
    """``mnist-adam`` with five iterations; the paper gives no error for it."""
    return _row("mnist-5-iterations", n_iters=5)


def mnist_10_iterations() -> Experiment:
    """``mnist-adam`` with ten iterations; the paper gives no error for it."""
    return _row("mnist-10-iterations", n_iters=10)


def mnist_100_labels() -> Experiment:
    """``mnist-adam`` on the first 100 training digits alone, in as many steps; not in the paper."""
    return _fewer(mnist_adam(), 100)


def mnist_1000_labels() -> Experiment:
    """``mnist-adam`` on the first 1,000 training digits alone, in as many steps; not in the paper."""
    return _fewer(mnist_adam(), 1000)


def mnist_10000_labels() -> Experiment:
    """``mnist-adam`` on the first 10,000 training digits alone, in as many steps; not in the paper."""
    return _fewer(mnist_adam(), 10_000)


def mnist_cnn_100_labels() -> Experiment:
    """The CNN of ``mnist-cnn`` on the first 100 training digits, in as many steps; not in the paper."""
    return _fewer(mnist_cnn(), 100)


def mnist_cnn_1000_labels() -> Experiment:
    """The CNN of ``mnist-cnn`` on the first 1,000 training digits, in as many steps; not in the paper."""
    return _fewer(mnist_cnn(), 1000)


def mnist_cnn_10000_labels() -> Experiment:
    """The CNN of ``mnist-cnn`` on the first 10,000 training digits, in as many steps; not in the paper."""
    return _fewer(mnist_cnn(), 10_000)


def mnist_matched_cnn_100_labels() -> Experiment:
    """The CNN of ``mnist-matched-cnn`` on the first 100 training digits, in as many steps; not in the paper."""
    return _fewer(mnist_matched_cnn(), 100)


def mnist_matched_cnn_1000_labels() -> Experiment:
    """The CNN of ``mnist-matched-cnn`` on the first 1,000 training digits, in as many steps; not in the paper."""
    return _fewer(mnist_matched_cnn(), 1000)


def mnist_matched_cnn_10000_labels() -> Experiment:
    """The CNN of ``mnist-matched-cnn`` on the first 10,000 training digits, in as many steps; not in the paper."""
    return _fewer(mnist_matched_cnn(), 10_000)


def _row(name: str, **options: Any) -> Experiment:
    return replace(mnist_adam(), recipe=name, model=Model("capsnet", {**NO_FACTORS, **options}))


def _fewer(config: Experiment, n: int) -> Experiment:
    """An epoch still shows 55,000 images: steps, learning rates and validations are those of all labels."""
    name = f"{config.recipe.removesuffix('-adam')}-{n}-labels"
    return replace(config, recipe=name, data=replace(config.data, n_train=n, n_shown=55_000))
