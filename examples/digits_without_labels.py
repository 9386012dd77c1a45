"""Learn digits without labels: a stacked capsule auto-encoder, its features clustered, after Kosiorek et al. 2019.

Training sees images alone. Then k-means and a linear probe are fitted on features of training images, clusters are
matched to classes on training labels, and images that were not in training are counted. (The authors fit k-means on the
test images that they then count.) A run goes on from its checkpoint.

    python -m examples.digits_without_labels --out runs/scae --data mnist --hours 6
    python -m examples.digits_without_labels --out runs/scae --data mnist --hours 0 --split test
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchcaps import load
from torchcaps.data import Dataset, Images
from torchcaps.models import StackedCapsuleAutoencoder, scae_small


def batch_of(images: Tensor, step: int, size: int, seed: int) -> Tensor:
    """Draw the images of a step, which are the same whether the run was interrupted or not."""
    generator = torch.Generator().manual_seed(seed * 10**9 + step)
    return images[torch.randint(len(images), (size,), generator=generator)].float() / 255


class Run:
    """A network in training, and the file that it goes on from."""

    def __init__(self, folder: Path, image_shape: tuple[int, int, int], seed: int, lr: float) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.file, self.log, self.seed, self.step = folder / "checkpoint.pt", folder / "log.jsonl", seed, 0
        torch.manual_seed(seed)
        self.model: StackedCapsuleAutoencoder = scae_small(image_shape)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=lr)
        if self.file.exists():
            state = torch.load(self.file, weights_only=True)
            if state["seed"] != seed:
                raise ValueError(f"--seed must be {state['seed']}, as of the run in {folder}, got {seed}")
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.step = state["step"]

    def train_step(self, images: Tensor, size: int) -> dict[str, float]:
        """Take one step, and return the terms of its loss."""
        torch.manual_seed(self.seed * 10**9 + self.step)  # the noise of presences
        output = self.model.train()(batch_of(images, self.step, size, self.seed))
        self.optimizer.zero_grad()
        output.loss.backward()
        if not output.loss.isfinite():
            raise FloatingPointError(f"the loss is {output.loss.item()} at step {self.step}")
        self.optimizer.step()
        self.step += 1
        return {name: round(term.item(), 3) for name, term in output.losses.items()}

    def save(self) -> None:
        """Write the checkpoint, whole or not at all."""
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        unfinished = self.file.with_suffix(".unfinished")
        torch.save({**state, "step": self.step, "seed": self.seed}, unfinished)
        unfinished.replace(self.file)

    def write(self, line: dict[str, Any]) -> None:
        """Add a line to the log, and print it."""
        with self.log.open("a") as file:
            file.write(json.dumps({"step": self.step, **line}) + "\n")
        print(self.step, line, flush=True)


@torch.no_grad()
def features(model: StackedCapsuleAutoencoder, images: Images, n: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return the prior and posterior features of the first n images, and their labels."""
    model.eval()
    outputs = [model(part.float() / 255) for part in images.images[:n].split(100)]
    found = {name: torch.cat([getattr(one, name) for one in outputs]).numpy() for name in ("prior", "posterior")}
    return found, images.labels[:n].numpy()


def cluster_accuracy(train: np.ndarray, labels: np.ndarray, test: np.ndarray, truth: np.ndarray) -> float:
    """Return the share of test features in the cluster of their class.

    K-means is fitted on training features, and each cluster gets the class by which most training features are right,
    no class twice (the Hungarian method). Neither sees the test.
    """
    from scipy.optimize import linear_sum_assignment
    from sklearn.cluster import KMeans

    n_classes = int(labels.max()) + 1
    kmeans = KMeans(n_classes, n_init=10, random_state=0)  # type: ignore[arg-type]
    kmeans.fit(train)
    counts = np.zeros((n_classes, n_classes))
    np.add.at(counts, (kmeans.predict(train), labels), 1)
    classes = linear_sum_assignment(-counts)[1]  # of cluster 0, 1, …
    return float((classes[kmeans.predict(test)] == truth).mean())


def probe_accuracy(train: np.ndarray, labels: np.ndarray, test: np.ndarray, truth: np.ndarray) -> float:
    """Return the accuracy of logistic regression, fitted on training features and labels."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    probe = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000)).fit(train, labels)
    return float(probe.score(test, truth))


def evaluate(model: StackedCapsuleAutoencoder, data: Dataset, split: str, n: int) -> dict[str, float]:
    """Measure both features, by clusters and by a probe; n images of each split at most."""
    train, labels = features(model, data.train, n)
    test, truth = features(model, getattr(data, split), n)
    measures = {"match": cluster_accuracy, "probe": probe_accuracy}
    return {
        f"{split}_{name}_{kind}": round(measure(train[kind], labels, test[kind], truth), 4)
        for name, measure in measures.items()
        for kind in train
    }


def write_picture(path: Path, model: StackedCapsuleAutoencoder, images: Tensor) -> None:
    """Show templates, images and what the network makes of them."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    with torch.no_grad():
        made = model.eval()(images).images
    assert made is not None
    rows = {"image": images, "made": made, "templates": model.decoder.templates.detach().sigmoid()}
    n = min(len(each) for each in rows.values())
    figure, axes = pyplot.subplots(len(rows), n, figsize=(n, 1.1 * len(rows)), squeeze=False)
    for line, (name, pictures) in zip(axes, rows.items(), strict=True):
        for axis, picture in zip(line, pictures[:n], strict=True):
            axis.imshow(picture[0].numpy(), cmap="gray", vmin=0, vmax=1)
            axis.set_xticks([])
            axis.set_yticks([])
        line[0].set_ylabel(name)
    figure.savefig(path)
    pyplot.close(figure)


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Train for so long, or not at all, and measure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the run")
    parser.add_argument("--data", default="digits", help="a data set of torchcaps")
    parser.add_argument("--hours", type=float, default=0.1, help="how long to train; 0 measures alone")
    parser.add_argument("--steps", type=int, default=10**9, help="stop at this step at the latest")
    parser.add_argument("--batch", type=int, default=64, help="images in a step")
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=int, default=2000, help="measure each so many steps, on validation images")
    parser.add_argument("--split", choices=("val", "test"), default="val", help="images to measure in the end")
    parser.add_argument("--images", type=int, default=10_000, help="images to measure with, of each split")
    options = parser.parse_args(arguments)
    data = load(options.data)
    depth, height, width = data.train.images.shape[1:]
    run = Run(options.out, (depth, height, width), options.seed, options.lr)
    end = time.monotonic() + 3600 * options.hours
    while run.step < options.steps and time.monotonic() < end:
        terms = run.train_step(data.train.images, options.batch)
        if run.step % 200 == 0:
            run.save()
            run.write(terms)
        if run.step % options.every == 0:
            run.write(evaluate(run.model, data, "val", min(options.images, 3000)))
    if options.hours:
        run.save()
    got = evaluate(run.model, data, options.split, options.images)
    run.write(got)
    write_picture(options.out / "parts.png", run.model, getattr(data, options.split).images[:12].float() / 255)
    return got


if __name__ == "__main__":
    main()
