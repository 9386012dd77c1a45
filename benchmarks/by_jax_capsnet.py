"""CapsNet in JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.by_jax_layers import convolve, parameters
from torchcaps.models.capsnet import CapsNet

__all__ = ["loss", "network", "parameters"]


def network(model: CapsNet) -> Callable[[dict[str, Any], Any], tuple[Any, Any]]:
    """Return a function of parameters and images ``[B, H, W, C]`` that gives poses and lengths of the classes."""
    import jax  # pyright: ignore[reportMissingImports]
    import jax.numpy as jnp  # pyright: ignore[reportMissingImports]

    n_types, d_primary, scale = model.primary.n_types, model.primary.d_out, float(model.primary.scale)
    stride, n_iters = model.primary.stride, model.classes.n_iters

    def squash(s: Any) -> Any:
        square = (s * s).sum(-1, keepdims=True)
        return s * jnp.sqrt(square + 1e-30) / (1 + square)

    def forward(p: dict[str, Any], images: Any) -> tuple[Any, Any]:
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

    return forward


def loss(model: CapsNet) -> Callable[[dict[str, Any], Any, Any], Any]:
    """Return the margin loss with the decoder's, of parameters, images and classes ``[B, J]`` as zeros and ones."""
    import jax  # pyright: ignore[reportMissingImports]
    import jax.numpy as jnp  # pyright: ignore[reportMissingImports]

    forward = network(model)
    assert model.decoder is not None
    named = [name.removesuffix(".weight") for name, _ in model.named_parameters() if name.startswith("decoder")]
    linear = [name for name in named if not name.endswith(".bias")]

    def total(p: dict[str, Any], x: Any, one_hot: Any) -> Any:
        v, lengths = forward(p, x)
        present, absent = jnp.maximum(0, 0.9 - lengths) ** 2, jnp.maximum(0, lengths - 0.1) ** 2
        margin = (one_hot * present + 0.5 * (1 - one_hot) * absent).sum(1).mean()
        hidden = (v * one_hot[:, :, None]).reshape(len(x), -1)
        for name in linear:
            hidden = hidden @ p[f"{name}.weight"].T + p[f"{name}.bias"]
            hidden = jax.nn.sigmoid(hidden) if name == linear[-1] else jax.nn.relu(hidden)
        flat = x.transpose(0, 3, 1, 2).reshape(len(x), -1)
        return margin + 0.0005 * ((hidden - flat) ** 2).sum(1).mean()

    return total
