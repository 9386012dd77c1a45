"""Matrix capsules in JAX: receptive fields gathered, votes stored, gradients through every iteration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

from benchmarks.by_jax_layers import convolve, parameters
from torchcaps.layers import ClassCaps, ConvCaps
from torchcaps.layers.routings import EMRouting
from torchcaps.models.matrix_capsnet import MatrixCapsNet
from torchcaps.ops import EMSettings

__all__ = ["loss", "network", "parameters"]


def network(model: MatrixCapsNet) -> Callable[[dict[str, Any], Any], tuple[Any, Any]]:
    """Return a function of parameters and images ``[B, H, W, C]`` that gives poses and activations of the classes."""
    import jax  # pyright: ignore[reportMissingImports]
    import jax.numpy as jnp  # pyright: ignore[reportMissingImports]

    bias = model.primary.activation_bias
    assert isinstance(bias, Tensor)
    n_types, bias = model.primary.n_types, bias.item()
    height, width = model.map_shape[1:]
    offset = model.classes.offset(height, width)
    layers = [(f"hidden.{k}", _routing(layer)) for k, layer in enumerate(model.hidden)]
    classes = _routing(model.classes)

    def forward(p: dict[str, Any], images: Any) -> tuple[Any, Any]:
        x = images - images.mean((1, 2, 3), keepdims=True)
        x = x / jnp.sqrt(jnp.maximum((x * x).mean((1, 2, 3), keepdims=True), 1e-10))
        x = jax.nn.relu(convolve(x, p["conv.weight"], (2, 2)) + p["conv.bias"])
        x = jnp.einsum("bhwc,dc->bhwd", x, p["primary.weight"][:, :, 0, 0])
        pose = x[..., : 16 * n_types].reshape(*x.shape[:3], n_types, 4, 4).transpose(0, 3, 1, 2, 4, 5)
        activation = jax.nn.sigmoid(x[..., 16 * n_types :] + bias).transpose(0, 3, 1, 2)
        for name, route in layers:
            pose, activation = route(pose, activation, *_of(p, name), None)
        weight, beta_u, beta_a = _of(p, "classes")
        weight = jnp.repeat(weight, height * width, axis=0)
        pose, activation = classes(pose, activation, weight, beta_u, beta_a, None if offset is None else offset.numpy())
        return pose[:, :, 0, 0], activation[:, :, 0, 0]

    return forward


def loss(model: MatrixCapsNet, margin: float = 0.2) -> Callable[[dict[str, Any], Any, Any], Any]:
    """Return the spread loss of parameters, images and classes ``[B, J]`` as zeros and ones."""
    import jax.numpy as jnp  # pyright: ignore[reportMissingImports]

    forward = network(model)

    def total(p: dict[str, Any], x: Any, one_hot: Any) -> Any:
        a = forward(p, x)[1]
        true = (a * one_hot).sum(1, keepdims=True)
        return ((1 - one_hot) * jnp.maximum(0, margin - (true - a)) ** 2).sum(1).mean()

    return total


def _of(p: dict[str, Any], layer: str) -> tuple[Any, Any, Any]:
    return p[f"{layer}.weight"], p[f"{layer}.beta_u"], p[f"{layer}.beta_a"]


def _routing(layer: Any) -> Callable[..., tuple[Any, Any]]:
    """Return the routing of a layer, of poses ``[B, T, H, W, 4, 4]`` and activations ``[B, T, H, W]``."""
    import jax  # pyright: ignore[reportMissingImports]
    import jax.numpy as jnp  # pyright: ignore[reportMissingImports]

    assert isinstance(layer, ConvCaps | ClassCaps)
    routing = layer.routing
    assert isinstance(routing, EMRouting)
    given = routing.settings
    assert isinstance(given, EMSettings)

    def route(pose: Any, activation: Any, weight: Any, beta_u: Any, beta_a: Any, offset: Any) -> tuple[Any, Any]:
        n_images, n_types, height, width = activation.shape
        size = layer.kernel_size if isinstance(layer, ConvCaps) else (height, width)
        stride = layer.stride if isinstance(layer, ConvCaps) else (1, 1)
        places, child = _fields((height, width), size, stride)
        n_out, n_places, n_children = weight.shape[1], len(child), n_types * child.shape[1]
        seen = np.bincount(child.ravel(), minlength=height * width)[child]  # [P, K]

        fields = pose.reshape(n_images, n_types, -1, 4, 4)[:, :, child]  # [B, T, P, K, 4, 4]
        by_type = weight.reshape(n_types, -1, n_out, 4, 4)
        votes = jnp.einsum("btpkxy,tkjyz->bpjtkxz", fields, by_type).reshape(n_images, n_places, n_out, n_children, 16)
        votes = votes if offset is None else votes + offset
        a = activation.reshape(n_images, n_types, -1)[:, :, child].transpose(0, 2, 1, 3)
        a = a.reshape(n_images, n_places, 1, n_children)

        def over_places(x: Any) -> Any:
            """Sum over the places that see a child: x is ``[B, P, J or 1, N]``."""
            x = x.reshape(n_images, n_places, -1, n_types, child.shape[1]).transpose(0, 2, 3, 1, 4)
            found = jnp.zeros((*x.shape[:3], height * width)).at[..., child].add(x)[..., child]
            return found.transpose(0, 3, 1, 2, 4).reshape(n_images, n_places, -1, n_children)

        first = np.ones_like(seen) if given.start == "types" else seen
        start = np.broadcast_to((1 / (n_out * first))[:, None], (n_places, n_types, child.shape[1]))
        r = a * start.reshape(n_places, 1, n_children).astype(np.float32)
        r = jnp.broadcast_to(r, votes.shape[:4])
        ratio = n_out * n_places / (n_types * height * width) if given.normalize else 1.0
        mean, logit = jnp.zeros(()), jnp.zeros(())
        for t in range(routing.n_iters):
            mass = r.sum(3) + given.mass_floor
            new = jnp.einsum("bpjn,bpjnd->bpjd", r, votes) / mass[..., None]
            mean = (1 - given.damping) * new + given.damping * mean
            apart = votes - mean[:, :, :, None]
            variance = jnp.einsum("bpjn,bpjnd->bpjd", r, apart * apart) / mass[..., None] + given.variance_floor
            logs = jnp.log(variance).sum(3)
            cost = (16 * given.beta_u_scale * beta_u + given.cost_scale * logs / 2) * ratio * mass
            logit = given.lambda_at(t) * (given.beta_a_scale * beta_a - cost)
            if t == routing.n_iters - 1:
                break
            distance = jnp.einsum("bpjnd,bpjd->bpjn", apart * apart, 1 / variance)
            log_ap = (jax.nn.log_sigmoid(logit) - logs / 2)[..., None] - distance / 2
            # What a child's logits have in common does not change its shares.
            together = given.compete == "all"
            top = jax.lax.stop_gradient(log_ap.max(2, keepdims=True) if together else log_ap)
            p = jnp.exp(log_ap - (top if n_places == 1 else _highest(top, child, n_types)))
            rivals = p.sum(2, keepdims=True) if together else p
            r = a * p / (rivals if n_places == 1 else over_places(rivals))
        pose = mean.transpose(0, 2, 1, 3).reshape(n_images, n_out, *places, 4, 4)
        return pose, jax.nn.sigmoid(logit).transpose(0, 2, 1).reshape(n_images, n_out, *places)

    return route


def _highest(log_ap: Any, child: np.ndarray, n_types: int) -> Any:
    """Return the highest of each child's logits over the places that see it, of each type of parents."""
    import jax.numpy as jnp  # pyright: ignore[reportMissingImports]

    n_images, n_places, n_out, n_children = log_ap.shape
    x = log_ap.reshape(n_images, n_places, n_out, n_types, -1).transpose(0, 2, 3, 1, 4)
    found = jnp.full((*x.shape[:3], int(child.max()) + 1), -jnp.inf).at[..., child].max(x)[..., child]
    return found.transpose(0, 3, 1, 2, 4).reshape(n_images, n_places, n_out, n_children)


def _fields(size: tuple[int, int], kernel: tuple[int, int], stride: tuple[int, int]) -> tuple[Any, np.ndarray]:
    """Return the size of the upper map, and of each of its places the children that it sees, ``[P, K]``."""
    child = np.arange(size[0] * size[1]).reshape(size)
    found = np.lib.stride_tricks.sliding_window_view(child, kernel)[:: stride[0], :: stride[1]]
    return found.shape[:2], found.reshape(-1, kernel[0] * kernel[1])
