"""The learning rate as a function of the step."""

from __future__ import annotations

import math

from torchcaps.experiments.experiment import Optim


def depends_on_length(optim: Optim) -> bool:
    """Whether the learning rate of a step depends on how many there will be."""
    in_parts = optim.schedule == "exponential" and optim.decay_steps < 1
    return optim.warmup > 0 or optim.schedule == "cosine" or in_parts


def learning_rate(optim: Optim, step: int, n_steps: int) -> float:
    """Learning rate of step ``step`` (from 0) of ``n_steps``.

    Warm-up rises linearly from 0 over its fraction of the run; then "exponential" decays by ``decay`` every
    ``decay_steps`` steps (or that fraction of the run, below 1), "cosine" falls to ``floor`` at the
    end; neither goes below ``floor``.
    """
    warm = round(optim.warmup * n_steps)
    if step < warm:
        return optim.lr * (step + 1) / warm
    if optim.schedule == "constant":
        return optim.lr
    if optim.schedule == "cosine":
        part = (step - warm) / max(1, n_steps - warm)
        return optim.floor + (optim.lr - optim.floor) * (1 + math.cos(math.pi * part)) / 2
    every = optim.decay_steps if optim.decay_steps >= 1 else optim.decay_steps * n_steps
    return max(optim.floor, optim.lr * optim.decay ** ((step - warm) / every))
