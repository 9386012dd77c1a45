"""Where the votes for the classes of one image come from, and the parse tree that routing carves out of the network."""

from __future__ import annotations

from torchcaps import explain
from torchcaps.explain.canvas import SERIES
from torchcaps.models import CapsNet, MatrixCapsNet
from torchcaps.report import page
from torchcaps.report.evaluated import EvaluatedRun
from torchcaps.report.matrix_capsules import ONE_MORE
from torchcaps.report.page import Album
from torchcaps.training.tasks import OverlappingPairs


def pictures_of_routing(album: Album, tested: EvaluatedRun, k: int, what: str = "", prefix: str = "") -> list[str]:
    """Show couplings and parse tree of one test image, in the true classes' colours, if a map is routed to classes."""
    model, image, labels = tested.model, tested.images[k], tested.labels[k]
    true = labels.nonzero().squeeze(1).tolist() if tested.several_labels else labels.tolist()
    try:
        couplings = explain.coupling_maps(model, image.unsqueeze(0))
        classes = explain.trace_routing(model, image.unsqueeze(0)).classes
    except ValueError:  # a CNN, or a network of one's own that routes otherwise
        return []
    n_iters, beyond = classes.layer.n_iters, ""
    if classes.iterates and n_iters == 1:
        n_iters, beyond = 2, ONE_MORE
        couplings = explain.coupling_maps(model, image.unsqueeze(0), n_iters)
    learned = getattr(classes.layer, "initial_logits", None) is not None  # which EM routing has not
    where = "at the centre of its receptive field"
    if not isinstance(model, CapsNet | MatrixCapsNet):
        where = "at its place in the map, which is laid over the whole image"
    iterations = (
        f" From above to below: the iterations of routing. In the first one every capsule divides its vote "
        f"{'by learned initial logits, the same for all images' if learned else 'equally'}; then votes that agree with "
        "each other gain weight: a place that becomes brighter than in the first iteration has gained."
    )
    maps = album.add(
        f"{prefix}couplings",
        explain.draw_couplings(image, couplings, tested.classes),
        f"Where the votes for each class come from. A capsule's vote is drawn {where}."
        f"{iterations * classes.iterates} Below each picture stands the activation of the class capsule." + beyond,
    )
    trees = [explain.parse_tree(model, image, n) for n in sorted({1, n_iters})]
    pair = isinstance(tested.config.data.task, OverlappingPairs)
    colours = (explain.FIRST, explain.SECOND) if pair else SERIES[1:]
    tree = album.add(
        f"{prefix}parse-tree",
        explain.draw_parse_tree(image, trees, tested.classes, true, colours),
        "The parse tree that routing carves out of the network. Dots are the most active capsules of the image, each "
        f"{where}. A line leads to the class with which the capsule is coupled most; it is "
        "stronger the further that coupling exceeds an even share. If the median coupling above a picture is hardly "
        "more than even, the parts have hardly decided. "
        f"{'At first all classes are equal. ' if classes.iterates and not learned else ''}"
        + ("The true class is coloured." if len(true) == 1 else "The true classes are coloured.")
        + beyond,
    )
    return [
        page.section(f"Where the votes come from{what}", maps),
        page.section(f"Parse tree{what}", tree),
    ]
