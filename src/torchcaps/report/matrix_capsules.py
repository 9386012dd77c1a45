"""The pictures of a report on matrix capsules: parts, votes and viewpoints."""

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

#: Examples of each kind that a picture shows, and toys that are looked at from all sides: one, and more for every
#: so many test images, for a toy has 972 views and should not take longer than they did.
_N_RIGHT, _N_WRONG, _N_TOYS, _EACH = 6, 2, 5, 4000

#: Of networks with a single iteration, of which there would be nothing to compare.
ONE_MORE = " This network answers after the first iteration; the second shows what one more would do."


def of_one_window(tested: EvaluatedRun) -> str:
    """Of test images that were looked at through several windows, what is to be said beside predictions of one."""
    if tested.config.data.test_crops == 1:
        return ""
    return (
        f" Here the network sees the central window alone, not all {tested.config.data.test_crops} whose scores are "
        "averaged for its errors, and may say another class of it."
    )


def pictures_of_em(album: Album, tested: EvaluatedRun) -> list[str]:
    """The sections that a network of matrix capsules has of its own."""
    return [_parts(album, tested), _votes(album, tested), _views(album, tested)]


def _parts(album: Album, tested: EvaluatedRun) -> str:
    some = tested.first_correct()[:_N_RIGHT] + tested.wrong.nonzero().squeeze(1)[:_N_WRONG].tolist()
    images = tested.images[some]
    figure = explain.draw_parts(images, explain.part_maps(tested.model, images), tested.labels[some, 0], tested.classes)
    text = (
        "Which places of the image the winning class was made of, and which went to the runner-up: each class "
        "capsule's responsibilities, times the activations of the capsules that it took, followed down through "
        "all layers to the first capsules. Bright places gave the most, be it on the object or on the ground about it; "
        "where both maps are bright, the classes shared a place. Below each stand the class and its activation."
        + of_one_window(tested)
    )
    return page.section("What a class is made of", album.add("parts", figure, text))


def _votes(album: Album, tested: EvaluatedRun) -> str:
    title, model = "Votes that agree", tested.model
    assert isinstance(model, MatrixCapsNet)
    if not isinstance(model.classes.routing, EMRouting):
        return page.section(
            title,
            page.paragraph(
                "Left out, because this network's class capsules are not fitted to clusters of votes by EM."
            ),
        )
    image = tested.images[tested.first_correct()[0]]
    likeliest: list[int] = model(image.unsqueeze(0)).scores[0].topk(2).indices.tolist()
    n_iters = max(2, model.classes.n_iters)
    votes = [explain.class_votes(model, image, j, n_iters) for j in likeliest]
    text = (
        "Every capsule of the last map votes what the pose of a class would be (16 numbers, seen here in the plane "
        "in which the votes differ most). Above, for the first image of the section before, the votes for its winning "
        "class, below those for the runner-up, from the first iteration of routing to the last: the larger a dot, the "
        "more of its capsule goes to the class, and the darker, the more active that capsule is. The cross is the "
        "class's pose, the ellipse its standard deviation; a class becomes active where the votes that it takes lie "
        "close together."
    )
    if model.classes.n_iters == 1:
        text += ONE_MORE
    figure = explain.draw_votes(votes, [tested.classes[j] for j in likeliest])
    return page.section(title, album.add("votes", figure, text))


class _Toy(NamedTuple):
    """One object from all sides that the test split has (and those that were not trained on), in degrees.

    ``known`` is what can be said of its part in training.
    """

    images: Tensor
    elevation: Tensor
    azimuth: Tensor
    familiar: Tensor
    known: str


def _views(album: Album, tested: EvaluatedRun) -> str:
    title = "Seen from all sides"
    missing = {"instance", "elevation", "azimuth"} - tested.data.test.factors.keys()
    if missing:
        text = f"Left out, because these data do not tell the {' and '.join(sorted(missing))} of each test image."
        return page.section(title, page.paragraph(text))
    n = max(1, min(_N_TOYS, len(tested.images) // _EACH))
    first, *others = [_toy(album, tested, k) for k in tested.first_correct()[:n]]
    return page.section(title, first[1], *(page.fold(*other) for other in others))


def _toy(album: Album, tested: EvaluatedRun, k: int) -> tuple[str, str]:
    """What to call the toy of test image k, and its picture."""
    label = int(tested.labels[k, 0])
    name, toy = tested.classes[label], _sides_of(tested, k)
    found = explain.view_responses(tested.model, toy.images, label, toy.elevation, toy.azimuth)
    novel = not bool(toy.familiar.all())
    trained = None
    if novel:
        *_, share = explain.mean_by_view(toy.familiar[:, None].float(), toy.elevation, toy.azimuth)
        trained = share[..., 0] > 0.5
    figure = explain.draw_views(found, toy.images, toy.elevation, toy.azimuth, name, trained)
    text = (
        f"One toy of the class {name}{toy.known}, from every azimuth and elevation (means over its "
        "lightings). Its class's capsule should stay active from all sides, above the dashed line, while the pose "
        "follows the viewpoint: shown along the two axes in which its 16 numbers move most."
    )
    if novel:
        text += " Dots are the viewpoints from which toys were seen in training; the rest of each line is new to it."
    return f"The same for the class {name}", album.add(f"views-{label}", figure, text)


def _sides_of(tested: EvaluatedRun, k: int) -> _Toy:
    """All images of the toy that test image k shows, as the network sees them."""
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
        known = ", which was trained on" if seen.any() else ", which was not trained on"
    return _Toy(*(torch.cat(parts) for parts in zip(*found, strict=True)), known=known)
