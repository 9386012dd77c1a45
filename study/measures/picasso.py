"""Parts of an image moved out of their places: how far confidence falls.

The example by which capsules are explained: who only looks for parts takes a face with an eye under its mouth for one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from study.data.disarrange import shift_halves, shuffle_tiles
from study.data.faces import ARRANGEMENTS, draw_faces
from study.draw.examples import draw_examples
from study.measures.said import Said, per_cent
from study.measures.sample import bar, name_of, networks, number, sample
from torchcaps import explain
from torchcaps.data.images import to_float
from torchcaps.report import EvaluatedRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHIFTS = (2, 4, 6, 8)
TILES = (2, 4)
N_IMAGES = 1000
#: Of the drawn faces that are shown; none of theirs that trained, validated or tested.
FACES_SEED = 1000
_N_SHOWN = 5


def forms(tested: EvaluatedRun, images: Tensor) -> dict[str, Tensor]:
    """The images as they are, their halves ever farther apart, and their tiles in disorder, by name.

    Of a run on drawn faces instead as many new ones, with all parts, without some, and with parts exchanged.
    """
    if tested.config.data.name == "faces":
        size = (images.shape[2], images.shape[3])
        drawn = {name: draw_faces(len(images), FACES_SEED, name, size) for name in ARRANGEMENTS}
        return {name: to_float(figures).to(images.device) for name, figures in drawn.items()}
    made = {"as it is": images}
    made |= {f"halves {by} px": shift_halves(images, by) for by in SHIFTS}
    fits = [n for n in TILES if images.shape[2] % n == 0 and images.shape[3] % n == 0]
    return made | {f"{n}×{n} tiles": shuffle_tiles(images, n) for n in fits}


def measure(tested: EvaluatedRun, *, beside: EvaluatedRun | None = None, n: int | None = None) -> dict[str, Any]:
    """Show both networks the same images, put together wrongly.

    Args:
        tested: the run.
        beside: another on the same data, such as a CNN.
        n: test images (of a run on faces: figures of each kind); :data:`N_IMAGES` by default.

    Returns:
        For "run" and "beside", by form: means of ``confidence`` in the true class and in the ``strongest`` one, and
        the share of the images ``still`` given their true class (of faces: the class face).

    Raises:
        ValueError: a run on pairs, or runs on different images.
    """
    every = networks(tested, beside)
    images, labels = sample(tested, n, N_IMAGES)
    labels = _of_faces(tested, labels)
    values: dict[str, Any] = {"n": len(images)}
    for part, each in every.items():
        values[part] = {}
        for name, shown in bar(forms(tested, images).items(), f"{name_of(each)}: parts out of place"):
            found = explain.extract_features(each.model, shown)
            values[part][name] = {
                "confidence": number(found.of_class(labels)[0].mean()),
                "strongest": number(found.confidence.amax(dim=1).mean()),
                "still": number((found.predicted == labels).float().mean()),
            }
    return values


def _of_faces(tested: EvaluatedRun, labels: Tensor) -> Tensor:
    """What is asked for: each image's own class, or always a face."""
    return torch.zeros_like(labels) if tested.config.data.name == "faces" else labels


def headline(values: dict[str, Any], part: str) -> dict[str, Said]:
    """What to read first: how many figures are still called what they were (of faces: a face)."""
    asked = "called a face" if "incomplete" in values[part] else "still called the same"
    return {f"{name}: {asked}": per_cent(found["still"]) for name, found in values[part].items()}


def draw(values: dict[str, Any], tested: EvaluatedRun, beside: EvaluatedRun | None = None) -> Figure:
    """Some images in every form, with each network's answer; above, its mean confidence over all.

    The faces that are shown are others than those measured, but drawn alike.
    """
    every = networks(tested, beside)
    chosen = tested.first_correct()[:_N_SHOWN]
    images = tested.images[chosen]
    made = forms(tested, images)
    pictures = torch.stack(list(made.values()), dim=1)  # [R, K, C, H, W]
    notes = [["" for _ in made] for _ in chosen]
    for each in every.values():
        for k, shown in enumerate(made.values()):
            found = explain.extract_features(each.model, shown)
            for i, (j, certain) in enumerate(zip(found.predicted.tolist(), found.confidence.tolist(), strict=True)):
                notes[i][k] += f"{name_of(each)}: {tested.classes[j]} {certain[j]:.2f}\n"
    titles = [
        name + "".join(f"\n{name_of(each)}: {values[part][name]['confidence']:.2f}" for part, each in every.items())
        for name in made
    ]
    return draw_examples(pictures, titles, [[note.rstrip("\n") for note in row] for row in notes])
