"""Learn constellations from shapes and dreams: capsules make sets of points, and an encoder learns to read them.

1. *Shapes.* Each set holds one object. Expectation-maximization (EM) turns, scales and shifts every capsule's shape
   onto it, and the shape learns. Sinkhorn's balance gives each capsule as many sets, so all are used.
2. *Dreams.* Capsules draw sets of several objects, at poses that they had in step 1. The encoder learns which capsules
   are there, and where. The truth is known, as the capsules made it.
3. *Solving.* The encoder guesses, and a few EM iterations move capsules onto the points.

No step reads which point is of which object, but step 1 asks for sets of one object, and step 2 supposes that each
object is there in half of the sets.

    python -m examples.constellation_dreams --seeds 3 --out runs/constellations.json

Source: capsules as Kosiorek et al. 2019, section 2.1, have them; dreams are the sleep phase of Hinton et al. 1995 (The
wake-sleep algorithm). The three steps are ours.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from examples.constellations import Points, draw, error
from torchcaps.ops import mixture_likelihood

#: Of a point that no vote explains: the logarithm of its weight times its density, as the paper's code has them.
_DUMMY = 2 * math.log(0.01)
#: Where it starts, a vote counts as so many points in EM: so a capsule that explains nothing stays where it is.
_PRIOR = 0.02
_LEAST_SCALE = 0.01
_OCTAVES = 3


class Guess(NamedTuple):
    """Where objects are: turn a + bi and shift ``[B, K, 2]``, scale of votes and logit of presence ``[B, K]``.

    A turn's length is the size of the object. All lengths are in half images.
    """

    turn: Tensor
    shift: Tensor
    scale: Tensor
    logit: Tensor


class _Block(nn.Module):
    """Self-attention and two layers, each after a normalization, so that coordinates pass unchanged."""

    def __init__(self, width: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.narrow.weight)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norms[0](x)).unflatten(2, (3, self.n_heads, -1)).permute(2, 0, 3, 1, 4)
        weight = (q @ k.mT * q.shape[3] ** -0.5 + bias).softmax(dim=3)
        x = x + self.out((weight @ v).transpose(1, 2).flatten(2))
        return x + self.narrow(self.wide(self.norms[1](x)).relu())


class DreamingCapsules(nn.Module):
    """K shapes of N votes each, and an encoder that says where they are in a set of points.

    Objects are members of the set that the encoder reads: points and objects attend to each other in each layer.
    """

    def __init__(self, n_objects: int = 3, n_points: int = 4, *, width: int = 64, n_layers: int = 3) -> None:
        super().__init__()
        self.read = nn.Linear(2 + 4 * _OCTAVES, width)
        self.seeds = nn.Parameter(torch.randn(n_objects, width) / 2)
        self.blocks = nn.ModuleList(_Block(width, 4) for _ in range(n_layers))
        self.norm = nn.LayerNorm(width)
        self.hidden = nn.Parameter(torch.randn(n_objects, width, width) / width**0.5)
        self.last = nn.Parameter(torch.randn(n_objects, width, 6) / (2 * width**0.5))
        self.bias = nn.Parameter(torch.zeros(n_objects, 6))
        self.shape = nn.Parameter(0.7 * torch.randn(n_objects, n_points, 2))
        self.vote_logit = nn.Parameter(torch.zeros(n_objects, n_points))

    def forward(self, x: Tensor, mask: Tensor) -> Guess:
        """Guess where objects are among points ``[B, M, 2]``, which are there ``[B, M]``."""
        x = torch.where(mask.unsqueeze(2), x, 0.0)
        waves = torch.cat([math.pi * 2**i * x for i in range(_OCTAVES)], dim=2)
        points = self.read(torch.cat((x, waves.sin(), waves.cos()), dim=2))
        members = torch.cat((points, self.seeds.expand(len(x), -1, -1)), dim=1)
        bias = F.pad(mask.to(x.dtype).clamp_min(1e-6).log(), (0, len(self.seeds)))[:, None, None]
        for block in self.blocks:
            members = block(members, bias)
        objects = self.norm(members[:, -len(self.seeds) :])
        objects = torch.einsum("bki,kio->bko", objects, self.hidden).relu()
        found = torch.einsum("bki,kio->bko", objects, self.last) + self.bias
        scale = F.softplus(found[..., 4] - 1) + _LEAST_SCALE
        return Guess(0.3 * found[..., :2], found[..., 2:4], scale, found[..., 5])

    def place(self, guess: Guess) -> Tensor:
        """Turn, scale and shift the shapes: votes ``[B, K, N, 2]``."""
        (a, b), (x, y) = guess.turn.unsqueeze(3).unbind(2), self.shape.unbind(2)
        return torch.stack((a * x - b * y, b * x + a * y), dim=3) + guess.shift.unsqueeze(2)

    def explain(self, x: Tensor, mask: Tensor, guess: Guess) -> tuple[Tensor, Tensor]:
        """Let each capsule explain all points alone.

        Returns:
            Log-likelihoods ``[B, M, K]``, 0 where no point is, and shares of votes in points ``[B, M, K, N]``.
        """
        votes, scale = self.place(guess), guess.scale[:, None, :, None]
        distance = (x[:, :, None, None] - votes.unsqueeze(1)).square().sum(dim=4) / scale.square()
        weight = self.vote_logit.sigmoid().log()
        weight = weight - weight.logsumexp(dim=1, keepdim=True)
        joint = weight - 2 * scale.log() - math.log(2 * math.pi) - 0.5 * distance
        likelihood = torch.logaddexp(joint.logsumexp(dim=3), torch.full_like(joint[..., 0], _DUMMY))
        share = (joint - likelihood.unsqueeze(3)).exp() * mask[..., None, None]
        return likelihood * mask.unsqueeze(2), share

    def couple(self, x: Tensor, mask: Tensor, guess: Guess) -> tuple[Tensor, Tensor]:
        """Let all capsules explain points together, by the paper's mixture.

        Returns:
            Log-likelihood of each point ``[B, M]``, and shares of votes in points ``[B, M, K, N]``.
        """
        votes = self.place(guess)
        weight = guess.logit.sigmoid().unsqueeze(2) * self.vote_logit.sigmoid()
        scale = guess.scale.unsqueeze(2).expand_as(weight)
        found = mixture_likelihood(
            torch.where(mask.unsqueeze(2), x, 0.0),
            *(each.flatten(1, 2).unsqueeze(1) for each in (votes, weight, scale)),
        )
        share = found.responsibility.unflatten(2, tuple(self.shape.shape[:2]))
        return found.log_likelihood * mask, share * mask[..., None, None]

    def fit(self, x: Tensor, share: Tensor, guess: Guess) -> Guess:
        """Move each capsule to the points that it explains: the maximization step, in closed form.

        Args:
            x: points ``[B, M, 2]``.
            share: of votes in points, ``[B, M, K, N]``, 0 where no point is.
            guess: where capsules are now.
        """
        votes, mass = self.place(guess), share.sum(dim=1) + _PRIOR  # [B, K, N]
        target = (torch.einsum("bmkn,bmd->bknd", share, x) + _PRIOR * votes) / mass.unsqueeze(3)
        part = (mass / mass.sum(dim=2, keepdim=True)).unsqueeze(3)
        middle, centre = (part * target).sum(dim=2), (part * self.shape).sum(dim=2)  # [B, K, 2]
        (u, v), (x_, y_) = (target - middle.unsqueeze(2)).unbind(3), (self.shape - centre.unsqueeze(2)).unbind(3)
        size = (mass * (x_.square() + y_.square())).sum(dim=2) + 1e-6
        a, b = (mass * (u * x_ + v * y_)).sum(dim=2) / size, (mass * (v * x_ - u * y_)).sum(dim=2) / size
        (cx, cy), turn = centre.unbind(2), torch.stack((a, b), dim=2)
        moved = guess._replace(turn=turn, shift=middle - torch.stack((a * cx - b * cy, b * cx + a * cy), dim=2))
        distance = (x[:, :, None, None] - self.place(moved).unsqueeze(1)).square().sum(dim=4)
        square = (share * distance).sum(dim=(1, 3)) + _PRIOR * guess.scale.square()
        return moved._replace(scale=(square / (2 * share.sum(dim=(1, 3)) + _PRIOR)).sqrt() + _LEAST_SCALE)

    def settle(self, x: Tensor, mask: Tensor, guess: Guess, n_iters: int, *, alone: bool) -> Guess:
        """Repeat EM: capsules explain points, alone or together, and move to them."""
        x = torch.where(mask.unsqueeze(2), x, 0.0)
        for _ in range(n_iters):
            share = (self.explain if alone else self.couple)(x, mask, guess)[1]
            guess = self.fit(x, share, guess)
        return guess


def turned(model: DreamingCapsules, guess: Guess, angle: float) -> Guess:
    """Turn each capsule about the middle of its votes."""
    cos, sin = math.cos(angle), math.sin(angle)
    a, b = guess.turn.unbind(2)
    turn = torch.stack((cos * a - sin * b, sin * a + cos * b), dim=2)
    moved = guess._replace(turn=turn)
    back = model.place(guess).mean(dim=2) - model.place(moved).mean(dim=2)
    return moved._replace(shift=guess.shift + back)


@torch.no_grad()
def search(model: DreamingCapsules, x: Tensor, mask: Tensor, n_turns: int = 6, n_iters: int = 4) -> Guess:
    """Settle each capsule alone from so many angles, and keep what explains each set best."""
    first = model(x, mask)
    first = first._replace(scale=first.scale.clamp_min(0.05))
    best, score = first, torch.full_like(first.scale, -math.inf)
    for i in range(n_turns):
        guess = model.settle(x, mask, turned(model, first, 2 * math.pi * i / n_turns), n_iters, alone=True)
        new = model.explain(x, mask, guess)[0].sum(dim=1)
        better = new > score
        score = torch.where(better, new, score)
        best = Guess(
            *(
                torch.where(better.view(*better.shape, *[1] * (ours.dim() - 2)), theirs, ours)
                for ours, theirs in zip(best, guess, strict=True)
            )
        )
    return best


def balanced(score: Tensor, n_iters: int = 10) -> Tensor:
    """Share sets out among capsules by log-likelihoods ``[B, K]``, each capsule as much (Sinkhorn 1967): ``[B, K]``."""
    for _ in range(n_iters):
        score = score.log_softmax(dim=0) + math.log(score.shape[0] / score.shape[1])
        score = score.log_softmax(dim=1)
    return score.exp()


def single(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw sets of one object: points ``[n, 4, 2]``, and which are there ``[n, 4]``."""
    points = draw(n, generator, present=0)
    order = points.mask.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :4]
    return points.x.gather(1, order.unsqueeze(2).expand(-1, -1, 2)), points.mask.gather(1, order)


