"""Self-Routing Capsule Networks (Hahn, Pyeon, Kim 2019).

Networks, epochs, batch and augmentation are those of the authors' code. They train by SGD with momentum and two steps,
which this library does not have: here it is Muon under a cosine. None was trained for so long, see the table
``cifar10-later``.
"""

from __future__ import annotations

from torchcaps.training.config import Data, Experiment, Model, Optim


def cifar10_self_routing() -> Experiment:
    """ResNet-20 with self-routing classes on CIFAR-10: 8.17 % ± 0.18 on the authors' poster (SR-1)."""
    return _depth(1, "cifar10-self-routing")


def cifar10_self_routing_2() -> Experiment:
    """The same with a layer of convolutional capsules below the classes: 7.86 % ± 0.12 on the poster (SR-2)."""
    return _depth(2, "cifar10-self-routing-2")


def cifar10_average_pool() -> Experiment:
    """The same trunk without capsules: 7.94 % ± 0.21 on the poster (AvgPool)."""
    return _depth(0, "cifar10-average-pool")


def _depth(depth: int, name: str) -> Experiment:
    return Experiment(
        recipe=name,
        data=Data("cifar10", shift=4, flip=True),
        model=Model("self_routing_resnet", {"depth": depth}),
        optim=Optim(name="muon", lr=3e-3, schedule="cosine", warmup=0.02, weight_decay=1e-4),
        loss="cross_entropy",
        epochs=350,
        batch_size=64,
    )
