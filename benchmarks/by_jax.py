"""CapsNet and its training step in JAX, compiled by XLA: written as its users would, with the same numbers in it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchcaps.models.capsnet import CapsNet


def _numbers(model: CapsNet) -> dict[str, Any]:
    """Hand the parameters over, in the layouts that XLA's convolutions read."""
    import jax.numpy as jnp  # pyright: ignore[reportMissingImports]

    given = {name: jnp.array(value.detach().numpy()) for name, value in model.named_parameters()}
    return given | {"conv.weight": jnp.array(model.conv.weight.detach().permute(2, 3, 1, 0).contiguous().numpy())}


def _network(model: CapsNet) -> Callable[[dict[str, Any], Any], tuple[Any, Any]]:
    """Return a function of parameters and images ``[B, H, W, C]`` that gives poses and lengths of the classes."""
    import jax  # pyright: ignore[reportMissingImports]
    import jax.numpy as jnp  # pyright: ignore[reportMissingImports]

    n_types, d_primary, scale = model.primary.n_types, model.primary.d_out, float(model.primary.scale)
    stride, n_iters = model.primary.stride, model.classes.n_iters

    def convolve(x: Any, weight: Any, by: Any) -> Any:
        return jax.lax.conv_general_dilated(x, weight, by, "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    def squash(s: Any) -> Any:
        square = (s * s).sum(-1, keepdims=True)
        return s * jnp.sqrt(square + 1e-30) / (1 + square)

    def network(p: dict[str, Any], images: Any) -> tuple[Any, Any]:
        x = jax.nn.relu(convolve(images, p["conv.weight"], (1, 1)) + p["conv.bias"])
        s = scale * convolve(x, p["primary.weight"], stride)
        s = s.reshape(*s.shape[:3], n_types, d_primary) + p["primary.bias"]
        u = squash(s).transpose(0, 3, 1, 2, 4).reshape(len(images), -1, d_primary)
        votes = jnp.einsum("bid,ijde->bije", u, p["classes.weight"])

        def routed(logits: Any) -> Any:
            return squash(jnp.einsum("bij,bije->bje", jax.nn.softmax(logits, 2), votes) + p["classes.bias"])

        logits = jnp.zeros(votes.shape[:3])
        for _ in range(n_iters - 1):
            logits = logits + jnp.einsum("bije,bje->bij", votes, routed(logits))
        v = routed(logits)
        return v, jnp.sqrt((v * v).sum(-1) + 1e-30)

    return network


def scorer(model: CapsNet, images: Tensor) -> Callable[[], Tensor]:
    """Return a call that gives the scores of images."""
    import jax  # pyright: ignore[reportMissingImports]
    import jax.numpy as jnp  # pyright: ignore[reportMissingImports]

    network, p = _network(model), _numbers(model)
    x = jnp.asarray(images.permute(0, 2, 3, 1).contiguous().numpy())
    lengths = jax.jit(lambda p, x: network(p, x)[1])
    return lambda: torch.from_numpy(jax.device_get(lengths(p, x)).copy())


def step(model: CapsNet, images: Tensor, labels: Tensor) -> Callable[[], float]:
    """Return a call that trains for one step, with the margin loss, the decoder and Adam, and returns the loss."""
    import jax  # pyright: ignore[reportMissingImports]
    import jax.numpy as jnp  # pyright: ignore[reportMissingImports]

    network, p = _network(model), _numbers(model)
    assert model.decoder is not None
    named = [name.removesuffix(".weight") for name in p if name.startswith("decoder")]
    linear = [name for name in named if not name.endswith(".bias")]
    x = jnp.asarray(images.permute(0, 2, 3, 1).contiguous().numpy())
    flat = jnp.asarray(images.flatten(1).numpy())
    one_hot = jax.nn.one_hot(jnp.asarray(labels.numpy()), model.classes.n_out)

    def loss(p: dict[str, Any], x: Any, flat: Any, one_hot: Any) -> Any:
        v, lengths = network(p, x)
        present, absent = jnp.maximum(0, 0.9 - lengths) ** 2, jnp.maximum(0, lengths - 0.1) ** 2
        margin = (one_hot * present + 0.5 * (1 - one_hot) * absent).sum(1).mean()
        hidden = (v * one_hot[:, :, None]).reshape(len(x), -1)
        for name in linear:
            hidden = hidden @ p[f"{name}.weight"].T + p[f"{name}.bias"]
            hidden = jax.nn.sigmoid(hidden) if name == linear[-1] else jax.nn.relu(hidden)
        return margin + 0.0005 * ((hidden - flat) ** 2).sum(1).mean()

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
        value, state[0], state[1], state[2] = update(state[0], state[1], state[2], next(steps), x, flat, one_hot)
        return float(value)

    return call
