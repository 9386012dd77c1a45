"""Pictures of a classifier that finds several labels in an image."""

from __future__ import annotations

import torch

from torchcaps import explain
from torchcaps.layers import Decoder
from torchcaps.report import page
from torchcaps.report.class_scores import calibration, class_table
from torchcaps.report.evaluated import EvaluatedRun
from torchcaps.report.page import Album
from torchcaps.report.routing import pictures_of_routing
from torchcaps.types import as_output

#: Examples that are right and that are not, and labels in the picture of those that go together.
_N_RIGHT, _N_WRONG, _N_LABELS = 6, 12, 30


def pictures_of_labels(album: Album, tested: EvaluatedRun) -> list[str]:
    """Build the sections of a run on images with several labels."""
    right, wrong = _places(tested)
    made = [class_table(tested), calibration(album, tested), _examples(album, tested, right, wrong)]
    if 2 <= len(tested.classes) <= _N_LABELS:
        made.append(_together(album, tested))
    if isinstance(getattr(tested.model, "decoder", None), Decoder):
        made.append(_reconstructions(album, tested, right[:_N_RIGHT] or wrong[:_N_RIGHT]))
    several = [k for k in right if tested.labels[k].sum() > 1]
    return made + pictures_of_routing(album, tested, (several or right or [0])[0])


def _places(tested: EvaluatedRun) -> tuple[list[int], list[int]]:
    """Return the places of images without a mistake (those that have labels first), and of the others."""
    mistaken = tested.wrong.any(dim=1)
    right = (~mistaken).nonzero().squeeze(1).tolist()
    labelled = tested.labels.any(dim=1)
    return sorted(right, key=lambda k: not labelled[k]), mistaken.nonzero().squeeze(1).tolist()


def _examples(album: Album, tested: EvaluatedRun, right: list[int], wrong: list[int]) -> str:
    """Show images with the labels that were found, missed, and predicted in vain."""
    some = right[:_N_RIGHT] + wrong[:_N_WRONG]
    figure = explain.draw_labels(tested.images[some], tested.labels[some], tested.predicted[some], tested.classes)
    threshold = "its capsule is longer than 0.5" if tested.has_lengths() else "its probability is above 0.5"
    text = (
        f"A label is predicted where {threshold}. Green: labels that were found. Red: labels that were "
        'missed, and, after "not", labels that the image does not have. The first test images without and with a '
        "mistake are shown."
    )
    return page.section("Examples", album.add("labels", figure, text))


def _together(album: Album, tested: EvaluatedRun) -> str:
    """Show which labels go together, in truth and in what was predicted."""
    panels = [
        ("true labels, %", explain.co_occurrence(tested.labels)),
        ("predicted labels, %", explain.co_occurrence(tested.predicted)),
    ]
    text = (
        "Of the images with the label of a row, the share that has that of a column too. Where a predicted share is "
        "higher than the true one, the network takes one label for a sign of the other; where it is lower, one hides "
        "the other."
    )
    figure = explain.draw_co_occurrence(panels, tested.classes)
    return page.section("Labels that go together", album.add("together", figure, text))


@torch.no_grad()
def _reconstructions(album: Album, tested: EvaluatedRun, some: list[int]) -> str:
    """Show images and what the capsules of the predicted labels reconstruct together."""
    images, predicted = tested.images[some], tested.predicted[some]
    capsules = as_output(tested.model(images)).capsules[-1]
    assert isinstance(tested.model.decoder, Decoder)
    decoded = tested.model.decoder(capsules, predicted.float())
    text = "Above, the input; below, what the capsules of all predicted labels reconstruct together."
    rows = [("input", images), ("reconstruction", decoded)]
    return page.section("Reconstructions", album.add("reconstructions", explain.draw_image_rows(rows), text))
