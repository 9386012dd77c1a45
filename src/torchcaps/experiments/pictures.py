"""The pictures of a report, each with the sentence that says what one sees."""

from __future__ import annotations

import io
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from tqdm import tqdm

from torchcaps import analysis
from torchcaps.experiments import page
from torchcaps.experiments.batches import split
from torchcaps.experiments.devices import choose_device
from torchcaps.experiments.experiment import Experiment
from torchcaps.experiments.objective import wrong
from torchcaps.experiments.run import Run, write_atomically
from torchcaps.experiments.saved import data_for, load_model
from torchcaps.models import CapsNet

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Examples of each kind that a picture shows, classes that the larger ones show, and pairs looked at.
_N_RIGHT, _N_WRONG, _N_CLASSES, _N_PAIRS = 8, 4, 10, 1000
_DPI = 150


class Tested(NamedTuple):
    """A run, its model, and what it said of the test split (for pairs, of its first thousand)."""

    run: Run
    config: Experiment
    result: dict[str, Any]
    model: nn.Module
    classes: tuple[str, ...]
    images: Tensor
    labels: Tensor
    parts: Tensor
    predicted: Tensor
    wrong: Tensor


@torch.no_grad()
def look(run: Run, root: str | Path | None = None) -> Tested:
    """Let a finished run predict its test split, whose files lie in ``root`` or where the run found them.

    Raises:
        ValueError: its model or its data cannot be loaded.
    """
    config, result = run.experiment(), run.read(run.result)
    if root is not None:
        config = replace(config, data=replace(config.data, root=str(root)))
    trained, device = load_model(run), choose_device("auto")
    model = trained.model.to(device)
    batches = split(config, data_for(config, trained), "test", device)
    found, n = [], 0
    for batch in tqdm(batches, desc="look at the test images", leave=False, disable=not sys.stderr.isatty()):
        scores = torch.stack([model(view.images).scores for view in batch.views()]).mean(dim=0)
        predicted = scores.topk(batch.labels.shape[1], dim=1).indices
        found.append((batch.images, batch.labels, batch.parts, predicted, wrong(scores, batch.labels)))
        n += len(batch.images)
        if config.data.pairs and n >= _N_PAIRS:
            break
    kept = (torch.cat(parts).cpu() for parts in zip(*found, strict=True))
    return Tested(run, config, result, model.cpu(), trained.classes, *kept)


class Album:
    """Makes a figure a part of the page, and keeps it as ``pictures/<name>.png``."""

    def __init__(self, run: Run) -> None:
        self.folder = run.path / "pictures"

    def add(self, name: str, figure: Figure, text: str) -> str:
        """The text and under it the figure, as HTML."""
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=_DPI, metadata={"Software": None})
        png = buffer.getvalue()
        write_atomically(self.folder / f"{name}.png", lambda path: path.write_bytes(png))
        width, height = figure.get_size_inches()
        return page.paragraph(text) + page.picture(png, text, width, height)


def pictures(album: Album, tested: Tested) -> list[str]:
    """The sections that apply to a run."""
    if tested.config.data.pairs:
        return pictures_of_pairs(album, tested)
    made = [_confusion(album, tested)]
    if not isinstance(tested.model, CapsNet):
        return [*made, _mistakes(album, tested)]
    if tested.model.decoder is None:
        made.append(_mistakes(album, tested))
    else:
        made += [_reconstructions(album, tested), _perturbations(album, tested)]
    return made + _routing(album, tested, _firsts(tested)[0])


def _confusion(album: Album, tested: Tested) -> str:
    n = len(tested.classes)
    matrix = analysis.confusion_matrix(tested.labels[:, 0], tested.predicted[:, 0], n)
    text = (
        "Every test image, counted by what it is (row) and what it was taken for (column). Blue are the right "
        "ones; red cells are mistakes, the deeper the more frequent: classes that the network finds alike."
    )
    return page.section(
        "Which class is taken for which", album.add("confusion", analysis.draw_confusion(matrix, tested.classes), text)
    )


def _mistakes(album: Album, tested: Tested) -> str:
    figure = analysis.draw_mistakes(tested.images, tested.labels[:, 0], tested.predicted[:, 0], tested.classes)
    text = (
        "The first test images that were taken for another class: what they are, and what they were read as. Some "
        "are hard for people too; the others say what the network has not learned."
    )
    return page.section("Mistakes", album.add("mistakes", figure, text))


def _firsts(tested: Tested) -> list[int]:
    """The first rightly recognised test image of each class that has one."""
    right = [((tested.labels[:, 0] == k) & ~tested.wrong).nonzero() for k in range(len(tested.classes))]
    return [int(found[0]) for found in right if len(found)] or [0]


