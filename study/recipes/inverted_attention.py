"""Capsules with Inverted Dot-Product Attention Routing (Tsai, Srivastava, Goh, Salakhutdinov 2020).

Epochs, batch and augmentation are those of the authors' code, and so are the networks. They train by SGD with momentum
and two steps, which this library does not have: here it is Muon under a cosine. They kept the epoch that was best on
the test images. None was trained for so long, see the table ``cifar10-later``.
"""

from __future__ import annotations

from dataclasses import replace

from torchcaps.training.config import Data, Experiment, Model, Optim


def cifar10_attention() -> Experiment:
    """Inverted attention on CIFAR-10, two concurrent passes: 5.15 % in the authors' README, the mean of its runs."""
    return Experiment(
        recipe="cifar10-attention",
        data=Data("cifar10", shift=4, flip=True),
        model=Model("attention_capsnet", {"n_iters": 2}),
        optim=Optim(name="muon", lr=3e-3, schedule="cosine", warmup=0.02, weight_decay=5e-4),
        loss="cross_entropy",
        epochs=350,
        batch_size=128,
    )


def cifar10_attention_1_pass() -> Experiment:
    """``cifar10-attention`` with one pass, so without any choice: 5.27 % in the authors' README, a mean too."""
    model = Model("attention_capsnet", {"n_iters": 1})
    return replace(cifar10_attention(), recipe="cifar10-attention-1-pass", model=model)
