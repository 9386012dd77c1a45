"""Every routing behind one trunk, on the same images, for as many steps: what ``python -m study routings`` trains.

The trunk is two small convolutions and a layer of primary capsules of 16 numbers, which can be 4×4 matrices, too. The
routing goes from these to the classes. There is no decoder, and nothing else differs but the loss: activations that lie
between 0 and 1 have the margin loss, others the cross-entropy. See "Routings side by side" in protocols.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from study import records
from torchcaps.training.config import Data, Experiment, Model, Optim
from torchcaps.training.run import with_fields

#: Names of :data:`~torchcaps.layers.routings.ROUTINGS`, and what they are called.
ROUTINGS: Mapping[str, str] = {
    "uniform": "even couplings",
    "random": "drawn couplings",
    "elementwise": "elementwise votes (HVC)",
    "dynamic": "dynamic (Sabour 2017)",
    "em": "EM (Hinton 2018)",
    "self_routing": "self-routing (Hahn 2019)",
    "self_attention": "self-attention (Mazzia 2021)",
    "inverted_attention": "inverted attention (Tsai 2020)",
    "variational_bayes": "variational Bayes (Ribeiro 2020)",
    "heinsen_matrix": "Heinsen 2019",
    "heinsen_vector": "Heinsen 2022",
    "degree": "degree (SOVNET 2020)",
    "attention": "attention (AR-CapsNet 2019)",
}
#: Learning rates that are tried.
RATES = (3e-4, 1e-3, 3e-3)
#: Those whose activations are no lengths or probabilities.
UNBOUNDED = ("elementwise", "inverted_attention", "heinsen_matrix", "heinsen_vector")
TRUNK: Mapping[str, Any] = {
    "channels": 32,
    "kernel_size": 5,
    "stem": [{"channels": 32, "kernel_size": 5, "stride": 2, "padding": 0}],
    "n_types": 16,
    "d_primary": 16,
    "d_class": 16,
    "decoder": None,
}


class Compared(NamedTuple):
    """A data set of the comparison.

    Attributes:
        title: in words.
        data: as recipes have them.
        epochs: of each run.
    """

    title: str
    data: Data
    epochs: int


DATA: Mapping[str, Compared] = {
    "mnist": Compared("MNIST", Data("mnist", shift=0), 3),
    "fashion-mnist": Compared("Fashion-MNIST", Data("fashion-mnist", shift=0), 3),
    "smallnorb": Compared(
        "small NORB, toys of which none was trained on", Data("smallnorb", shift=0, crop=(32, 32)), 9
    ),
    "azimuth": Compared(
        "small NORB, azimuths of which none was trained on (fold 0)",
        Data("smallnorb", shift=0, crop=(32, 32), options={"split": "azimuth", "fold": 0}),
        36,
    ),
    "cifar10": Compared("CIFAR-10, a tenth of it", Data("cifar10", shift=0, crop=(28, 28)), 36),
}


def name_of(data: str, routing: str) -> str:
    """Return a recipe's name."""
    return f"routings-{data}-{routing.replace('_', '-')}"


def compared(data: str, routing: str) -> Experiment:
    """Make the experiment before anything is chosen."""
    chosen = DATA[data]
    return Experiment(
        recipe=name_of(data, routing),
        data=chosen.data,
        model=Model("capsnet", {**TRUNK, "routing": routing}),
        optim=Optim(lr=1e-3, schedule="cosine", warmup=0.05, weight_decay=2e-7),
        loss="cross_entropy" if routing in UNBOUNDED else "margin",
        reconstruction=0.0,
        epochs=chosen.epochs,
        batch_size=64,
    )


def recipes() -> dict[str, Callable[[], Experiment]]:
    """Return all by name, with the settings that its trials chose, where they are recorded."""
    return {name_of(data, routing): _recipe(data, routing) for data in DATA for routing in ROUTINGS}


def _recipe(data: str, routing: str) -> Callable[[], Experiment]:
    def made() -> Experiment:
        config = compared(data, routing)
        trials = records.every("tuning").get(config.recipe)
        return config if trials is None else replace(with_fields(config, trials["best"]), recipe=config.recipe)

    made.__doc__ = f"Routing by {ROUTINGS[routing]}, beside others on {DATA[data].title}."
    return made
