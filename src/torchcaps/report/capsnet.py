"""The pictures of a report, each with the sentence that says what one sees."""

from __future__ import annotations

import torch

from torchcaps import explain
from torchcaps.layers import Decoder
from torchcaps.models import CapsNet, MatrixCapsNet
from torchcaps.report import page
from torchcaps.report.evaluated import EvaluatedRun
from torchcaps.report.matrix_capsules import ONE_MORE, of_one_window, pictures_of_em
from torchcaps.report.page import Album
from torchcaps.training.per_class import are_unequal, count_classes, recalls

#: Examples of each kind that a picture shows, and classes that the larger ones show.
_N_RIGHT, _N_WRONG, _N_CLASSES = 8, 4, 10


def pictures(album: Album, tested: EvaluatedRun) -> list[str]:
    """The sections that apply to a run."""
    if tested.config.data.pairs:
        return pictures_of_pairs(album, tested)
    made = [_confusion(album, tested)]
    if isinstance(tested.model, MatrixCapsNet):
        return [*made, _mistakes(album, tested), *pictures_of_em(album, tested)]
    if _paints(tested):
        made += [_reconstructions(album, tested), _perturbations(album, tested)]
    else:
        made.append(_mistakes(album, tested))
    return made + _routing(album, tested, tested.first_correct()[0]) if isinstance(tested.model, CapsNet) else made


def _paints(tested: EvaluatedRun) -> bool:
    """Whether the network, this library's or one of one's own, has a decoder, and class capsules to paint from."""
    if not isinstance(getattr(tested.model, "decoder", None), Decoder):
        return False
    with torch.no_grad():
        return bool(tested.model(tested.images[:1]).capsules)


def _confusion(album: Album, tested: EvaluatedRun) -> str:
    n = len(tested.classes)
    matrix = explain.confusion_matrix(tested.labels[:, 0], tested.predicted[:, 0], n)
    text = (
        "Every test image, counted by what it is (row) and what it was taken for (column). Blue are the right "
        "ones; red cells are mistakes, the deeper the more frequent: classes that the network finds alike."
    )
    picture = album.add("confusion", explain.draw_confusion(matrix, tested.classes), text)
    counts = count_classes(tested.labels[:, 0], tested.classes)
    return page.section("Which class is taken for which", picture, *(_recall(tested) if are_unequal(counts) else ()))


def _recall(tested: EvaluatedRun) -> tuple[str, str]:
    """How many images of each class are recognized."""
    counts = count_classes(tested.labels[:, 0], tested.classes)
    recall = recalls(tested.labels[:, 0], tested.wrong, tested.classes)["recall"]
    rows = [
        (name, f"{counts[name]:,}", "–" if value is None else f"{100 * value:.1f} %") for name, value in recall.items()
    ]
    text = (
        "Classes are unequal here, so that the error is mostly that of the large ones. The balanced error is what is "
        "missing to 100 % in the mean over the classes that have test images."
    )
    return page.paragraph(text), page.table(("class", "test images", "recognized (recall)"), rows, first_is_this=False)


def _mistakes(album: Album, tested: EvaluatedRun) -> str:
    figure = explain.draw_misclassified(tested.images, tested.labels[:, 0], tested.predicted[:, 0], tested.classes)
    text = (
        "The first test images that were taken for another class: what they are, and what they were read as. Some "
        "are hard for people too; the others say what the network has not learned."
    )
    return page.section("Mistakes", album.add("mistakes", figure, text))


def _reconstructions(album: Album, tested: EvaluatedRun) -> str:
    some = tested.first_correct()[:_N_RIGHT] + tested.wrong.nonzero().squeeze(1)[:_N_WRONG].tolist()
    found = explain.reconstruct(tested.model, tested.images[some], tested.labels[some, 0])
    assert isinstance(tested.model.decoder, Decoder)
    size = tested.model.decoder.d_in
    text = (
        "Above, what the network sees; below, what its decoder paints from the winning class capsule alone, "
        f"{size} numbers. The capsule thus knows not only that a class is there but what it looks like. Where "
        "the prediction is wrong (red), the last row shows the same image as the true class's capsule sees it."
        + of_one_window(tested)
    )
    figure = explain.draw_reconstructions(found, tested.classes)
    return page.section("What a capsule remembers of an image", album.add("reconstructions", figure, text))


