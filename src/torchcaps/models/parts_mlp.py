"""A multi-layer perceptron that encodes all parts at once, instead of a set transformer."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class PartsMLP(nn.Module):
    """Encode parts into one vector for each object.

    Each part of a stacked auto-encoder has its own template, so each part gets its own weights here. Batch
    normalization standardizes the inputs: the pose of a part varies little around its mean.

    Args:
        n_parts: M.
        d_in: numbers of each part.
        n_out: K, vectors that are returned.
        d_out: their size.
        width: of the hidden layers.
        n_layers: hidden layers.
    """

    def __init__(self, n_parts: int, d_in: int, n_out: int, d_out: int, *, width: int, n_layers: int) -> None:
        super().__init__()
        self.n_out = n_out
        size = n_parts * d_in
        self.layers = nn.Sequential(nn.BatchNorm1d(size, affine=False))
        for _ in range(n_layers):
            self.layers.extend((nn.Linear(size, width), nn.BatchNorm1d(width), nn.ReLU()))
            size = width
        self.layers.append(nn.Linear(size, n_out * d_out))

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the initial values anew, in place."""
        for module in self.layers:
            if isinstance(module, nn.Linear | nn.BatchNorm1d):
                module.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        """Encode parts ``[B, M, d_in]``: ``[B, K, d_out]``."""
        return self.layers(x.flatten(1)).unflatten(1, (self.n_out, -1))
