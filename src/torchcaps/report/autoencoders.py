"""Pictures of an auto-encoder's report, each with a text that explains it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from torchcaps import explain
from torchcaps.explain.pose_recovery import RecoveryPanel
from torchcaps.models import PlainAutoencoder, TemplateAutoencoder
from torchcaps.ops import AffineParts, affine_matrix
from torchcaps.report import page
from torchcaps.report.page import Album
from torchcaps.training.batches import split
from torchcaps.training.checkpoint import data_for, load_model
from torchcaps.training.config import Data
from torchcaps.training.examples import Batch
from torchcaps.training.files import read_json
from torchcaps.training.pose_metrics import LEAST_PAIRS
from torchcaps.training.run import Run, with_data_in

#: Pairs in a scatter plot, images in a row, and capsules that are shown alone.
_N_DOTS, _N_IMAGES, _N_ALONE = 1000, 10, 11
#: Steps of a transformation to both sides; the fourth is the largest in training.
_STEPS = tuple(range(-6, 7))
_TRAINED = 4


@torch.no_grad()
def pictures_of_autoencoder(album: Album, run: Run, root: str | Path | None = None) -> list[str]:
    """Build the sections of a finished run from its first test images.

    Raises:
        ValueError: its model or its data cannot be loaded.
    """
    config, trained = with_data_in(run.experiment(), root), load_model(run)
    model, result = trained.model, run.read_result()
    batch = _first(split(config, data_for(config, trained, run.path), "test", torch.device("cpu")))
    few = [_few_labels(album, run)] if (run.path / "few-labels.json").is_file() else []
    if isinstance(model, PlainAutoencoder):
        return [_reconstructions(album, model, batch), *few]
    return [
        *few,
        *([_pose_recovery(album, model, batch, result)] if result["test_follows"] else []),
        _reconstructions(album, model, batch),
        *([_unseen(album, model, batch, sweeps)] if (sweeps := _sweeps(config.data)) else []),
        _alone(album, model, batch),
        _units(album, model),
    ]


def _few_labels(album: Album, run: Run) -> str:
    """Show a comparison with few labels that lies in the run's folder."""
    found = read_json(run.path / "few-labels.json")
    numbers = list(found["rows"][0]["errors"])
    rows = [
        (row["code"], *(f"{100 * e['test_error']:.2f}" for e in row["errors"].values()), row["readout"])
        for row in found["rows"]
    ]
    text = (
        f"Test error in per cent when few training images have labels: means over {found['draws']} draws, which are "
        f"the same for all rows. Neighbours are searched among {found['n_unlabelled']:,} images. Lines extend one "
        "standard deviation to both sides. Learning without labels pays off where neighbours in the code share a class."
    )
    head = ("neighbours by", *(f"{n} labels" for n in numbers), "classes by")
    return page.section("Few labels", album.embed("few-labels", text), page.table(head, rows))


def _first(batches: Iterable[Batch]) -> Batch:
    """Gather the first pairs into one batch."""
    found: list[Batch] = []
    for batch in batches:
        found.append(batch)
        if sum(len(each.images) for each in found) >= _N_DOTS:
            break
    images, parts, transformation = (
        torch.cat([getattr(b, n) for b in found]) for n in ("images", "parts", "transformation")
    )
    return Batch(images, torch.cat([b.labels for b in found]), parts, transformation)


def _pose_recovery(album: Album, model: nn.Module, batch: Batch, result: dict[str, Any]) -> str:
    """Show the transformations recovered by all capsules together, then by one of them."""
    assert batch.transformation is not None
    found = explain.recover_transformation(model, batch.images, batch.parts.squeeze(1))
    true = explain.affine_parameters(batch.transformation)
    got = explain.unwrap_rotation(true, explain.affine_parameters(found.together).nan_to_num(0, 0, 0))
    names = [name for name in explain.AFFINE_PARAMETERS if name in result["test_follows"]]
    panels = [
        RecoveryPanel(name, *(x[:, explain.AFFINE_PARAMETERS.index(name)] for x in (true, got))) for name in names
    ]
    alone = result["test_capsules"]
    text = (
        "Each test image is shown to the network twice, the second time transformed. The horizontal axis is the true "
        "transformation; the vertical axis is the one recovered from the capsules' poses in the two images. Training "
        "has no labels for poses. Rotations are in degrees, shifts in pixels. On the dashed line the recovered value "
        f"is the true one. Here all capsules are combined; {alone['active']} of {alone['n']} are active in enough "
        "images to be evaluated alone."
    )
    figures = [album.add("pose-recovery", explain.draw_pose_recovery(panels), text)]
    figures += _one_capsule(album, found, true, names)
    table = ""
    if alone["active"]:
        rows = [(name, *(f"{v:.3f}" for v in (*alone[name]["slope"], *alone[name]["r2"]))) for name in names]
        head = ("", "slope: lowest", "median", "highest", "R²: lowest", "median", "highest")
        table = page.paragraph("Single capsules, in the images where they are active:") + page.table(head, rows)
    return page.section("Poses follow the image", *figures, table)