def _optimizer(
    model: DreamingCapsules, lr: float, shape_lr: float, steps: int
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    shapes = [model.shape, model.vote_logit]
    others = [p for p in model.parameters() if all(p is not shape for shape in shapes)]
    groups = [{"params": others}, {"params": shapes}]
    optimizer = torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.98), weight_decay=0.0, fused=True)
    rates = [lr, shape_lr]
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rates, steps, pct_start=0.1, cycle_momentum=False)
    return optimizer, schedule


def _step(model: nn.Module, loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    optimizer.step()


def find_shapes(
    model: DreamingCapsules, generator: torch.Generator, steps: int, *, batch: int = 160, searching: bool = False
) -> None:
    """Learn shapes from sets of one object each, in place.

    Args:
        model: whose shapes are learned, and its encoder.
        generator: of the sets.
        steps: of training.
        batch: sets in a step.
        searching: EM starts from six angles, and the best one teaches. It makes shapes exact that are roughly known.
            From random shapes, capsules collapse under it.
    """
    lr = 1e-3 if searching else 2e-3
    optimizer, schedule = _optimizer(model, lr, 15 * lr, steps)
    for _ in range(steps):
        x, mask = single(batch, generator)
        first = model(x, mask)
        start = search(model, x, mask) if searching else first
        last = model.settle(x, mask, start, 1 if searching else 4, alone=True)
        chosen = first.logit.log_softmax(dim=1)
        score = [chosen + model.explain(x, mask, guess)[0].sum(dim=1) for guess in (first, last)]
        share = balanced(score[1].detach())
        loss = -(share * (score[0] + score[1])).sum() / mask.sum() + 0.01 * first.logit.square().mean()
        _step(model, loss, optimizer)
        schedule.step()


@torch.no_grad()
def shape_likelihood(model: DreamingCapsules, n: int = 600) -> float:
    """Return the log-likelihood of a point under shapes, on held-out sets of one object; each capsule has as many."""
    x, mask = single(n, torch.Generator().manual_seed(10**6 + 1))
    score = model.explain(x, mask, search(model, x, mask))[0].sum(dim=1)
    return ((balanced(score) * score).sum() / mask.sum()).item()


class Memory(NamedTuple):
    """Poses that a capsule had: turns and shifts, ``[n, 2]`` each."""

    turn: Tensor
    shift: Tensor


@torch.no_grad()
def remember(model: DreamingCapsules, generator: torch.Generator, n: int = 3000) -> list[Memory]:
    """Collect the poses of each capsule in sets of one object that it explains as well as the best, or nearly."""
    x, mask = single(n, generator)
    guess = search(model, x, mask, n_iters=6)
    score = model.explain(x, mask, guess)[0].sum(dim=1)
    well = score > score.amax(dim=1, keepdim=True) - 3
    return [Memory(guess.turn[well[:, k], k], guess.shift[well[:, k], k]) for k in range(well.shape[1])]


@torch.no_grad()
def distinct_votes(model: DreamingCapsules) -> Tensor:
    """Say which votes make a point ``[K, N]``: none that lies on an earlier one, or that is hardly ever there."""
    weight = model.vote_logit.sigmoid()
    size = model.shape.sub(model.shape.mean(dim=1, keepdim=True)).square().sum(dim=2).mean(dim=1).sqrt()
    near = torch.cdist(model.shape, model.shape) < 0.3 * size[:, None, None]
    copy = near.tril(diagonal=-1).any(dim=2)
    return ~copy & (weight > 0.1 * weight.amax(dim=1, keepdim=True))


@torch.no_grad()
def dream(
    model: DreamingCapsules, memory: list[Memory], n: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Make sets from shapes: each capsule is there in half of them, at a pose that it had, turned by any angle.

    Returns:
        Points ``[n, M, 2]``, which are there ``[n, M]``, which capsules are ``[n, K]``, and that of each point ``[M]``.
    """
    n_objects = len(memory)
    there = torch.rand(n, n_objects, generator=generator) < 0.5
    none = ~there.any(dim=1)
    there[none, torch.randint(n_objects, (n,), generator=generator)[none]] = True
    taken = [torch.randint(len(each.turn), (n,), generator=generator) for each in memory]
    turn, shift = (
        torch.stack([each[i][rows] for each, rows in zip(memory, taken, strict=True)], dim=1) for i in (0, 1)
    )
    angle = 2 * math.pi * torch.rand(n, n_objects, generator=generator)
    (a, b), cos, sin = turn.unbind(2), angle.cos(), angle.sin()
    turn = torch.stack((cos * a - sin * b, sin * a + cos * b), dim=2)
    votes = model.place(Guess(turn, shift, angle, angle))
    distinct = distinct_votes(model)
    owner = distinct.nonzero()[:, 0]
    return votes[:, distinct], there[:, owner], there, owner


def learn_from_dreams(
    model: DreamingCapsules,
    memory: list[Memory],
    generator: torch.Generator,
    steps: int,
    *,
    batch: int = 128,
    lr: float = 2e-3,
    every: int = 0,
) -> None:
    """Train the encoder on dreams, in place; shapes stay as they are. Print a held-out likelihood now and then.

    Which capsule made which object counts only up to a permutation, as two capsules may have the same shape.
    """
    optimizer, schedule = _optimizer(model, lr, 0.0, steps)
    n_objects = len(memory)
    orders = torch.tensor(list(permutations(range(n_objects))))  # capsule of each object, [P, K]
    rows = torch.arange(n_objects)
    began = time.perf_counter()
    for step in range(1, steps + 1):
        x, mask, there, owner = dream(model, memory, batch, generator)
        guess = model(x, mask)
        each = F.one_hot(owner, n_objects).to(x.dtype)
        likelihood = torch.einsum("bmk,mj->bjk", model.explain(x, mask, guess)[0], each)  # [B, object, capsule]
        on, off = F.logsigmoid(guess.logit).unsqueeze(1), F.logsigmoid(-guess.logit).unsqueeze(1)
        score = likelihood + torch.where(there.unsqueeze(2), on, off)
        loss = -score[:, rows, orders].sum(dim=2).logsumexp(dim=1).sum() / mask.sum()
        _step(model, loss, optimizer)
        schedule.step()
        if every and step % every == 0:
            spent = time.perf_counter() - began
            print(f"step {step}: loss {loss.item():.2f}, held-out {validate(model):.2f}, {spent:.0f} s", flush=True)


@torch.no_grad()
def solve(model: DreamingCapsules, points: Points, n_iters: int = 4) -> tuple[float, Tensor]:
    """Find objects: the encoder guesses, what is likelier there than not is there, and EM settles the poses.

    Returns:
        The mean log-likelihood of a point, and the share of each capsule in each, ``[B, M, K]``.
    """
    guess = model(points.x, points.mask)
    there = (guess.logit > 0) | (guess.logit == guess.logit.amax(dim=1, keepdim=True))
    guess = guess._replace(logit=torch.where(there, 8.0, -16.0))
    guess = model.settle(points.x, points.mask, guess, n_iters, alone=False)
    likelihood, share = model.couple(points.x, points.mask, guess)
    return (likelihood.sum() / points.mask.sum()).item(), share.sum(dim=3)


def validate(model: DreamingCapsules) -> float:
    """Return the log-likelihood of a point in held-out sets, which chooses among seeds."""
    return solve(model, draw(1000, torch.Generator().manual_seed(10**6)))[0]


def learn(seed: int, *, tries: int, shape_steps: int, steps: int, every: int = 0) -> DreamingCapsules:
    """Learn shapes, of so many tries those of the highest likelihood, and then from dreams."""
    generator = torch.Generator().manual_seed(seed)
    found: list[tuple[float, DreamingCapsules]] = []
    for i in range(tries):
        torch.manual_seed(1000 * seed + i)
        model = DreamingCapsules()
        find_shapes(model, generator, shape_steps)
        find_shapes(model, generator, max(1, shape_steps // 3), batch=96, searching=True)
        found.append((shape_likelihood(model), model))
        print(f"seed {seed}, try {i}: shapes explain a point with {found[-1][0]:.2f} nats", flush=True)
    model = max(found, key=lambda each: each[0])[1]
    learn_from_dreams(model, remember(model, generator), generator, steps, every=every)
    return model


def picture(model: DreamingCapsules, n: int = 8) -> list[dict[str, Any]]:
    """Return a few sets: points, the object of each, and the capsule that explains it."""
    points = draw(40, torch.Generator().manual_seed(10**9 + 1))
    chosen = solve(model, points)[1].argmax(dim=2)
    several = points.mask.sum(dim=1).gt(4).nonzero().flatten()[:n].tolist()
    return [
        {
            "points": [[round(v, 4) for v in point] for point in points.x[i][points.mask[i]].tolist()],
            "object": points.owner[points.mask[i]].tolist(),
            "capsule": chosen[i][points.mask[i]].tolist(),
        }
        for i in several
    ]


def main(arguments: Sequence[str] | None = None) -> list[float]:
    """Learn with several seeds; print and return the error of each on points that were not in training."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=1, help="runs, with seeds from --first on")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--tries", type=int, default=2, help="how often shapes are sought")
    parser.add_argument("--shape-steps", type=int, default=500, help="steps of each")
    parser.add_argument("--steps", type=int, default=12000, help="steps of learning from dreams")
    parser.add_argument("--every", type=int, default=1000, help="print the held-out likelihood each so many steps")
    parser.add_argument("--out", type=Path, help="a new JSON file for the results")
    options = parser.parse_args(arguments)
    if options.out and options.out.exists():
        raise ValueError(f"--out must be a new file, got {options.out}, which is there")
    points = draw(2000, torch.Generator().manual_seed(10**9))
    rows: list[dict[str, Any]] = []
    for seed in range(options.first, options.first + options.seeds):
        began = time.perf_counter()
        model = learn(
            seed, tries=options.tries, shape_steps=options.shape_steps, steps=options.steps, every=options.every
        )
        chosen_by, wrong = validate(model), error(solve(model, points)[1], points)
        row = {"seed": seed, "held_out_nats": chosen_by, "error": wrong, "seconds": time.perf_counter() - began}
        row["error_without_em"] = error(solve(model, points, n_iters=0)[1], points)
        rows.append(row | {"shapes": model.shape.tolist(), "sets": picture(model)})
        print(f"seed {seed}: held-out {chosen_by:.2f} nats, {wrong:.1%} wrong, {row['seconds']:.0f} s", flush=True)
        if options.out:
            settings = {name: value for name, value in vars(options).items() if name != "out"}
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(json.dumps({"settings": settings, "seeds": rows}, indent=1))
    best = max(rows, key=lambda row: row["held_out_nats"])
    errors = [row["error"] for row in rows]
    print(f"chosen by likelihood: seed {best['seed']}, {best['error']:.1%}; mean {sum(errors) / len(errors):.1%}")
    return errors


if __name__ == "__main__":
    main()
