"""The pictures of an auto-encoder's report, each with the sentence that says what one sees."""

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
from torchcaps.training.batches import Batch, split
from torchcaps.training.checkpoint import data_for, load_model
from torchcaps.training.config import Data
from torchcaps.training.files import read_json
from torchcaps.training.pose_metrics import LEAST_PAIRS
from torchcaps.training.run import Run, with_data_in

#: Pairs in a scatter, images in a row, capsules that are shown alone.
_N_DOTS, _N_IMAGES, _N_ALONE = 1000, 10, 11
#: Steps of a transformation to both sides; the fourth is as far as the training went.
_STEPS = tuple(range(-6, 7))
_TRAINED = 4


@torch.no_grad()
def pictures_of_autoencoder(album: Album, run: Run, root: str | Path | None = None) -> list[str]:
    """The sections of a finished run, made of its first test images.

    Raises:
        ValueError: its model or its data cannot be loaded.
    """
    config, trained = with_data_in(run.experiment(), root), load_model(run)
    model, result = trained.model, run.read_result()
    batch = _first(split(config, data_for(config, trained), "test", torch.device("cpu")))
    few = [_few_labels(album, run)] if (run.path / "few-labels.json").is_file() else []
    if isinstance(model, PlainAutoencoder):
        return [_painted(album, model, batch), *few]
    return [
        *few,
        *([_following(album, model, batch, result)] if result["test_follows"] else []),
        _painted(album, model, batch),
        *([_unseen(album, model, batch, sweeps)] if (sweeps := _sweeps(config.data)) else []),
        _alone(album, model, batch),
        _units(album, model),
    ]


def _few_labels(album: Album, run: Run) -> str:
    found = read_json(run.path / "few-labels.json")
    numbers = list(found["rows"][0]["errors"])
    rows = [
        (row["code"], *(f"{100 * e['test_error']:.2f}" for e in row["errors"].values()), row["readout"])
        for row in found["rows"]
    ]
    text = (
        f"Test error in per cent when only so many training images have labels: means over {found['draws']} draws, the "
        f"same for all; neighbours are sought among {found['n_unlabelled']:,} images. Lines are one standard deviation "
        "long to both sides. What is learned without labels pays where neighbours in its code are of one class."
    )
    head = ("what neighbours are found by", *(f"{n} labels" for n in numbers), "how classes are found")
    return page.section(
        "Few labels", album.add("few-labels", explain.draw_few_labels(found["rows"]), text), page.table(head, rows)
    )


def _first(batches: Iterable[Batch]) -> Batch:
    """The first pairs, as one batch."""
    found: list[Batch] = []
    for batch in batches:
        found.append(batch)
        if sum(len(each.images) for each in found) >= _N_DOTS:
            break
    images, parts, told = (torch.cat([getattr(b, n) for b in found]) for n in ("images", "parts", "transformation"))
    return Batch(images, torch.cat([b.labels for b in found]), parts, told)


def _following(album: Album, model: nn.Module, batch: Batch, result: dict[str, Any]) -> str:
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
        "Two pictures of each test image, one transformed into the other. Across, what was done; upwards, what "
        "the capsules say was done, from nothing but the poses that they found in each of the two: no one told them "
        "what a pose is. Rotations are in degrees, shifts in pixels. On the dashed line they would be right. Here all "
        f"capsules speak together; {alone['active']} of {alone['n']} are active in enough images to be asked alone."
    )
    figures = [album.add("following", explain.draw_pose_recovery(panels), text)]
    figures += _one_capsule(album, found, true, names)
    table = ""
    if alone["active"]:
        rows = [(name, *(f"{v:.3f}" for v in (*alone[name]["slope"], *alone[name]["r2"]))) for name in names]
        head = ("", "slope: lowest", "median", "highest", "R²: lowest", "median", "highest")
        table = page.paragraph("Single capsules, in the images where they are active:") + page.table(head, rows)
    return page.section("Poses follow the image", *figures, table)


