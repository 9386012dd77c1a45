"""Capsule Routing via Variational Bayes (De Sousa Ribeiro, Leontidis, Kollias 2020).

Network, loss, optimizer, batch and epochs are those of the authors' code: the cross-entropy of probabilities, which
cannot fall below 0.905 with five classes. They hold out a fifth of the training images; here it is one toy of each
category. ``smallnorb-variational-bayes-light`` is another, and the one that was trained.
"""

from __future__ import annotations

from dataclasses import replace

from study.recipes.matrix_capsules import smallnorb_em_light_short
from torchcaps.training.config import Data, Experiment, Model, Optim


def smallnorb_variational_bayes() -> Experiment:
    """The network {64, 16, 32, 32} on small NORB: 1.6 % in the paper, for which its code has 244,682 parameters."""
    model = Model("variational_bayes_capsnet", {"B": 16, "C": 32, "D": 32})
    return replace(smallnorb_variational_bayes_small(), recipe="smallnorb-variational-bayes", model=model)


def smallnorb_variational_bayes_small() -> Experiment:
    """The network {64, 8, 16, 16} of the authors' code, the sizes of the small network with EM routing."""
    return Experiment(
        recipe="smallnorb-variational-bayes-small",
        data=Data("smallnorb", shift=0, crop=(32, 32)),
        model=Model("variational_bayes_capsnet"),
        optim=Optim(lr=1e-3),
        loss="cross_entropy",
        epochs=300,
        batch_size=128,
    )


def smallnorb_variational_bayes_light() -> Experiment:
    """``smallnorb-em-light-short`` with variational Bayes: the same images in the same light, for as many epochs.

    The loss is the paper's. The rate is the one that ``python -m study routings`` chose on held-out images of four data
    sets, in another network.
    """
    return replace(
        smallnorb_em_light_short(),
        recipe="smallnorb-variational-bayes-light",
        model=Model("variational_bayes_capsnet"),
        optim=Optim(lr=3e-3, schedule="cosine", warmup=0.02),
        loss="cross_entropy",
    )
