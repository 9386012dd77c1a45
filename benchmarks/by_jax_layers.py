"""What the networks in JAX share."""

from __future__ import annotations

from typing import Any

from torch import nn


def parameters(model: nn.Module) -> dict[str, Any]:
    """Hand the parameters over, the first convolution's in the layout that XLA reads."""
    import jax.numpy as jnp  # pyright: ignore[reportMissingImports]

    given = {name: value.detach() for name, value in model.named_parameters()}
    given["conv.weight"] = given["conv.weight"].permute(2, 3, 1, 0).contiguous()
    return {name: jnp.array(value.numpy()) for name, value in given.items()}


def convolve(x: Any, weight: Any, stride: tuple[int, int]) -> Any:
    """Convolve maps ``[B, H, W, C]`` with kernels ``[K_h, K_w, C, C']``."""
    import jax  # pyright: ignore[reportMissingImports]

    return jax.lax.conv_general_dilated(x, weight, stride, "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
