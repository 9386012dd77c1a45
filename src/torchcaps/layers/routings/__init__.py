"""The routings of the papers, as objects that layers are given; one file a family."""

from __future__ import annotations

from torchcaps.checks import check_choice
from torchcaps.layers.routing import Routing
from torchcaps.layers.routings.attention import AttentionRouting
from torchcaps.layers.routings.degree import DegreeRouting
from torchcaps.layers.routings.dynamic import DynamicRouting
from torchcaps.layers.routings.elementwise import ElementwiseRouting
from torchcaps.layers.routings.em import POSES, EMRouting
from torchcaps.layers.routings.fixed import RandomRouting, UniformRouting
from torchcaps.layers.routings.heinsen import HeinsenMatrixRouting, HeinsenVectorRouting
from torchcaps.layers.routings.inverted_attention import InvertedAttentionRouting
from torchcaps.layers.routings.self_attention import SelfAttentionRouting
from torchcaps.layers.routings.self_routing import SelfRouting
from torchcaps.layers.routings.variational_bayes import VariationalBayesRouting

#: The routings that go by a name. Enter a class of your own to use it by name in configuration files.
ROUTINGS: dict[str, type[Routing]] = {
    "attention": AttentionRouting,
    "degree": DegreeRouting,
    "dynamic": DynamicRouting,
    "elementwise": ElementwiseRouting,
    "em": EMRouting,
    "heinsen_matrix": HeinsenMatrixRouting,
    "heinsen_vector": HeinsenVectorRouting,
    "inverted_attention": InvertedAttentionRouting,
    "random": RandomRouting,
    "self_attention": SelfAttentionRouting,
    "self_routing": SelfRouting,
    "uniform": UniformRouting,
    "variational_bayes": VariationalBayesRouting,
}


def as_routing(routing: Routing | str) -> Routing:
    """Return a routing, or the one of this name with its default options.

    Raises:
        ValueError: An unknown name, or something else.
    """
    if isinstance(routing, Routing):
        return routing
    if not isinstance(routing, str):
        raise ValueError(f"routing must be a Routing or one of {', '.join(ROUTINGS)}, got {routing!r}")
    check_choice("routing", routing, ROUTINGS)
    return ROUTINGS[routing]()


__all__ = [
    "POSES",
    "ROUTINGS",
    "AttentionRouting",
    "DegreeRouting",
    "DynamicRouting",
    "EMRouting",
    "ElementwiseRouting",
    "HeinsenMatrixRouting",
    "HeinsenVectorRouting",
    "InvertedAttentionRouting",
    "RandomRouting",
    "SelfAttentionRouting",
    "SelfRouting",
    "UniformRouting",
    "VariationalBayesRouting",
    "as_routing",
]
