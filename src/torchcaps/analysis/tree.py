"""The parse tree: which capsule of the image belongs to which class."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from torchcaps.analysis.needs import capsnet, observing
from torchcaps.analysis.places import capsule_places
from torchcaps.checks import check_at_least, check_shapes


class ParseTree(NamedTuple):
    """The N most active lower capsules of one image, and their parents.

    Attributes:
        n_iters: iterations after which this is.
        places: (row, column) of each in the image, ``[N, 2]``.
        types: type of each, ``[N]``.
        activation: of each, ``[N]``.
        coupling: of each with every class, ``[N, J]``.
        scores: activations of the class capsules (their lengths, in a CapsNet), ``[J]``.
    """

    n_iters: int
    places: Tensor
    types: Tensor
    activation: Tensor
    coupling: Tensor
    scores: Tensor

    def parents(self) -> Tensor:
        """Where each capsule's coupling is strongest, ``[N, J]`` bool; all of them where several tie
        (in the first iteration, when nothing is decided yet, all classes do)."""
        return self.coupling >= self.coupling.amax(dim=1, keepdim=True) * (1 - 1e-4)


@observing
def parse_tree(model: nn.Module, image: Tensor, n_iters: int | None = None, n_capsules: int = 80) -> ParseTree:
    """Find the parents of an image's most active capsules.

    Args:
        model: a CapsNet or MatrixCapsNet.
        image: ``[C, H, W]``, values 0 … 1.
        n_iters: iterations of the routing to the classes, by default the model's own.
        n_capsules: N at most.

    Returns:
        :class:`ParseTree`.

    Raises:
        ValueError: the model has no capsules, the image does not fit it, or a number is below 1.

    Source: Sabour et al. 2017, section 1 ("a parse tree is carved out of a fixed multilayer neural
    network").
    """
    model = capsnet(model)
    n_iters = model.classes.n_iters if n_iters is None else n_iters
    check_at_least("n_capsules", n_capsules, 1)
    check_shapes(image=(image, "C H W"))
    lower = model(image.unsqueeze(0)).capsules[-2]
    routed = model.classes(lower, n_iters=n_iters, return_coupling=True)
    activation = lower.activation.flatten()
    strongest = activation.topk(min(n_capsules, len(activation)))
    chosen = strongest.indices.cpu()
    n_places = model.map_shape[1] * model.map_shape[2]
    places, types, coupling = capsule_places(model)[chosen], chosen // n_places, routed.coupling[0, chosen]
    places, types = places.to(image.device), types.to(image.device)
    return ParseTree(n_iters, places, types, strongest.values, coupling, routed.activation[0])
