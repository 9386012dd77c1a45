"""Parse tree of an image: which capsule belongs to which class."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor, nn

from torchcaps.checks import check_at_least, check_shapes
from torchcaps.explain.canvas import (
    HIGHLIGHT,
    INK,
    MUTED,
    TEXT,
    TITLE,
    bare,
    check_pictures,
    new_figure,
    pixels,
    shortened,
)
from torchcaps.explain.models import inspects_model
from torchcaps.explain.receptive_fields import Extent, map_extent, places_in
from torchcaps.explain.trace import trace_routing
from torchcaps.typed import typed

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class ParseTree(NamedTuple):
    """The N most active lower capsules of one image, and their parents.

    Attributes:
        n_iters: number of iterations of the routing to the classes.
        places: (row, column) of each capsule in the image, ``[N, 2]``.
        types: type of each capsule, ``[N]``.
        activation: activation of each capsule, ``[N]``.
        coupling: coupling of each capsule with every class, ``[N, J]``.
        scores: activations of the class capsules (their lengths, in a CapsNet), ``[J]``.
    """

    n_iters: int
    places: Tensor
    types: Tensor
    activation: Tensor
    coupling: Tensor
    scores: Tensor

    def parents(self) -> Tensor:
        """Mark where each capsule's coupling is strongest, ``[N, J]`` bool.

        Classes that tie are all marked, as they are in the first iteration, when nothing is decided yet.
        """
        return self.coupling >= self.coupling.amax(dim=1, keepdim=True) * (1 - 1e-4)


@typed
@inspects_model
def parse_tree(
    model: nn.Module,
    image: Tensor,
    n_iters: int | None = None,
    n_capsules: int = 80,
    *,
    extent: Extent | None = None,
) -> ParseTree:
    """Find the parents of an image's most active capsules.

    Args:
        model: any network whose last routed layer makes its class capsules of a map of capsules.
        image: ``[C, H, W]``, values 0 … 1.
        n_iters: number of iterations of the routing to the classes, by default the model's own.
        n_capsules: largest N.
        extent: (left, right, bottom, top) of that map in pixels of the image; by default that of the receptive fields
            of a CapsNet or MatrixCapsNet, and all of the image for a network of your own.

    Returns:
        :class:`ParseTree`.

    Raises:
        ValueError: the model routes no map of capsules to its classes, the image does not fit it, or a number is below
            1.

    Example:
        >>> import torch
        >>> from torchcaps import build
        >>> parse_tree(build("capsnet_small", (1, 28, 28), 10), torch.rand(1, 28, 28), n_capsules=5).coupling.shape
        torch.Size([5, 10])

    Source: Sabour et al. 2017, section 1 ("a parse tree is carved out of a fixed multilayer neural
    network").
    """
    check_at_least("n_capsules", n_capsules, 1)
    check_shapes(image=(image, "C H W"))
    images = image.unsqueeze(0)
    found = trace_routing(model, images)
    classes, (_, height, width) = found.classes, found.map_shape()
    n_iters = classes.layer.n_iters if n_iters is None else n_iters
    routed = classes.again(n_iters)
    assert routed.coupling is not None
    activation = classes.lower.activation.flatten()
    strongest = activation.topk(min(n_capsules, len(activation)))
    chosen = strongest.indices.cpu()
    centres = places_in(extent or map_extent(model, images), (height, width))
    types, coupling = chosen // (height * width), routed.coupling[0, chosen]
    places, types = centres[chosen % (height * width)].to(image.device), types.to(image.device)
    return ParseTree(n_iters, places, types, strongest.values, coupling, routed.activation[0])


@typed
def draw_parse_tree(
    image: Tensor,
    trees: ParseTree | Sequence[ParseTree],
    classes: Sequence[str],
    highlight: Sequence[int] = (),
    colours: Sequence[str] = HIGHLIGHT,
) -> Figure:
    """Draw lines from the image's most active capsules to their parents, one panel for each tree.

    A line is stronger the more active its capsule is, and the further its coupling exceeds an even share. Where all
    couplings are alike, faint lines go to every class. A class's dot grows with its capsule's length. The title gives
    the median of the strongest couplings, and an even share.

    Args:
        image: ``[C, H, W]``.
        trees: one tree of this image, or several, such as those after the first and after the last iteration.
        classes: J names.
        highlight: classes in colour, for example the true ones; the others stay grey.
        colours: colours of the highlighted classes.

    Raises:
        ValueError: ``image`` is a batch, there is no tree, or the number of names is not that of the classes.
    """
    trees = [trees] if isinstance(trees, ParseTree) else trees  # a tree is a tuple itself
    check_pictures(image=(image, "C H W"))
    if not trees:
        raise ValueError("trees must hold at least one, got none")
    names = ("places", "types", "activation", "coupling", "scores")
    trees = [tree._replace(**{name: getattr(tree, name).detach() for name in names}) for tree in trees]
    for tree in trees:
        check_pictures(
            **{
                "trees.places": (tree.places, "P 2"),
                "trees.activation": (tree.activation, "P"),
                "trees.coupling": (tree.coupling, "P J"),
                "trees.scores": (tree.scores, "J"),
            }
        )
        check_shapes(**{"trees.places": (tree.places, "P 2"), "trees.types": (tree.types, "P")})
        for name in names:
            if not getattr(tree, name).isfinite().all():
                raise ValueError(f"trees.{name} must hold finite numbers, got others")
    if not all(0 <= each < len(classes) for each in highlight):
        raise ValueError(f"highlight must be among 0 … {len(classes) - 1}, got {highlight}")
    if len(classes) != len(trees[0].scores):
        raise ValueError(f"classes must be {len(trees[0].scores)} names, got {len(classes)}")
    height, width = image.shape[1:]
    colour_of = dict(zip(highlight, colours, strict=False))
    shown = sorted(set(trees[-1].scores.topk(min(12, len(classes))).indices.tolist()) | set(highlight))
    names = [shortened(classes[j], 11) for j in shown]
    right = 1.66 + 0.056 * max(map(len, names))  # where the lengths stand, in widths of the image
    extent = (right + 0.28) * width, 1.12 * height
    figure = new_figure(4.7 * len(trees), max(0.21 * len(shown), 4.7 * extent[1] / extent[0]) + 0.35)
    for axes, tree in zip(figure.subplots(1, len(trees), squeeze=False)[0], trees, strict=True):
        axes.imshow(0.35 + 0.65 * (1 - pixels(image)) if image.shape[0] != 3 else pixels(image))
        rows = [height * (1.08 * (k + 0.5) / len(shown) - 0.04) - 0.5 for k in range(len(shown))]
        nodes = {j: (1.55 * width, y) for j, y in zip(shown, rows, strict=True)}
        _lines(axes, tree, nodes, colour_of)
        for (j, (x, y)), name in zip(nodes.items(), names, strict=True):
            colour, length = colour_of.get(j, MUTED), float(tree.scores[j])
            axes.scatter([x], [y], s=12 + 200 * length**2, color=colour, zorder=4, linewidths=0)
            bold = "bold" if j in colour_of else "normal"
            axes.text(
                1.64 * width, y, name, fontsize=TEXT + 1, color=colour_of.get(j, INK), va="center", fontweight=bold
            )
            axes.text(right * width, y, f"{length:.2f}", fontsize=TEXT, color=MUTED, va="center")
        axes.set(xlim=(-0.5, extent[0] - 0.5), ylim=(1.06 * height - 0.5, -0.06 * height - 0.5))
        bare(axes)
        iterations = "iteration" if tree.n_iters == 1 else "iterations"
        title = (
            f"median coupling {float(tree.coupling.amax(dim=1).median()):.2f}, even {1 / tree.coupling.shape[1]:.2f}"
        )
        axes.set_title(f"after {tree.n_iters} {iterations}: {title}", fontsize=TITLE, color=INK, loc="left")
    return figure


def _lines(axes: Any, tree: ParseTree, nodes: dict[int, tuple[float, float]], colour_of: dict[int, str]) -> None:
    parents = tree.parents()
    for k, (row, column) in enumerate(tree.places.tolist()):
        # Capsules of several types sit at one place: a sunflower's spiral keeps them apart.
        angle, radius = 2.4 * int(tree.types[k]), 0.13 * math.sqrt(int(tree.types[k]))
        y, x = row + radius * math.sin(angle), column + radius * math.cos(angle)
        axes.plot([x], [y], ".", color=INK, markersize=3, zorder=3)
        mine = [j for j in parents[k].nonzero().squeeze(1).tolist() if j in nodes]
        even = 1 / tree.coupling.shape[1]
        ahead = max(0.0, float(tree.coupling[k].max()) - even) / max(1 - even, even)
        strength = float(tree.activation[k]) * (0.12 + 0.88 * ahead)
        for j in mine:
            end = nodes[j]
            colour = colour_of.get(j, MUTED)
            axes.plot(
                [x, end[0]], [y, end[1]], color=colour, alpha=strength, linewidth=0.9, zorder=2, solid_capstyle="round"
            )
