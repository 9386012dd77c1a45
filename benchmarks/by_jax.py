"""Networks and their training step in JAX, compiled by XLA: written as its users would, with the same numbers in it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks import by_jax_capsnet, by_jax_em
from torchcaps.models.capsnet import CapsNet
from torchcaps.models.matrix_capsnet import MatrixCapsNet

#: Of each network, what says it in JAX: its parameters, a function of them and images, and its loss.
_WRITTEN: dict[type[nn.Module], Any] = {CapsNet: by_jax_capsnet, MatrixCapsNet: by_jax_em}


def is_written(model: nn.Module) -> bool:
    """Tell whether this network is written in JAX."""
    return type(model) in _WRITTEN


def scorer(model: nn.Module, images: Tensor) -> Callable[[], Tensor]:
    """Return a call that gives the scores of images."""
    import jax  # pyright: ignore[reportMissingImports]

    written = _WRITTEN[type(model)]
    network, p, x = written.network(model), written.parameters(model), _channels_last(images)
    scores = jax.jit(lambda p, x: network(p, x)[1])
    return lambda: torch.from_numpy(jax.device_get(scores(p, x)).copy())


def step(model: nn.Module, images: Tensor, labels: Tensor) -> Callable[[], float]:
    """Return a call that trains for one step, with the network's own loss and Adam, and returns the loss."""
    import jax  # pyright: ignore[reportMissingImports]
    import jax.numpy as jnp  # pyright: ignore[reportMissingImports]

    written = _WRITTEN[type(model)]
    p, loss = written.parameters(model), written.loss(model)
    batch = _channels_last(images), jax.nn.one_hot(jnp.asarray(labels.numpy()), model.n_classes)

    def update(p: dict[str, Any], m: Any, v: Any, t: Any, *batch: Any) -> tuple[Any, ...]:
        value, gradient = jax.value_and_grad(loss)(p, *batch)
        m = jax.tree.map(lambda a, g: 0.9 * a + 0.1 * g, m, gradient)
        v = jax.tree.map(lambda a, g: 0.999 * a + 0.001 * g * g, v, gradient)
        rate, share = 1e-3 / (1 - 0.9**t), jnp.sqrt(1 - 0.999**t)
        return value, jax.tree.map(lambda w, a, b: w - rate * a / (jnp.sqrt(b) / share + 1e-8), p, m, v), m, v

    update = jax.jit(update, donate_argnums=(0, 1, 2))
    state: list[Any] = [p, jax.tree.map(jnp.zeros_like, p), jax.tree.map(jnp.zeros_like, p)]
    steps = itertools.count(1)

    def call() -> float:
        value, state[0], state[1], state[2] = update(state[0], state[1], state[2], next(steps), *batch)
        return float(value)

    return call


def _channels_last(images: Tensor) -> Any:
    import jax.numpy as jnp  # pyright: ignore[reportMissingImports]

    return jnp.asarray(images.permute(0, 2, 3, 1).contiguous().numpy())
