"""Learn digits without labels: a stacked capsule auto-encoder, after Kosiorek et al. 2019, trained on two views.

Training uses images alone. Random affine transformations augment them. First the parts are trained to reconstruct the
images. Then the objects are trained on fixed parts, whose gradient the paper stops, too. Each image is augmented twice.
Instead of the paper's sparsity losses, training maximizes the mutual information of the objects in both views (Ji et
al. 2019): the pose of an object may differ between views, its presence may not. Several sets of objects are trained on
the same parts, each from its own initial weights.

Then k-means and a linear probe are fitted on what all sets find in training images. Clusters are matched to classes on
training labels, and images that were not in training are counted. (The authors fit k-means on the test images that they
then count.) A run goes on from its checkpoint.

    python -m examples.digits_without_labels --out runs/scae --data mnist
    python -m examples.digits_without_labels --out runs/scae --data mnist --hours 0 --split test
"""

from __future__ import annotations

import argparse
import copy
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
from torchcaps.data.augment import random_affine
from torchcaps.models import StackedCapsuleAutoencoder, scae_small
from torchcaps.models.sparsity import mutual_information
from torchcaps.training import Optim
from torchcaps.training.module import learning_rate

#: Options of the network. The set transformer learned slowly, so an MLP encodes the parts.
OPTIONS: dict[str, Any] = {
    "encoder": "mlp",
    "width": 512,
    "n_layers": 2,
    "noise": 0.0,
    "image_scale": 0.5,
    "n_present": 1.0,
    "part_weight": 0.02,
    "prior_weights": (0.0, 0.0),
    "posterior_weights": (0.0, 0.0),
}
#: Random affine transformations, as random_affine takes them.
VIEWS: dict[str, Any] = {"degrees": 20.0, "scale": 0.2, "aspect": 0.4, "shear": 0.3, "translate": 1.7}
#: Weight of the mutual information of two views.
INFORMATION = 5.0
#: Learning rates of templates and of objects, relative to that of the part encoder.
FAST, OBJECTS = 20.0, 0.3
#: How names of the objects' weights begin.
_OF_OBJECTS = ("encoder.", "objects.")


def views(images: Tensor, step: int, size: int, n_views: int, seed: int) -> Tensor:
    """Draw the images of a step: all in one view, then all in the next. A resumed run draws the same."""
    generator = torch.Generator().manual_seed(seed * 10**9 + step)
    drawn = images[torch.randint(len(images), (size,), generator=generator)].float() / 255
    return torch.cat([random_affine(drawn, generator, **VIEWS) for _ in range(n_views)])


def part_losses(model: StackedCapsuleAutoencoder, x: Tensor) -> dict[str, Tensor]:
    """Return the loss of parts, the negative log-likelihood of the images."""
    return {"image_likelihood": -model.decoder(model.parts(x), x)[1].mean()}


def object_losses(model: StackedCapsuleAutoencoder, x: Tensor) -> dict[str, Tensor]:
    """Return the losses of objects; both halves of the batch are views of the same images."""
    with torch.no_grad():
        parts = model.parts(x)
    output = model.explain(parts)
    first, second = output.prior.chunk(2)
    return {**output.losses, "mutual_information": -INFORMATION * mutual_information(first, second)}


