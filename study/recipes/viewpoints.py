"""Toys from viewpoints that were never trained on: table 2 of Matrix Capsules with EM Routing.

(Hinton, Sabour, Frosst, ICLR 2018.) ``test_error`` in the result is that on familiar viewpoints, ``novel_error`` on
the others. The paper compares them where capsules and CNN are as good on familiar ones:
``python -m study measure matched`` trains the better of two again, up to the other's validation error.

From the official files the split is the paper's. The 48×48 ``.npz`` files have viewpoints in the test half alone: there
three toys of each category train (one of them validates) and two others test, in three folds,
``smallnorb-azimuth-fold-0`` and so on. That is not the paper's split, and has a table of its own.

Learning rates, weight decay and dropout were chosen in six trials for each network and split, by the validation error
of fold 0 (tuning.jsonl: smallnorb-azimuth-fold-0 and so on), and are those of the official split too, some of
whose test toys are fold 0's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from study.recipes.matrix_capsules import paper_cnn, small_cnn
from torchcaps.training.config import Experiment, Model
from torchcaps.training.recipes import released_capsules


def smallnorb_azimuth() -> Experiment:
    """Small matrix capsules (2 iterations), on a third of the azimuths; the paper: 3.7 %, and 13.5 % on the others."""
    return _by("azimuth", released_capsules(), "smallnorb-azimuth")


def smallnorb_azimuth_cnn() -> Experiment:
    """The paper's CNN, trained on a third of the azimuths; the paper: 3.7 %, and 20 % on the others."""
    return _by("azimuth", _at_rate(3e-3, paper_cnn()), "smallnorb-azimuth-cnn")


def smallnorb_azimuth_cnn_small() -> Experiment:
    """A CNN with as many parameters as the capsules, on a third of the azimuths; not in the paper."""
    return _by("azimuth", _at_rate(3e-3, small_cnn()), "smallnorb-azimuth-cnn-small")


def smallnorb_elevation() -> Experiment:
    """Small matrix capsules (2 iterations), on the three lowest elevations; the paper: 4.3 %, and 12.3 % on others."""
    return _by("elevation", _at_rate(3e-2, released_capsules()), "smallnorb-elevation")


def smallnorb_elevation_cnn() -> Experiment:
    """The paper's CNN, trained on the three lowest elevations; the paper: 4.3 %, and 17.8 % on the others."""
    without_dropout = replace(paper_cnn(), model=Model("norb_cnn", {"dropout": 0.0}))
    return _by("elevation", without_dropout, "smallnorb-elevation-cnn")


def smallnorb_elevation_cnn_small() -> Experiment:
    """A CNN with as many parameters as the capsules, on the three lowest elevations; not in the paper."""
    return _by("elevation", _at_rate(3e-3, small_cnn()), "smallnorb-elevation-cnn-small")


def smallnorb_azimuth_fold_0() -> Experiment:
    """Small matrix capsules by azimuth within the test half, the first of three folds; not in the paper."""
    return _fold(smallnorb_azimuth(), 0)


def smallnorb_azimuth_cnn_fold_0() -> Experiment:
    """The paper's CNN by azimuth within the test half, the first of three folds; not in the paper."""
    return _fold(smallnorb_azimuth_cnn(), 0)


def smallnorb_azimuth_cnn_small_fold_0() -> Experiment:
    """A CNN with as many parameters by azimuth within the test half, the first of three folds; not in the paper."""
    return _fold(smallnorb_azimuth_cnn_small(), 0)


def smallnorb_elevation_fold_0() -> Experiment:
    """Small matrix capsules by elevation within the test half, the first of three folds; not in the paper."""
    return _fold(smallnorb_elevation(), 0)


def smallnorb_elevation_cnn_fold_0() -> Experiment:
    """The paper's CNN by elevation within the test half, the first of three folds; not in the paper."""
    return _fold(smallnorb_elevation_cnn(), 0)


def smallnorb_elevation_cnn_small_fold_0() -> Experiment:
    """A CNN with as many parameters by elevation within the test half, the first of three folds; not in the paper."""
    return _fold(smallnorb_elevation_cnn_small(), 0)


def further_folds() -> dict[str, Callable[[], Experiment]]:
    """The other two folds of each, by name."""
    every = (
        *(smallnorb_azimuth, smallnorb_azimuth_cnn, smallnorb_azimuth_cnn_small),
        *(smallnorb_elevation, smallnorb_elevation_cnn, smallnorb_elevation_cnn_small),
    )
    return {f"{base().recipe}-fold-{k}": _further(base, k) for base in every for k in (1, 2)}


def _further(base: Callable[[], Experiment], k: int) -> Callable[[], Experiment]:
    def made() -> Experiment:
        return _fold(base(), k)

    made.__doc__ = f"``{base().recipe}-fold-0`` with other toys: fold {k}."
    return made


def _fold(config: Experiment, k: int) -> Experiment:
    data = replace(config.data, options={**config.data.options, "fold": k})
    return replace(config, recipe=f"{config.recipe}-fold-{k}", data=data)


def _at_rate(lr: float, config: Experiment) -> Experiment:
    return replace(config, optim=replace(config.optim, lr=lr))


def _by(view: str, config: Experiment, name: str) -> Experiment:
    """With twice the epochs, as there is a third of the images or less to train on."""
    return replace(config, recipe=name, data=replace(config.data, options={"split": view}), epochs=2 * config.epochs)
