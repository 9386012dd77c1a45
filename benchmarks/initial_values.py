"""Does a bare loop of Adam learn from the first step, without warm-up, whatever the number of classes?

``python -m benchmarks.initial_values --out study/results`` trains each network on 512
bundled digits, whose ten classes are among J, and records the accuracy on them. Finished runs there are kept:
the same command goes on where it was broken off. ``--only`` takes the cases that begin with a text.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

import torchcaps
from study import records
from torchcaps import DenseCaps, PrimaryCaps, build, margin_loss
from torchcaps.ops import Capsules

#: Of the record.
NAME = "initial-values"
CLASSES = (2, 10, 47, 100, 196, 1000)
SEEDS, STEPS, BATCH, IMAGES = 5, 200, 32, 512


class Case(NamedTuple):
    """One training: of what, with how many classes, at which rate."""

    network: str
    n_classes: int
    seed: int
    lr: float = 1e-3

    @property
    def name(self) -> str:
        """Name the case in the record."""
        return f"{self.network}, {self.n_classes} classes, lr {self.lr:g}, seed {self.seed}"


class Frozen(nn.Module):
    """A random convolution that is not trained, its features of unit variance over images and places."""

    def __init__(self, images: Tensor, channels: int = 64, kernel_size: int = 9, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, channels, kernel_size, stride).to(images).requires_grad_(False)
        made = self.conv(images)
        self.register_buffer("mean", made.mean(dim=(0, 2, 3), keepdim=True))
        self.register_buffer("std", made.std(dim=(0, 2, 3), keepdim=True))

    def forward(self, x: Tensor) -> Tensor:
        """Return features of images ``[B, 1, H, W]``."""
        return (self.conv(x) - self.mean) / self.std


class Fixed(nn.Module):
    """288 capsules of one length that are not trained; only their directions tell images apart."""

    def __init__(self, images: Tensor, length: float) -> None:
        super().__init__()
        self.features, self.length = Frozen(images, 64, 17, 2), length

    def forward(self, x: Tensor) -> Tensor:
        """Return capsules ``[B, 288, 8]`` of images ``[B, 1, H, W]``."""
        poses = self.features(x).unflatten(1, (8, 8)).movedim(2, -1).flatten(1, 3)  # [B, 288, 8]
        return self.length * nn.functional.normalize(poses, dim=-1)


def _hidden(n_classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 9),
        nn.ReLU(),
        PrimaryCaps(32, 4, 8, 9, stride=2),
        DenseCaps(144, 20, 8, 16),
        DenseCaps(20, n_classes, 16, 16),
    )


#: What makes each network, from the images and the number of classes.
NETWORKS: dict[str, Callable[[Tensor, int], nn.Module]] = {
    "capsnet_small": lambda _, n: build("capsnet_small", (1, 28, 28), n, decoder=None),
    "capsnet": lambda _, n: build("capsnet", (1, 28, 28), n, decoder=None),
    "features": lambda images, n: nn.Sequential(
        Frozen(images), PrimaryCaps(64, 8, 8, 9, stride=2), DenseCaps(288, n, 8, 16)
    ),
    "hidden": lambda _, n: _hidden(n),
    **{
        f"length-{length:g}": partial(
            lambda images, n, length: nn.Sequential(Fixed(images, length), DenseCaps(288, n, 8, 16)), length=length
        )
        for length in (0.05, 0.5, 1.0)
    },
}


def cases() -> Iterator[Case]:
    """The first seed of every network first."""
    for seed in range(15):
        yield Case("hidden", 10, seed, 3e-3)
        for network in ("capsnet_small", "features", "length-0.05", "length-0.5", "length-1", "capsnet"):
            for n_classes in CLASSES if seed < SEEDS else ():
                yield Case(network, n_classes, seed)


def digits(file: Path | None) -> tuple[Tensor, Tensor]:
    """512 images 0 … 1 and their labels; from a file where scikit-learn is not installed."""
    if file is not None:
        content = np.load(file)
        return torch.from_numpy(content["images"]).float() / 255, torch.from_numpy(content["labels"])
    from torchcaps import load

    train = load("digits").train
    return train.images[:IMAGES].float() / 255, train.labels[:IMAGES]


def train(case: Case, images: Tensor, labels: Tensor, steps: int = STEPS) -> dict[str, Any]:
    """Train one case and say how it went."""
    torch.manual_seed(case.seed)
    labels, began = labels % case.n_classes, time.monotonic()
    model = NETWORKS[case.network](images.cpu(), case.n_classes).to(images.device)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=case.lr)
    losses = []
    for _ in range(steps):
        i = torch.randint(len(images), (BATCH,)).to(images.device)
        loss = margin_loss(_scores(model(images[i])), labels[i])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    with torch.no_grad():
        right = [_scores(model(x)).argmax(1) == y for x, y in zip(images.split(64), labels.split(64), strict=True)]
    losses = torch.stack(losses).tolist()
    return {
        **case._asdict(),
        "accuracy": round(torch.cat(right).float().mean().item(), 4),
        "first_losses": [round(loss, 4) for loss in losses[:4]],
        "last_loss": round(float(np.mean(losses[-10:])), 4),
        "seconds": round(time.monotonic() - began, 1),
    }


def _scores(output: Any) -> Tensor:
    return output.activation if isinstance(output, Capsules) else output.scores


def passes(run: dict[str, Any]) -> bool:
    """Above 90 % of the images; with 1,000 classes the loss falls below a tenth."""
    if run["n_classes"] == 1000:
        return run["last_loss"] < 0.1 * run["first_losses"][0] or run["last_loss"] < 0.1
    return run["accuracy"] > 0.9


def main() -> None:
    """Train what the file lacks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of checks.jsonl, such as study/results")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", nargs="+", default=[""], help="beginnings of cases' names")
    parser.add_argument("--seeds", type=int, default=15, help="of each case at most")
    parser.add_argument("--digits", type=Path, help="npz with images [512, 1, 28, 28] uint8 and labels [512]")
    given = parser.parse_args()
    if given.device == "cpu":
        torch.set_num_threads(1)
    device = torch.device(given.device)
    images, labels = (part.to(device) for part in digits(given.digits))
    found = records.every("checks", given.out).get(NAME, {}).get("runs", {})
    for case in cases():
        if case.name in found or case.seed >= given.seeds or not any(map(case.name.startswith, given.only)):
            continue
        run = train(case, images, labels)
        run["device"] = torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {platform.machine()}"
        found[case.name] = run | {"passes": passes(run)}
        print(case.name, found[case.name], flush=True)
        records.write("checks", NAME, _record(found), given.out, replace=True)
    failed = [name for name, run in found.items() if not run["passes"]]
    print(f"{len(found) - len(failed)} of {len(found)} learned; not: {failed}")


def _record(found: dict[str, Any]) -> dict[str, Any]:
    return {
        "what": "accuracy on 512 bundled digits after 200 steps of Adam in batches of 32, without warm-up, as "
        "docs/do shows it; ten of J classes have images. hidden: two layers of DenseCaps at 3e-3; features: a "
        "frozen convolution's, of unit variance, below PrimaryCaps and DenseCaps; length-L: DenseCaps alone on frozen "
        "capsules of that length. With 1,000 classes the loss has to fall below a tenth of its first value",
        "command": "python -m benchmarks.initial_values --out study/results",
        "versions": {"torchcaps": torchcaps.__version__, "torch": torch.__version__, "numpy": np.__version__},
        "runs": found,
    }


if __name__ == "__main__":
    main()