def _one_capsule(album: Album, found: explain.RecoveredTransformation, true: Tensor, names: Sequence[str]) -> list[str]:
    """Show the transformations recovered by a single capsule, as in the paper's figure 2.

    Nothing is shown if even the most active capsule is active too seldom.
    """
    j = int(found.active.sum(dim=0).argmax())
    active = found.active[:, j]
    if active.sum() < LEAST_PAIRS:
        return []
    got = explain.unwrap_rotation(true, explain.affine_parameters(found.each[:, j]).nan_to_num(0, 0, 0))
    panels = [
        RecoveryPanel(name, *(x[active, explain.AFFINE_PARAMETERS.index(name)] for x in (true, got))) for name in names
    ]
    text = f"The same, recovered by one capsule: number {j}, the one most often active, in {int(active.sum()):,} pairs."
    return [album.add("one-capsule", explain.draw_pose_recovery(panels), text)]


def _reconstructions(album: Album, model: nn.Module, batch: Batch) -> str:
    """Show inputs, targets and reconstructions."""
    some = slice(_N_IMAGES)
    transformation = None if batch.transformation is None else batch.transformation[some]
    images, target = batch.images[some], batch.parts[some, 0]
    reconstructions = model(images, transformation).images
    error = (reconstructions - target).square().sum(dim=(1, 2, 3)).mean().item()
    if isinstance(model, PlainAutoencoder):
        text = "The input, the target, and the reconstruction from the code alone."
    else:
        text = (
            "The input; the target, which is the image after the transformation that the network is given; and the "
            "reconstruction from poses and presences alone."
        )
    text += f" Squared error, summed over the pixels: {error:.1f} on average over these {len(images)}."
    figure = explain.draw_image_rows((("input", images), ("target", target), ("reconstructed", reconstructions)))
    return page.section("Reconstructions", album.add("reconstructions", figure, text))


def _unseen(album: Album, model: nn.Module, batch: Batch, sweeps: Sequence[tuple[str, Tensor, list[str]]]) -> str:
    """Show transformations up to one and a half times as large as in training.

    T in training is up to twice as large as the transformation of one image.
    """
    made = []
    for k, (name, matrices, titles) in enumerate(sweeps):
        true, reconstructions = explain.transformation_sweep(model, batch.images[k % len(batch.images)], matrices)
        within = [abs(step) <= _TRAINED for step in _STEPS]
        figure = explain.draw_transformation_sweep(true, reconstructions, titles, within)
        text = (
            f"{name}: the transformed image above, and below it the reconstruction from the untransformed image and "
            "the transformation. A star marks transformations larger than two such changes together in training."
        )
        made.append(album.add(f"sweep-{k}", figure, text))
    return page.section("Transformations never seen in training", *made)


def _sweeps(data: Data) -> list[tuple[str, Tensor, list[str]]]:
    """Return name, matrices and titles of one sweep for each kind of transformation in training."""
    at = torch.tensor(_STEPS) / _TRAINED
    zero, one = torch.zeros_like(at), torch.ones_like(at)

    def made(angle: Tensor, size: Tensor, shear: Tensor, right: Tensor) -> Tensor:
        scale, shift = torch.stack((size, size), dim=1), torch.stack((right, zero), dim=1)
        return affine_matrix(AffineParts(angle, scale, shear, shift))

    found = []
    if data.shift:
        by = 2 * data.shift * at
        found.append(("Shift to the right", made(zero, one, zero, by), [f"{v:g} px" for v in by.tolist()]))
    if data.degrees:
        by = 2 * data.degrees * at
        found.append(("Rotation", made(by * math.pi / 180, one, zero, zero), [f"{v:.0f}°" for v in by.tolist()]))
    if data.scale:
        by = ((1 + data.scale) / (1 - data.scale)) ** at
        found.append(("Size", made(zero, by, zero, zero), [f"×{v:.2f}" for v in by.tolist()]))
    if data.shear:
        by = 2 * data.shear * at
        found.append(("Shear", made(zero, one, by, zero), [f"{v:.2f}" for v in by.tolist()]))
    return found


def _alone(album: Album, model: nn.Module, batch: Batch) -> str:
    """Show what single capsules add to images."""
    rows = []
    for image in batch.images[:4]:
        parts = explain.part_reconstructions(model, image)
        strongest = parts.square().sum(dim=(1, 2, 3)).argsort(descending=True)[:_N_ALONE]
        whole = model(image.unsqueeze(0)).images
        rows.append(("", torch.cat((whole, parts[strongest]))))
    text = (
        "For four images: first the reconstruction by all capsules together, then what single capsules add to it, the "
        "strongest first."
    )
    return page.section("Part by part", album.add("alone", explain.draw_image_rows(rows), text))


def _units(album: Album, model: nn.Module) -> str:
    """Show the templates or the generation units of the capsules."""
    if isinstance(model, TemplateAutoencoder):
        text = "The template of every capsule, which it can only warp and scale. Grey is zero, white is light."
        title = "Template of each capsule"
    else:
        text = (
            "What each generation unit adds when it is on: a row of units for each of the first capsules. Grey is "
            "zero, white adds light, black removes it. A capsule moves its part by switching units on and off."
        )
        title = "Generation units of each capsule"
    return page.section(title, album.add("units", explain.draw_generative_units(explain.generative_units(model)), text))