class Run:
    """A network in training, and the file that it goes on from."""

    def __init__(self, folder: Path, image_shape: tuple[int, int, int], **settings: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.file, self.log = folder / "checkpoint.pt", folder / "log.jsonl"
        self.settings, self.step, self.image_shape = settings, 0, image_shape
        self.finished: list[dict[str, Tensor]] = []  # sets of objects
        self.model = self.new(0)
        fast = ("templates", "alpha", "background", "background_alpha", "colour.bias")
        groups: dict[float, list[Tensor]] = {1.0: [], FAST: [], OBJECTS: []}
        for name, parameter in self.model.named_parameters():
            part, _, rest = name.partition(".")
            of_objects = name.startswith(_OF_OBJECTS)
            groups[OBJECTS if of_objects else FAST if part == "decoder" and rest in fast else 1.0].append(parameter)
        self.optimizer = torch.optim.Adam([{"params": each, "times": times} for times, each in groups.items()])
        if self.file.exists():
            state = torch.load(self.file, weights_only=True)
            for name, value in settings.items():
                if state["settings"][name] != value:
                    had = state["settings"][name]
                    raise ValueError(
                        f"--{name.replace('_', '-')} must be {had}, as of the run in {folder}, got {value}"
                    )
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.step, self.finished = state["step"], state["finished"]

    def new(self, k: int) -> StackedCapsuleAutoencoder:
        """Return a network with the initial weights of the kth set of objects."""
        torch.manual_seed(self.settings["seed"] * 1000 + k)
        return scae_small(self.image_shape, n_objects=self.settings["objects"], **OPTIONS)

    @property
    def steps(self) -> int:
        """Steps of the whole training."""
        return self.settings["part_steps"] + self.settings["sets"] * self.settings["object_steps"]

    def stage(self) -> tuple[int, int]:
        """Return which set of objects learns, −1 while parts do, and for how many steps it has."""
        after = self.step - self.settings["part_steps"]
        return (-1, self.step) if after < 0 else divmod(after, self.settings["object_steps"])

    def objects(self) -> dict[str, Tensor]:
        """Return the weights of the objects in training."""
        return {k: v for k, v in self.model.state_dict().items() if k.startswith(_OF_OBJECTS)}

    def renew_objects(self, k: int) -> None:
        """Give the objects the initial weights of the kth set; the parts stay."""
        initial = self.new(k).state_dict()
        self.model.load_state_dict({name: initial[name] for name in self.objects()}, strict=False)
        for name, parameter in self.model.named_parameters():
            if name.startswith(_OF_OBJECTS):
                self.optimizer.state.pop(parameter, None)

    def models(self) -> list[StackedCapsuleAutoencoder]:
        """Return a network for each set of objects that is trained, or in training."""
        k, done = self.stage()
        unfinished = [self.objects()] if k < 0 or done or not self.finished else []
        found = [copy.deepcopy(self.model) for _ in self.finished + unfinished]
        for model, objects in zip(found, self.finished + unfinished, strict=True):
            model.load_state_dict(objects, strict=False)
        return found

    def train_step(self, images: Tensor) -> dict[str, float]:
        """Take one step, and return the terms of its loss."""
        k, done = self.stage()
        of_parts = k < 0
        if not of_parts and done == 0:
            self.renew_objects(k)
        largest = self.settings["lr"]
        whole = self.settings["part_steps" if of_parts else "object_steps"]
        rate = learning_rate(Optim(lr=largest, schedule="cosine", warmup=0.02, floor=0.02 * largest), done, whole)
        for group in self.optimizer.param_groups:
            group["lr"] = group["times"] * rate
        x = views(images, self.step, self.settings["batch"], 1 if of_parts else 2, self.settings["seed"])
        losses = part_losses(self.model.train(), x) if of_parts else object_losses(self.model.train(), x)
        loss = torch.stack(list(losses.values())).sum()
        self.optimizer.zero_grad()  # what has no gradient stays as it is
        loss.backward()
        if not loss.isfinite():
            raise FloatingPointError(f"the loss is {loss.item()} at step {self.step}")
        self.optimizer.step()
        self.step += 1
        if not of_parts and done + 1 == whole:
            self.finished.append({name: weight.clone() for name, weight in self.objects().items()})
        return {name: round(term.item(), 3) for name, term in losses.items()}

    def save(self) -> None:
        """Write the checkpoint, whole or not at all."""
        unfinished = self.file.with_suffix(".unfinished")
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "finished": self.finished}
        torch.save({**state, "step": self.step, "settings": self.settings}, unfinished)
        unfinished.replace(self.file)

    def write(self, line: dict[str, Any]) -> None:
        """Add a line to the log, and print it."""
        with self.log.open("a") as file:
            file.write(json.dumps({"step": self.step, **line}) + "\n")
        print(self.step, line, flush=True)