def _one_capsule(album: Album, found: explain.RecoveredTransformation, true: Tensor, names: Sequence[str]) -> list[str]:
    """What a single capsule says, as in the paper's figure 2; nothing of one that is active too seldom."""
    j = int(found.active.sum(dim=0).argmax())
    active = found.active[:, j]
    if active.sum() < LEAST_PAIRS:
        return []
    got = explain.unwrap_rotation(true, explain.affine_parameters(found.each[:, j]).nan_to_num(0, 0, 0))
    panels = [
        RecoveryPanel(name, *(x[active, explain.AFFINE_PARAMETERS.index(name)] for x in (true, got))) for name in names
    ]
    text = f"The same as one capsule says it: number {j}, the one most often active, in {int(active.sum()):,} pairs."
    return [album.add("one-capsule", explain.draw_pose_recovery(panels), text)]


def _painted(album: Album, model: nn.Module, batch: Batch) -> str:
    some = slice(_N_IMAGES)
    told = None if batch.transformation is None else batch.transformation[some]
    images, asked = batch.images[some], batch.parts[some, 0]
    painted = model(images, told).images
    error = (painted - asked).square().sum(dim=(1, 2, 3)).mean().item()
    if isinstance(model, PlainAutoencoder):
        text = "What the network sees, what it is asked to paint, and what it paints from its code alone."
    else:
        text = (
            "What the network sees, what the picture looks like after the transformation that it is told of, and what "
            "it paints from poses and presences alone."
        )
    text += f" Squared error, summed over the pixels: {error:.1f} on average over these {len(images)}."
    figure = explain.draw_image_rows((("seen", images), ("asked for", asked), ("painted", painted)))
    return page.section("What it paints", album.add("painted", figure, text))


def _unseen(album: Album, model: nn.Module, batch: Batch, sweeps: Sequence[tuple[str, Tensor, list[str]]]) -> str:
    """Up to one and a half times as far as in training: T there goes twice as far as the images."""
    made = []
    for k, (name, matrices, titles) in enumerate(sweeps):
        true, painted = explain.transformation_sweep(model, batch.images[k % len(batch.images)], matrices)
        within = [abs(step) <= _TRAINED for step in _STEPS]
        figure = explain.draw_transformation_sweep(true, painted, titles, within)
        text = (
            f"{name}: above the image transformed, below what the network paints when it sees the untransformed image "
            "and is told how. Starred ones go further than two such changes together do in training."
        )
        made.append(album.add(f"sweep-{k}", figure, text))
    return page.section("Transformations never seen in training", *made)


def _sweeps(data: Data) -> list[tuple[str, Tensor, list[str]]]:
    """Name, matrices and titles of one sweep for each kind of transformation of the training."""
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
    rows = []
    for image in batch.images[:4]:
        parts = explain.part_reconstructions(model, image)
        strongest = parts.square().sum(dim=(1, 2, 3)).argsort(descending=True)[:_N_ALONE]
        whole = model(image.unsqueeze(0)).images
        rows.append(("", torch.cat((whole, parts[strongest]))))
    text = (
        "For four images: first what all capsules paint together, then what single ones add to it, the strongest first."
    )
    return page.section("Part by part", album.add("alone", explain.draw_image_rows(rows), text))


def _units(album: Album, model: nn.Module) -> str:
    if isinstance(model, TemplateAutoencoder):
        text = "The template of every capsule, which it can only warp and scale. Grey is nothing, white is light."
        title = "What each capsule owns"
    else:
        text = (
            "What each generation unit paints when it is on: a row of units for each of the first capsules. Grey is "
            "nothing, white adds light, black takes it away. A capsule moves its part by switching units on and off."
        )
        title = "What each capsule paints with"
    return page.section(title, album.add("units", explain.draw_generative_units(explain.generative_units(model)), text))