def _reconstructions(album: Album, tested: Tested) -> str:
    some = _firsts(tested)[:_N_RIGHT] + tested.wrong.nonzero().squeeze(1)[:_N_WRONG].tolist()
    found = analysis.reconstruct(tested.model, tested.images[some], tested.labels[some, 0])
    assert isinstance(tested.model, CapsNet)
    size = tested.model.classes.d_out
    text = (
        "Above, what the network sees; below, what its decoder paints from the winning class capsule alone, "
        f"{size} numbers. The capsule thus knows not only that a class is there but what it looks like. Where "
        "the prediction is wrong (red), the last row shows the same image as the true class's capsule sees it."
    )
    figure = analysis.draw_reconstructions(found, tested.classes)
    return page.section("What a capsule remembers of an image", album.add("reconstructions", figure, text))


def _perturbations(album: Album, tested: Tested) -> str:
    some = _firsts(tested)[:_N_CLASSES]
    labels = tested.labels[some, 0]
    grids = analysis.perturb(tested.model, tested.images[some], labels)
    names = [tested.classes[k] for k in labels.tolist()]
    strongest = album.add(
        "perturbations",
        analysis.draw_strongest(grids, names),
        "For each class the three dimensions of its capsule that change the picture most. In each row one "
        "number of the capsule is changed from left to right, and the rest is left alone; framed is the unchanged "
        "reconstruction. In a well-trained capsule a single number stands for such a thing as slant, thickness or the "
        "size of a part, though nobody told the network about them.",
    )
    whole = [
        page.fold(
            f"All dimensions of class {name}",
            album.add(
                f"dimensions-{label}",
                analysis.draw_perturbations(grid),
                f"Each row changes one dimension of the capsule of class {name} (the paper's figure 4): some matter "
                f"much, and some hardly at all.",
            ),
        )
        for name, label, grid in zip(names, labels.tolist(), grids, strict=True)
    ]
    return page.section("What the numbers in a capsule mean", strongest, *whole)


def _routing(album: Album, tested: Tested, k: int, what: str = "", prefix: str = "") -> list[str]:
    """Couplings and parse tree of one test image, in the true classes' colours."""
    model, image, labels = tested.model, tested.images[k], tested.labels[k].tolist()
    assert isinstance(model, CapsNet)
    n_iters = max(2, model.classes.n_iters)
    couplings = analysis.coupling_maps(model, image.unsqueeze(0), n_iters)
    maps = album.add(
        f"{prefix}couplings",
        analysis.draw_couplings(image, couplings, tested.classes),
        "Where in the image the votes for each class come from, from the first iteration of routing (above) to the "
        "last; a capsule's vote is drawn at the centre of what it sees. In the first every capsule divides its vote "
        "equally; then votes that agree with each other gain weight, and the places that support the winning class "
        "light up. Below each picture stands the length of the class's capsule, its probability.",
    )
    trees = [analysis.parse_tree(model, image, n) for n in (1, n_iters)]
    pair = len(labels) == 2
    colours = (analysis.FIRST, analysis.SECOND) if pair else analysis.HIGHLIGHT
    tree = album.add(
        f"{prefix}parse-tree",
        analysis.draw_parse_tree(image, trees, tested.classes, labels, colours),
        "The parse tree that routing carves out of the network. Dots are the most active capsules of the image, "
        "each at the centre of what it sees; a line leads to the class with which it is coupled most. At first all "
        "classes are equal; after the last iteration the parts have chosen the whole that they belong to"
        + (", and the two objects (coloured) have shared them out." if pair else " (the true class is coloured)."),
    )
    return [
        page.section(f"Who votes for what{what}", maps),
        page.section(f"From parts to wholes{what}", tree),
    ]


def pictures_of_pairs(album: Album, tested: Tested, what: str = "") -> list[str]:
    """The sections of a run on pairs; ``what`` is added to their titles."""
    if not isinstance(tested.model, CapsNet):
        return []
    right = (~tested.wrong).nonzero().squeeze(1).tolist()
    some = right[: _N_RIGHT - 2] + tested.wrong.nonzero().squeeze(1)[:_N_WRONG].tolist()
    made = []
    if tested.model.decoder is not None:
        found = analysis.segment(tested.model, tested.images[some], tested.labels[some], tested.parts[some])
        text = (
            "Two images lie on top of each other (first row; the second shows which pixels are whose, yellow where "
            "both are). The network names both, and paints each from its own capsule alone (third row): routing gives "
            "every part to one of the two objects. ✓ both classes are right; ✗ at least one is not."
        )
        title = f"Overlapping images taken apart{what}"
        made.append(
            page.section(title, album.add("segmentation", analysis.draw_segmentation(found, tested.classes), text))
        )
    return made + _routing(album, tested, (right or [0])[0], what, "pairs-")
