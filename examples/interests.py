"""Find several interests in a user's history of any length, after MIND and ComiRec-DR: `python -m examples.interests`.

Nothing is downloaded: users are generated. Items lie in clusters, each user likes a few clusters, and the next item is
from one of these. A model sees the history alone and ranks all items that are not in it. The hit rate at 10 says how
often the next item is among the first ten; the best rate that is possible is printed.

Beside the papers: items are few, so that the loss is a whole softmax, not a sampled one; MIND's ReLU layers and its
number of interests that grows with the history are left out.

Source: Li et al. 2019, arXiv 1904.08030 (MIND); Cen et al. 2020, arXiv 2005.09347 (ComiRec), and its code.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchcaps import DenseCaps, DynamicRouting

N_INTERESTS, LONGEST = 3, 30


class Users(NamedTuple):
    """Hold what users did.

    Attributes:
        history: items ``[B, LONGEST]``, in no order.
        there: which of these are not padding.
        next: the item that follows, ``[B]``.
        liked: true for all items that might, ``[B, n_items]``; no model sees it.
    """

    history: Tensor
    there: Tensor
    next: Tensor
    liked: Tensor


def draw_users(n_users: int, n_clusters: int, per_cluster: int, seed: int) -> Users:
    """Draw users with :data:`N_INTERESTS` clusters each, and histories of 5 to :data:`LONGEST` items."""
    draw = torch.Generator().manual_seed(seed)
    clusters = torch.rand(n_users, n_clusters, generator=draw).topk(N_INTERESTS, dim=1).indices

    def items(n: int) -> Tensor:
        chosen = torch.randint(N_INTERESTS, (n_users, n), generator=draw)
        within = torch.randint(per_cluster, (n_users, n), generator=draw)
        return clusters.gather(1, chosen) * per_cluster + within

    history = items(LONGEST)
    there = torch.arange(LONGEST) < torch.randint(5, LONGEST + 1, (n_users, 1), generator=draw)
    liked = torch.zeros(n_users, n_clusters, dtype=torch.bool).scatter_(1, clusters, True)
    liked = liked.repeat_interleave(per_cluster, dim=1) & ~seen(history, there, n_clusters * per_cluster)
    following = (liked + 1e-9 * torch.ones(liked.shape)).multinomial(1, generator=draw)[:, 0]
    return Users(history, there, following, liked)


def seen(history: Tensor, there: Tensor, n_items: int) -> Tensor:
    """Tell which items are in a history, ``[B, n_items]``."""
    return F.one_hot(history, n_items).mul(there.unsqueeze(2)).any(dim=1)


class Mean(nn.Module):
    """Take the mean of the history for the one interest, and a matrix."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.linear = nn.Linear(d, d)

    def forward(self, items: Tensor, there: Tensor) -> Tensor:
        """Return ``[B, 1, d]``."""
        total = items.masked_fill(~there.unsqueeze(2), 0).sum(dim=1, keepdim=True)
        return self.linear(total / there.sum(dim=1)[:, None, None])


class Interests(nn.Module):
    """Route the history to :data:`N_INTERESTS` interests."""

    def __init__(self, d: int, routing: DynamicRouting, n_in: int | None = None) -> None:
        super().__init__()
        self.capsules = DenseCaps(n_in, N_INTERESTS, d, d, n_places=15 if n_in is None else 1, routing=routing)

    def forward(self, items: Tensor, there: Tensor) -> Tensor:
        """Return ``[B, J, d]``."""
        return self.capsules(items, mask=there).pose


_MIND = DynamicRouting(shared="pairs", drawn_logits=LONGEST, bias=False, backprop="last")
MODELS: dict[str, Callable[[int], nn.Module]] = {
    "mean of the history": Mean,
    "MIND: one matrix, drawn logits": lambda d: Interests(d, _MIND),
    "a matrix for each interest": lambda d: Interests(d, DynamicRouting(shared=True)),
    "ComiRec-DR: and for each place": lambda d: Interests(d, DynamicRouting(bias=False, backprop="last"), LONGEST),
}


class Recommender(nn.Module):
    """Score items by the nearest of a user's interests."""

    def __init__(self, n_items: int, d: int, extractor: nn.Module) -> None:
        super().__init__()
        self.items, self.extractor = nn.Embedding(n_items, d), extractor

    def interests(self, users: Users) -> Tensor:
        """Return ``[B, J, d]``."""
        return self.extractor(self.items(users.history), users.there)

    def loss(self, users: Users) -> Tensor:
        """Let the interest that is nearest to the next item predict it."""
        interests = self.interests(users)
        near = torch.einsum("bjd,bd->bj", interests, self.items(users.next)).argmax(dim=1)
        read = interests[torch.arange(len(near)), near]
        return F.cross_entropy(read @ self.items.weight.T, users.next)

    @torch.no_grad()
    def hit_rate(self, users: Users, k: int = 10) -> float:
        """Return how often the next item is among the first k of those that were not seen."""
        scores = (self.interests(users) @ self.items.weight.T).amax(dim=1)
        scores[seen(users.history, users.there, len(self.items.weight))] = -torch.inf
        first = scores.topk(k, dim=1).indices
        return float((first == users.next[:, None]).any(dim=1).float().mean())


def train(model: Recommender, users: Users, n_epochs: int, batch: int = 256) -> None:
    """Train by Adam, in an order that a seed gives."""
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    for _ in range(n_epochs):
        for chosen in torch.randperm(len(users.next)).split(batch):
            optimizer.zero_grad()
            model.loss(Users(*(x[chosen] for x in users))).backward()
            optimizer.step()


def main(arguments: Sequence[str] | None = None) -> None:
    """Train all models and print a table."""
    parser = argparse.ArgumentParser(description="Several interests of a user, by dynamic routing of a set.")
    parser.add_argument("--users", type=int, default=8000)
    parser.add_argument("--clusters", type=int, default=40)
    parser.add_argument("--per-cluster", type=int, default=10)
    parser.add_argument("--d", type=int, default=16, help="numbers of an item's vector")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=2)
    given = parser.parse_args(arguments)
    sizes = given.clusters, given.per_cluster
    seen_users, new_users = draw_users(given.users, *sizes, seed=0), draw_users(2000, *sizes, seed=1)
    best = (10 / new_users.liked.sum(dim=1)).clamp_max(1).mean()
    print(f"{given.clusters * given.per_cluster} items; at best {best:.3f} of the next items are among the first 10")
    print("| interests | hit rate at 10, each seed | CPU seconds |\n| --- | --- | --- |")
    for name, make in MODELS.items():
        rates, start = [], time.process_time()
        for seed in range(given.seeds):
            torch.manual_seed(seed)
            model = Recommender(given.clusters * given.per_cluster, given.d, make(given.d))
            train(model, seen_users, given.epochs)
            rates.append(f"{model.hit_rate(new_users):.3f}")
        print(f"| {name} | {', '.join(rates)} | {time.process_time() - start:.0f} |", flush=True)


if __name__ == "__main__":
    main()
