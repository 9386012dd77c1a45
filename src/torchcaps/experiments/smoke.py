"""Experiments in seconds, to see that they run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torchcaps.experiments.experiment import Experiment

#: Behind the names of recipes that only show that they run.
_SMOKE = "-smoke"


def smoke(config: Experiment) -> Experiment:
    """The same in seconds: two steps on eight images, to see that it runs. What it learns is nothing."""
    few: dict[str, Any] = {"n_pairs": (8, 8)} if config.data.pairs else {"n_shown": 8}
    data = replace(config.data, n_train=None, n_eval=8, **few)
    return replace(config, recipe=f"{config.recipe}{_SMOKE}", data=data, epochs=1, batch_size=4, compile=False)


def is_smoke(config: Experiment) -> bool:
    """Whether it is what :func:`smoke` gives."""
    name = config.recipe.removesuffix(_SMOKE)
    return name != config.recipe and config == smoke(replace(config, recipe=name))