def _perturbations(album: Album, tested: EvaluatedRun) -> str:
    some = tested.first_correct()[:_N_CLASSES]
    labels = tested.labels[some, 0]
    grids = explain.perturb(tested.model, tested.images[some], labels)
    names = [tested.classes[k] for k in labels.tolist()]
    strongest = album.add(
        "perturbations",
        explain.draw_strongest(grids, names),
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
                explain.draw_perturbations(grid),
                f"Each row changes one dimension of the capsule of class {name} (the paper's figure 4): some matter "
                f"much, and some hardly at all.",
            ),
        )
        for name, label, grid in zip(names, labels.tolist(), grids, strict=True)
    ]
    return page.section("What the numbers in a capsule mean", strongest, *whole)


def _routing(album: Album, tested: EvaluatedRun, k: int, what: str = "", prefix: str = "") -> list[str]:
    """Couplings and parse tree of one test image, in the true classes' colours."""
    model, image, labels = tested.model, tested.images[k], tested.labels[k].tolist()
    assert isinstance(model, CapsNet)
    n_iters = max(2, model.classes.n_iters)
    beyond = ONE_MORE if model.classes.n_iters == 1 else ""
    learned = getattr(model.classes, "prior", None) is not None  # which EM routing has not
    couplings = explain.coupling_maps(model, image.unsqueeze(0), n_iters)
    maps = album.add(
        f"{prefix}couplings",
        explain.draw_couplings(image, couplings, tested.classes),
        "Where in the image the votes for each class come from, from the first iteration of routing (above) to the "
        "last; a capsule's vote is drawn at the centre of what it sees. In the first every capsule divides its vote "
        f"{'as it has learned to for all images' if learned else 'equally'}; then votes that agree with each other "
        "gain weight: where a class's picture becomes brighter than its first, its places have gained. Below each "
        "picture stands the activation of the class's capsule, its probability." + beyond,
    )
    trees = [explain.parse_tree(model, image, n) for n in (1, n_iters)]
    pair = len(labels) == 2
    colours = (explain.FIRST, explain.SECOND) if pair else explain.HIGHLIGHT
    tree = album.add(
        f"{prefix}parse-tree",
        explain.draw_parse_tree(image, trees, tested.classes, labels, colours),
        "The parse tree that routing carves out of the network. Dots are the most active capsules of the image, "
        "each at the centre of what it sees; a line leads to the class with which it is coupled most, and is the "
        "stronger the further that is from an even share: where the coupling above each picture is hardly more than "
        f"even, the parts have hardly chosen. {'' if learned else 'At first all classes are equal. '}"
        + ("The two objects are coloured." if pair else "The true class is coloured.")
        + beyond,
    )
    return [
        page.section(f"Who votes for what{what}", maps),
        page.section(f"From parts to wholes{what}", tree),
    ]


def pictures_of_pairs(album: Album, tested: EvaluatedRun, what: str = "", prefix: str = "") -> list[str]:
    """The sections of a run on pairs; ``what`` is added to their titles, ``prefix`` to the names of their files."""
    right = (~tested.wrong).nonzero().squeeze(1).tolist()
    some = right[: _N_RIGHT - 2] + tested.wrong.nonzero().squeeze(1)[:_N_WRONG].tolist()
    made = []
    if _paints(tested):
        found = explain.segment(tested.model, tested.images[some], tested.labels[some], tested.parts[some])
        text = (
            "Two images lie on top of each other (first row; the second shows which pixels are whose, yellow where "
            "both are). The network names both, and paints each from its own capsule alone (third row). ✓ both "
            "classes are right; ✗ at least one is not."
        )
        title = f"Overlapping images taken apart{what}"
        made.append(
            page.section(
                title, album.add(f"{prefix}segmentation", explain.draw_segmentation(found, tested.classes), text)
            )
        )
    if isinstance(tested.model, CapsNet):
        made += _routing(album, tested, (right or [0])[0], what, f"{prefix}pairs-")
    return made
