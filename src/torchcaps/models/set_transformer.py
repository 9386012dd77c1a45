"""A set transformer whose members may be absent, as the object capsules of stacked auto-encoders read parts."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

#: A member that is there with less than this is attended to as if it were there with this.
_LEAST_PRESENCE = 1e-6


class SetAttention(nn.Module):
    """Attention of queries to the members of a set, each weighed by its presence.

    The presence is a factor on what the softmax adds up: a member that is absent changes nothing, one that is half
    there counts half. Where all are absent, all count alike, so nothing becomes NaN.
    """

    def __init__(self, width: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, queries: Tensor, members: Tensor, presence: Tensor) -> Tensor:
        """Let queries ``[B, Q, E]`` read members ``[B, M, E]`` of presences ``[B, M]``: ``[B, Q, E]``."""
        q, k, v = (self._heads(x) for x in (self.query(queries), self.key(members), self.value(members)))
        bias = presence.clamp_min(_LEAST_PRESENCE).log().to(q.dtype)[:, None, None]  # [B, 1, 1, M]
        return self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2).flatten(2))

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(2, (self.n_heads, -1)).transpose(1, 2)


class SetBlock(nn.Module):
    """Members attend to each other, and then each passes two layers; both add to what was there."""

    def __init__(self, width: int, n_heads: int) -> None:
        super().__init__()
        self.attention = SetAttention(width, n_heads)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.wide, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor, presence: Tensor) -> Tensor:
        """Transform members ``[B, M, E]``."""
        x = self.norms[0](x + self.attention(x, x, presence))
        return self.norms[1](x + self.narrow(self.wide(x).relu()))


class SetTransformer(nn.Module):
    """Read a set of parts, in whatever order, into one vector for each object.

    Args:
        d_in: numbers of each member.
        n_out: K, vectors that are read from the set.
        d_out: their size.
        width: of the members between the layers.
        n_layers: layers of self-attention.
        n_heads: of each.

    Source: Lee et al. 2019, Set Transformer, arXiv 1810.00825, as Kosiorek et al. 2019 (arXiv 1906.06818) have it. That
    presences weigh smoothly is ours.
    """

    def __init__(self, d_in: int, n_out: int, d_out: int, *, width: int, n_layers: int, n_heads: int) -> None:
        super().__init__()
        self.read = nn.Linear(d_in, width)
        self.blocks = nn.ModuleList(SetBlock(width, n_heads) for _ in range(n_layers))
        self.widen = nn.Linear(width, d_out)
        self.seeds = nn.Parameter(torch.empty(n_out, d_out))
        self.pool = SetAttention(d_out, n_heads)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the initial values anew, in place."""
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.LayerNorm):
                module.reset_parameters()
            if isinstance(module, nn.Linear):
                module.bias.zero_()
        nn.init.normal_(self.seeds, std=1 / math.sqrt(self.seeds.shape[1]))

    def forward(self, x: Tensor, presence: Tensor) -> Tensor:
        """Read members ``[B, M, d_in]`` of presences ``[B, M]``: ``[B, n_out, d_out]``."""
        x = self.read(x)
        for block in self.blocks:
            x = block(x, presence)
        return self.pool(self.seeds.to(x.dtype).expand(x.shape[0], -1, -1), self.widen(x), presence)