@torch.no_grad()
def features(
    models: Sequence[StackedCapsuleAutoencoder], images: Images, n: int
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return the prior and posterior features of the first n images, of all models, and their labels."""
    found: dict[str, list[np.ndarray]] = {"prior": [], "posterior": []}
    for model in models:
        model.eval()
        outputs = [model.explain(model.parts(part.float() / 255)) for part in images.images[:n].split(100)]
        for name, each in found.items():
            each.append(torch.cat([getattr(one, name) for one in outputs]).numpy())
    return {name: np.concatenate(each, axis=1) for name, each in found.items()}, images.labels[:n].numpy()


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


def evaluate(models: Sequence[StackedCapsuleAutoencoder], data: Dataset, split: str, n: int) -> dict[str, float]:
    """Measure both features, by clusters and by a probe; n images of each split at most."""
    train, labels = features(models, data.train, n)
    test, truth = features(models, getattr(data, split), n)
    measures = {"match": cluster_accuracy, "probe": probe_accuracy}
    return {
        f"{split}_{name}_{kind}": round(measure(train[kind], labels, test[kind], truth), 4)
        for name, measure in measures.items()
        for kind in train
    }


def write_rows(path: Path, rows: dict[str, Tensor]) -> None:
    """Write a picture with a row of images ``[N, H, W]`` for each name."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    n = max(map(len, rows.values()))
    figure, axes = pyplot.subplots(len(rows), n, figsize=(0.6 * n + 1.2, 0.62 * len(rows)), squeeze=False)
    for axis in axes.flat:
        axis.set_xticks([])
        axis.set_yticks([])
        axis.set_frame_on(False)
    for line, (name, pictures) in zip(axes, rows.items(), strict=True):
        for axis, picture in zip(line, pictures, strict=False):
            axis.imshow(picture.numpy(), cmap="gray", vmin=0, vmax=1)
        line[0].set_ylabel(name, rotation=0, ha="right", va="center")
    figure.subplots_adjust(left=1.2 / (0.6 * n + 1.2), right=1, bottom=0, top=1, wspace=0.06, hspace=0.06)
    figure.savefig(path, dpi=100)
    pyplot.close(figure)


@torch.no_grad()
def write_parts(path: Path, model: StackedCapsuleAutoencoder, images: Tensor) -> None:
    """Show images ``[N, C, H, W]``, their reconstructions, and as many templates: the first channel of each."""
    made = model.eval()(images).images
    assert made is not None
    templates = model.decoder.templates.sigmoid()[: len(images), 0]
    write_rows(path, {"image": images[:, 0], "reconstruction": made[:, 0], "template": templates})


def write_objects(path: Path, model: StackedCapsuleAutoencoder, images: Images, n: int, columns: int = 16) -> None:
    """Show for each object the images of the first n in which it explains the largest share of the parts."""
    explained = torch.from_numpy(features([model], images, n)[0]["posterior"])
    share = explained / explained.sum(dim=1, keepdim=True).clamp_min(1e-6)
    most = share.topk(min(columns, len(share)), dim=0).indices
    pictures = images.images[:n, 0].float() / 255
    write_rows(path, {f"object {k}": pictures[most[:, k]] for k in range(share.shape[1])})


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Train for so long, or not at all, and measure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the run")
    parser.add_argument("--data", default="digits", help="a data set of torchcaps")
    parser.add_argument("--hours", type=float, default=6.0, help="stop after this; 0 measures alone")
    parser.add_argument("--part-steps", type=int, default=6000, help="steps in which parts learn")
    parser.add_argument("--sets", type=int, default=5, help="sets of objects on the same parts")
    parser.add_argument(
        "--object-steps", type=int, default=1500, help="steps in which each set learns, after the parts"
    )
    parser.add_argument("--batch", type=int, default=256, help="images in a step")
    parser.add_argument("--objects", type=int, help="objects of a set; default: as many as there are classes")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=int, default=500, help="save and measure each so many steps")
    parser.add_argument("--split", choices=("val", "test"), default="val", help="images to measure in the end")
    parser.add_argument("--images", type=int, default=10_000, help="images to measure with, of each split")
    options = parser.parse_args(arguments)
    data = load(options.data)
    depth, height, width = data.train.images.shape[1:]
    names = ("part_steps", "sets", "object_steps", "batch", "lr", "seed")
    settings = {name: getattr(options, name) for name in names}
    if options.sets < 1:
        raise ValueError(f"--sets must be at least 1, got {options.sets}")
    settings["objects"] = options.objects or len(data.classes)
    run = Run(options.out, (depth, height, width), **settings)
    end = time.monotonic() + 3600 * options.hours
    while run.step < run.steps and time.monotonic() < end:
        terms = run.train_step(data.train.images)
        if run.step % options.every == 0:
            run.save()
            if run.step > options.part_steps:
                terms |= evaluate(run.models(), data, "val", min(options.images, 3000))
            run.write(terms)
    if options.hours:
        run.save()
    models = run.models()
    got = evaluate(models, data, options.split, options.images)
    run.write(got)
    shown: Images = getattr(data, options.split)
    write_parts(options.out / "parts.png", models[0], shown.images[:16].float() / 255)
    write_objects(options.out / "objects.png", models[0], shown, options.images)
    return got


if __name__ == "__main__":
    main()
