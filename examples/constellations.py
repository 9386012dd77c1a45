"""Find squares and triangles among points, without labels: the constellation auto-encoder, after Kosiorek et al. 2019.

Each image is a set of up to 11 points: two squares and a triangle, each there or not, turned, scaled and shifted. A
point counts as wrong where another capsule explains it than the one that stands for its object. As the two squares are
alike, capsules are matched to the objects of each image, in the best way.

This trains by the paper's likelihood, which does not solve the task. `examples/constellation_dreams.py` does better.

    python -m examples.constellations --seeds 5
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from itertools import permutations
from typing import NamedTuple

import torch
from torch import Tensor

from torchcaps.models import ConstellationAutoencoder

SQUARE = [[-1.0, -1.0], [-1.0, 1.0], [1.0, 1.0], [1.0, -1.0]]
TRIANGLE = [[-1.0, -1.0], [0.0, 1.0], [1.0, -1.0]]
SHAPES = (SQUARE, TRIANGLE, SQUARE)


class Points(NamedTuple):
    """Points ``[n, 11, 2]`` in −1 … 1, which are there ``[n, 11]``, and the object of each ``[11]``."""

    x: Tensor
    mask: Tensor
    owner: Tensor


def draw(n: int, generator: torch.Generator, present: float = 0.5) -> Points:
    """Draw sets of points; each object is there in so many of them, but never none is."""

    def uniform(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(n, len(SHAPES), generator=generator)

    angle, size = uniform(-math.pi, math.pi), uniform(0.1, 0.35)
    shift = torch.stack((uniform(-0.5, 0.5), uniform(-0.5, 0.5)), dim=2)
    there = uniform(0, 1) < present
    none = ~there.any(dim=1)
    there[none, torch.randint(len(SHAPES), (n,), generator=generator)[none]] = True
    cos, sin = angle.cos() * size, angle.sin() * size
    turn = torch.stack((cos, -sin, sin, cos), dim=2).unflatten(2, (2, 2))
    x = [torch.tensor(shape) @ turn[:, k].mT + shift[:, k, None] for k, shape in enumerate(SHAPES)]
    owner = torch.tensor([k for k, shape in enumerate(SHAPES) for _ in shape])
    return Points(torch.cat(x, dim=1), there[:, owner], owner)


def error(coupling: Tensor, points: Points) -> float:
    """Return the share of points whose capsule stands for another object, capsules matched in the best way."""
    chosen, there = coupling.argmax(dim=2), points.mask
    orders = torch.tensor(list(permutations(range(coupling.shape[2]), len(SHAPES))))  # capsule of each object
    wanted = orders[:, points.owner]  # [P, 11]
    right = ((chosen[None] == wanted[:, None]) & there).sum(dim=2).amax(dim=0)
    return 1 - right.sum().item() / there.sum().item()


def train(
    model: ConstellationAutoencoder, steps: int, batch: int, lr: float, seed: int, every: int = 0, present: float = 0.5
) -> None:
    """Train on points that are drawn anew in each step, in place; print the loss now and then."""
    generator = torch.Generator().manual_seed(seed)
    held_out = draw(500, torch.Generator().manual_seed(10**6), present)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=steps, pct_start=0.1)
    for step in range(steps):
        points = draw(batch, generator, present)
        output = model.train()(points.x, points.mask)
        optimizer.zero_grad()
        output.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        schedule.step()
        if every and step % every == 0:
            print(f"step {step}: loss {output.loss.item():.2f}, error {evaluate(model, held_out):.1%}", flush=True)


@torch.no_grad()
def evaluate(model: ConstellationAutoencoder, points: Points) -> float:
    """Return the error on these points."""
    coupling = model.eval()(points.x, points.mask).objects.coupling
    assert coupling is not None
    return error(coupling, points)


def main(arguments: Sequence[str] | None = None) -> list[float]:
    """Train with several seeds; print and return the error of each on points that were not in training."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=1, help="runs, with seeds 0 … seeds − 1")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--batch", type=int, default=128, help="sets in a step")
    parser.add_argument("--lr", type=float, default=1e-3, help="highest learning rate")
    parser.add_argument("--sparsity", type=float, default=0.0, help="weight of the entropy of objects")
    parser.add_argument("--present", type=float, default=0.5, help="how often an object is there in training")
    parser.add_argument("--noise", type=float, default=0.0, help="noise of presences")
    parser.add_argument("--every", type=int, default=0, help="print the error each so many steps")
    options = parser.parse_args(arguments)
    points = draw(2000, torch.Generator().manual_seed(10**9))
    alone = error(torch.ones(2000, 11, 1).expand(-1, -1, 3), points)
    print(f"one capsule for all points: {alone:.1%} wrong")
    errors = []
    for seed in range(options.first, options.first + options.seeds):
        torch.manual_seed(seed)
        model = ConstellationAutoencoder(noise=options.noise, sparsity_weight=options.sparsity)
        began = time.perf_counter()
        train(model, options.steps, options.batch, options.lr, seed, options.every, options.present)
        errors.append(evaluate(model, points))
        print(f"seed {seed}: {errors[-1]:.1%} wrong, {time.perf_counter() - began:.0f} s", flush=True)
    print(f"best {min(errors):.1%}, mean {sum(errors) / len(errors):.1%}")
    return errors


if __name__ == "__main__":
    main()
