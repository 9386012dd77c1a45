"""Pictures of a classifier's report, each with a text that explains it."""

from __future__ import annotations

import torch

from torchcaps import explain
from torchcaps.layers import Decoder
from torchcaps.models import MatrixCapsNet
from torchcaps.report import page
from torchcaps.report.class_scores import calibration, class_table
from torchcaps.report.evaluated import EvaluatedRun
from torchcaps.report.matrix_capsules import pictures_of_em, window_note
from torchcaps.report.page import Album
from torchcaps.report.routing import pictures_of_routing
from torchcaps.report.several_labels import pictures_of_labels
from torchcaps.training.tasks import OverlappingPairs
from torchcaps.types import as_output

#: Correct and misclassified examples in a picture, and classes in the larger pictures.
_N_RIGHT, _N_WRONG, _N_CLASSES = 8, 4, 10


def pictures(album: Album, tested: EvaluatedRun) -> list[str]:
    """Build the sections that apply to a run."""
    if isinstance(tested.config.data.task, OverlappingPairs):
        return pictures_of_pairs(album, tested)
    if tested.several_labels:
        return pictures_of_labels(album, tested)
    made = [_confusion(album, tested), class_table(tested), calibration(album, tested)]
    if isinstance(tested.model, MatrixCapsNet):
        return [*made, _mistakes(album, tested), *pictures_of_em(album, tested)]
    if _reconstructs(tested):
        made += [_reconstructions(album, tested), _perturbations(album, tested)]
    else:
        made.append(_mistakes(album, tested))
    return made + pictures_of_routing(album, tested, tested.first_correct()[0])


def _reconstructs(tested: EvaluatedRun) -> bool:
    """Return whether the network has a decoder, and class capsules to decode."""
    if not isinstance(getattr(tested.model, "decoder", None), Decoder):
        return False
    with torch.no_grad():
        return bool(as_output(tested.model(tested.images[:1])).capsules)


def _confusion(album: Album, tested: EvaluatedRun) -> str:
    """Show the confusion matrix."""
    n = len(tested.classes)
    matrix = explain.confusion_matrix(tested.labels[:, 0], tested.predicted[:, 0], n)
    text = (
        "Every test image, counted by its true class (row) and its predicted class (column). Blue cells are correct; "
        "red cells are mistakes, and deeper red is more frequent: the network confuses these classes."
    )
    picture = album.add("confusion", explain.draw_confusion(matrix, tested.classes), text)
    return page.section("Confusion matrix", picture)


def _mistakes(album: Album, tested: EvaluatedRun) -> str:
    """Show the first misclassified images."""
    figure = explain.draw_misclassified(tested.images, tested.labels[:, 0], tested.predicted[:, 0], tested.classes)
    text = (
        "The first misclassified test images, with their true and predicted classes. Some are hard for people too; the "
        "others show what the network has not learned."
    )
    return page.section("Mistakes", album.add("mistakes", figure, text))


def _reconstructions(album: Album, tested: EvaluatedRun) -> str:
    """Show images and their reconstructions, the misclassified ones last."""
    some = tested.first_correct()[:_N_RIGHT] + tested.wrong.nonzero().squeeze(1)[:_N_WRONG].tolist()
    found = explain.reconstruct(tested.model, tested.images[some], tested.labels[some, 0])
    assert isinstance(tested.model.decoder, Decoder)
    size = tested.model.decoder.d_in
    text = (
        f"Above, the input; below, the reconstruction from the winning class capsule alone, {size} numbers. The "
        "capsule thus encodes not only that a class is present but also what it looks like. Where the prediction is "
        "wrong (red), the last row shows the reconstruction from the true class's capsule." + window_note(tested)
    )
    figure = explain.draw_reconstructions(found, tested.classes)
    return page.section("Reconstructions", album.add("reconstructions", figure, text))


def _perturbations(album: Album, tested: EvaluatedRun) -> str:
    """Show the strongest dimensions of each class capsule, and all of them folded."""
    some = tested.first_correct()[:_N_CLASSES]
    labels = tested.labels[some, 0]
    grids = explain.perturb(tested.model, tested.images[some], labels)
    names = [tested.classes[k] for k in labels.tolist()]
    strongest = album.add(
        "perturbations",
        explain.draw_strongest(grids, names),
        "For each class the three dimensions of its capsule that change the picture most. In each row one number of "
        "the capsule changes from left to right, and the others stay; the frame marks the unchanged reconstruction. In "
        "a well-trained capsule a single number may encode shear, thickness or the size of a part, without any label "
        "for it.",
    )
    whole = [
        page.fold(
            f"All dimensions of class {name}",
            album.add(
                f"dimensions-{label}",
                explain.draw_perturbations(grid),
                f"Each row changes one dimension of the capsule of class {name} (the paper's figure 4): some matter "
                f"much, others hardly at all.",
            ),
        )
        for name, label, grid in zip(names, labels.tolist(), grids, strict=True)
    ]
    return page.section("What the dimensions of a capsule encode", strongest, *whole)


def pictures_of_pairs(album: Album, tested: EvaluatedRun, what: str = "", prefix: str = "") -> list[str]:
    """Build the sections of a run on pairs: ``what`` is added to titles, ``prefix`` to the names of files."""
    right = (~tested.wrong).nonzero().squeeze(1).tolist()
    some = right[: _N_RIGHT - 2] + tested.wrong.nonzero().squeeze(1)[:_N_WRONG].tolist()
    made = []
    if _reconstructs(tested):
        found = explain.segment(tested.model, tested.images[some], tested.labels[some], tested.parts[some])
        text = (
            "Two images overlap (first row; the second shows the pixels of each, yellow where both are bright). The "
            "network predicts both classes, and reconstructs each from its own capsule alone (third row). ✓: both "
            "classes are correct; ✗: at least one is not."
        )
        title = f"Segmentation of overlapping images{what}"
        made.append(
            page.section(
                title, album.add(f"{prefix}segmentation", explain.draw_segmentation(found, tested.classes), text)
            )
        )
    made += pictures_of_routing(album, tested, (right or [0])[0], what, f"{prefix}pairs-")
    return made
