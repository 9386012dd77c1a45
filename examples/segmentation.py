"""Segment overlapping digits: a small SegCaps beside a U-Net-like CNN of about as many parameters.

Each image holds two digits of scikit-learn's at random places. Both networks say, for each pixel and class, whether a
digit of that class covers it; the digits that they are shown in the end were not in training. This is a training loop
of one's own, on images that are drawn anew in each step; ``torchcaps train digits-segmentation`` needs no code.

    python -m examples.segmentation --out segmentation.png
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from torchcaps import build, load
from torchcaps.data import Images
from torchcaps.data.digit_masks import SIZE, draw_digits
from torchcaps.ops import dice_loss, dice_score, weighted_cross_entropy


def draw(digits: Images, n_classes: int, n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Draw n images ``[n, 1, 32, 32]`` of two digits each, and the mask of each class, ``[n, J, 32, 32]``."""
    images, masks = draw_digits(digits, n_classes, n, seed)
    return images / 255, masks.float()


def train(model: nn.Module, digits: Images, n_classes: int, steps: int, batch: int, lr: float, seed: int) -> None:
    """Train on images that are drawn anew in each step, in place."""
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=steps)
    model.train()
    for step in range(steps):
        images, masks = draw(digits, n_classes, batch, seed=1000 * seed + step)
        found = model(images).scores
        loss = dice_loss(found, masks) + weighted_cross_entropy(found, masks)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()


@torch.no_grad()
def predict(model: nn.Module, images: Tensor) -> Tensor:
    """Return scores of many images, some at a time."""
    model.eval()
    return torch.cat([model(part).scores for part in images.split(50)])


def make_networks(n_classes: int, n_iters: int = 3) -> dict[str, nn.Module]:
    """Make both, the CNN of the width that comes nearest to the parameters of SegCaps."""
    caps = build("segcaps_small", (1, SIZE, SIZE), n_classes, n_iters=n_iters)
    cnn = build("matched_unet", (1, SIZE, SIZE), n_classes, n_parameters=count(caps))
    return {"SegCaps": caps, "U-Net": cnn}


def count(model: nn.Module) -> int:
    """Count the parameters."""
    return sum(p.numel() for p in model.parameters())


def write_picture(path: Path, images: Tensor, masks: Tensor, found: dict[str, Tensor]) -> None:
    """Show images, their true masks and those of each network, a colour for each class."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = {"image": images.expand(-1, 3, -1, -1), "true": _coloured(masks)}
    rows |= {name: _coloured((each > 0.5).float()) for name, each in found.items()}
    figure, axes = pyplot.subplots(len(rows), len(images), figsize=(1.2 * len(images), 1.3 * len(rows)), squeeze=False)
    for line, (name, pictures) in zip(axes, rows.items(), strict=True):
        for axis, picture in zip(line, pictures, strict=True):
            axis.imshow(picture.permute(1, 2, 0).numpy())
            axis.set_xticks([])
            axis.set_yticks([])
        line[0].set_ylabel(name)
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)


def _coloured(masks: Tensor) -> Tensor:
    """Add the colours of the classes at each pixel, ``[n, 3, H, W]``."""
    from matplotlib import colormaps

    colours = torch.tensor([colormaps["tab10"](k % 10)[:3] for k in range(masks.shape[1])], dtype=masks.dtype)
    return torch.einsum("njhw,jc->nchw", masks, colours).clamp_max(1)


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Train both networks, print the Dice score of each class, and return the mean of each network."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--classes", type=int, default=3, help="digits 0 … classes − 1")
    parser.add_argument("--steps", type=int, default=400, help="steps of training, of each network")
    parser.add_argument("--batch", type=int, default=16, help="images in a step")
    parser.add_argument("--lr", type=float, default=1e-2, help="learning rate, of both")
    parser.add_argument("--n-iters", type=int, default=3, help="iterations of routing; 1 routes nothing, and is faster")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--split", choices=("val", "test"), default="test", help="digits that are held out")
    parser.add_argument("--images", type=int, default=500, help="images of held-out digits")
    parser.add_argument("--out", type=Path, default=Path("segmentation.png"), help="the picture")
    options = parser.parse_args(arguments)

    data, n = load("digits"), options.classes
    images, masks = draw(getattr(data, options.split), n, options.images, seed=10**9)
    found: dict[str, Tensor] = {}
    torch.manual_seed(options.seed)
    for name, model in make_networks(n, options.n_iters).items():
        began = time.perf_counter()
        train(model, data.train, n, options.steps, options.batch, options.lr, options.seed)
        found[name] = predict(model, images)
        each = dice_score(found[name], masks)
        said = " ".join(f"{k}: {score:.3f}" for k, score in enumerate(each.tolist()))
        print(
            f"{name}, {count(model):,} parameters, {time.perf_counter() - began:.0f} s: Dice {each.mean():.3f} ({said})"
        )
    write_picture(options.out, images[:10], masks[:10], {name: each[:10] for name, each in found.items()})
    print(f"wrote {options.out}")
    return {name: dice_score(each, masks).mean().item() for name, each in found.items()}


if __name__ == "__main__":
    main()
