"""Pictures of a report on matrix capsules: parts, votes and viewpoints."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torchcaps import explain
from torchcaps.data.smallnorb import in_degrees
from torchcaps.layers import EMRouting
from torchcaps.models import MatrixCapsNet
from torchcaps.report import page
from torchcaps.report.evaluated import EvaluatedRun
from torchcaps.report.page import Album
from torchcaps.training.batches import Batches, evaluated

#: Correct and misclassified examples in a picture.
_N_RIGHT, _N_WRONG = 6, 2
#: Objects shown from all sides: one for each 4000 test images, as an object of small NORB has 972 views, but 1 to 5.
_N_OBJECTS, _IMAGES_PER_OBJECT = 5, 4000

#: Note for networks with a single iteration, of which there would be nothing to compare.
ONE_MORE = " This network predicts after the first iteration; the second shows what one more would do."


def window_note(tested: EvaluatedRun) -> str:
    """Return a note for runs whose test images are evaluated in several windows; pictures show the central one."""
    if tested.config.data.test_crops == 1:
        return ""
    return (
        f" Here the network sees the central window alone. Its errors average the scores of all "
        f"{tested.config.data.test_crops} windows, so the prediction may differ."
    )


def pictures_of_em(album: Album, tested: EvaluatedRun) -> list[str]:
    """Build the sections for networks of matrix capsules."""
    return [_parts(album, tested), _votes(album, tested), _views(album, tested)]


def _parts(album: Album, tested: EvaluatedRun) -> str:
    """Show the parts of the winning class and of the runner-up."""
    some = tested.first_correct()[:_N_RIGHT] + tested.wrong.nonzero().squeeze(1)[:_N_WRONG].tolist()
    images = tested.images[some]
    figure = explain.draw_parts(images, explain.part_maps(tested.model, images), tested.labels[some, 0], tested.classes)
    text = (
        "The places of the image that the winning class and the runner-up are made of: each class capsule's "
        "responsibilities, times the activations of the capsules below, traced through all layers to the first "
        "capsules. Bright places contribute most, on the object or on the background around it; where both maps are "
        "bright, the classes share a place. Below each stand the class and its activation." + window_note(tested)
    )
    return page.section("What a class is made of", album.add("parts", figure, text))


def _votes(album: Album, tested: EvaluatedRun) -> str:
    """Show the votes for the two likeliest classes of one image."""
    title, model = "Votes that agree", tested.model
    assert isinstance(model, MatrixCapsNet)
    if not isinstance(model.classes.routing, EMRouting):
        return page.section(
            title,
            page.paragraph(
                "Not shown: EM does not route this network's class capsules, so no Gaussian is fitted to their votes."
            ),
        )
    image = tested.images[tested.first_correct()[0]]
    likeliest: list[int] = model(image.unsqueeze(0)).scores[0].topk(2).indices.tolist()
    n_iters = max(2, model.classes.n_iters)
    votes = [explain.class_votes(model, image, j, n_iters) for j in likeliest]
    text = (
        "Every capsule of the last map votes for the pose of each class (16 numbers, shown in the plane in which the "
        "votes differ most). The image is the first one of the section before: above, the votes for its winning class; "
        "below, those for the runner-up; from the first iteration of routing to the last. A dot is larger the more of "
        "its capsule goes to the class, and darker the more active that capsule is. The cross is the class's pose, the "
        "ellipse its standard deviation. A class becomes active where its votes lie close together."
    )
    if model.classes.n_iters == 1:
        text += ONE_MORE
    figure = explain.draw_votes(votes, [tested.classes[j] for j in likeliest])
    return page.section(title, album.add("votes", figure, text))


class _Object(NamedTuple):
    """All views of one object in the test splits, in degrees.

    Attributes:
        images: images, as the network sees them.
        elevation: elevation of each image.
        azimuth: azimuth of each image.
        familiar: whether training has the viewpoint of each image.
        known: a note on whether training has the object.
    """

    images: Tensor
    elevation: Tensor
    azimuth: Tensor
    familiar: Tensor
    known: str


def _views(album: Album, tested: EvaluatedRun) -> str:
    """Show activation and pose of a few objects over the viewpoint."""
    title = "Seen from all sides"
    missing = {"instance", "elevation", "azimuth"} - tested.data.test.factors.keys()
    if missing:
        text = f"Not shown: these data lack the {' and '.join(sorted(missing))} of each test image."
        return page.section(title, page.paragraph(text))
    n = max(1, min(_N_OBJECTS, len(tested.images) // _IMAGES_PER_OBJECT))
    first, *others = [_object_views(album, tested, k) for k in tested.first_correct()[:n]]
    return page.section(title, first[1], *(page.fold(*other) for other in others))


def _object_views(album: Album, tested: EvaluatedRun, k: int) -> tuple[str, str]:
    """Return a title for the object of test image k, and its picture."""
    label = int(tested.labels[k, 0])
    name, views = tested.classes[label], _sides_of(tested, k)
    found = explain.view_responses(tested.model, views.images, label, views.elevation, views.azimuth)
    novel = not bool(views.familiar.all())
    trained = None
    if novel:
        *_, share = explain.mean_by_view(views.familiar[:, None].float(), views.elevation, views.azimuth)
        trained = share[..., 0] > 0.5
    figure = explain.draw_views(found, views.images, views.elevation, views.azimuth, name, trained)
    text = (
        f"One object of the class {name}{views.known}, from every azimuth and elevation (means over its "
        "lightings). Its class capsule should stay active from all sides, above the dashed line, while the pose "
        "changes with the viewpoint: it is shown along the two axes in which its 16 numbers vary most."
    )
    if novel:
        text += " Dots mark the viewpoints that training has; the rest of each line is new to the network."
    return f"The same for the class {name}", album.add(f"views-{label}", figure, text)


def _sides_of(tested: EvaluatedRun, k: int) -> _Object:
    """Return all images of the object that test image k shows."""
    every = tested.data.test, tested.data.further.get("novel")
    wanted, train = evaluated(tested.config.data, tested.data.test).factors["instance"][k], tested.data.train
    label, found = tested.labels[k, 0], []
    for split, familiar in zip(every, (True, False), strict=True):
        if split is None:
            continue
        part = split.take((split.factors["instance"] == wanted) & (split.labels == label))
        batches = Batches(tested.config.data, part, 100, seed=0, train=False)
        images = torch.cat([batch.images for batch in batches])
        angles = in_degrees(part.factors) if tested.data.name == "smallnorb" else part.factors
        found.append((images, angles["elevation"], angles["azimuth"], torch.full((len(part),), familiar)))
    known = ""
    if "instance" in train.factors and tested.config.data.n_train is None:
        seen = (train.factors["instance"] == wanted) & (train.labels == label)
        known = ", which training has" if seen.any() else ", which training does not have"
    return _Object(*(torch.cat(parts) for parts in zip(*found, strict=True)), known=known)
