"""Digits trained on at random places, tested on affine changes that were never trained on.

Section 5.2 of Dynamic Routing Between Capsules (Sabour, Frosst, Hinton 2017): at 99.23 % and 99.22 % on expanded MNIST
CapsNet read 79 % of affNIST and a CNN with as many parameters 66 %. Both are stopped here at the end of the first
epoch in which they misclassified at most 1.08 % of the expanded *validation* digits, 1.4 times 0.77 %: the six
networks that were recorded on MNIST by then misclassified 1.33 to 1.47 times as many validation as test digits (later
ones 0.91 to 1.61 times). Eight epochs of the cosine left the capsules short of it (that run was not kept), so it has
ten.
``affine_mnist_error`` in the result is that on affine-MNIST, which is this library's; with
``--data.options.affnist true`` ``affnist_error`` joins it, that on the paper's test set.
"""

from __future__ import annotations

from dataclasses import replace

from torchcaps.training.config import NO_FACTORS, Data, Experiment, Model, Optim


def expanded_mnist() -> Experiment:
    """CapsNet, trained on expanded MNIST: 79 % right on affNIST, so 21 % error, in the paper's section 5.2."""
    return Experiment(
        recipe="expanded-mnist",
        data=Data("expanded-mnist", shift=6),
        model=Model("capsnet", NO_FACTORS),
        optim=Optim(lr=1e-3, schedule="cosine", warmup=0.02),
        epochs=10,
        stop_at=0.0108,
        batch_size=64,
        precision="bf16",
    )


def expanded_mnist_cnn() -> Experiment:
    """A CNN with as many parameters as those capsules without their decoder: 34 % error in the paper's section 5.2."""
    model = Model("matched_cnn", {"n_parameters": 11_228_064})
    return replace(expanded_mnist(), recipe="expanded-mnist-cnn", model=model, loss="cross_entropy")
