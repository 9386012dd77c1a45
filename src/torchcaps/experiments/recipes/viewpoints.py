"""Toys from viewpoints that were never trained on: table 2 of Matrix Capsules with EM Routing.

(Hinton, Sabour, Frosst, ICLR 2018.) ``test_error`` in the result is that on familiar viewpoints, ``novel_error`` on
the others. The paper compares them where capsules and CNN are as good on familiar ones: stop the better one
early by ``--stop_at`` with the other's validation error.

From the official files the split is the paper's. The 48×48 ``.npz`` files have viewpoints in the test half alone: there
three toys of each category train (one of them validates) and two others test, by default fold 0; the other two
folds are ``--data.options '{"split": "azimuth", "fold": 1}'`` and 2. That is not the paper's split.
"""

from __future__ import annotations

from dataclasses import replace

from torchcaps.experiments.experiment import Experiment
from torchcaps.experiments.recipes.matrix_capsules import smallnorb_cnn, smallnorb_em_held_out


def smallnorb_azimuth() -> Experiment:
    """Small matrix capsules (two iterations), trained on a third of the azimuths: 13.5 % on others, 3.7 % here."""
    return _by("azimuth", smallnorb_em_held_out(), "smallnorb-azimuth")


def smallnorb_azimuth_cnn() -> Experiment:
    """The paper's CNN, trained on a third of the azimuths: 20 % on the others, 3.7 % on those."""
    return _by("azimuth", smallnorb_cnn(), "smallnorb-azimuth-cnn")


def smallnorb_elevation() -> Experiment:
    """Small matrix capsules (two iterations), trained on the three lowest elevations: 12.3 % on others, 4.3 % here."""
    return _by("elevation", smallnorb_em_held_out(), "smallnorb-elevation")


def smallnorb_elevation_cnn() -> Experiment:
    """The paper's CNN, trained on the three lowest elevations: 17.8 % on the others, 4.3 % on those."""
    return _by("elevation", smallnorb_cnn(), "smallnorb-elevation-cnn")


def _by(view: str, config: Experiment, name: str) -> Experiment:
    """With twice the epochs, as there is a third of the images or less to train on."""
    return replace(config, recipe=name, data=replace(config.data, options={"split": view}), epochs=2 * config.epochs)
