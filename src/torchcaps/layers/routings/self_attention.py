"""Self-attention routing (Mazzia, Salvetti, Chiaberge 2021), as an object that layers are given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

from torchcaps.checks import check_choice
from torchcaps.layers.routing import Init, Part, Sizes
from torchcaps.layers.routings.options import known_sizes
from torchcaps.layers.routings.vote_sum import VoteSum
from torchcaps.ops import Capsules, self_attention_routing
from torchcaps.ops.self_attention.routing import SCALES


@dataclass(frozen=True)
class SelfAttentionRouting(VoteSum):
    """Route by self-attention among the votes, without iterations, see :func:`torchcaps.ops.self_attention_routing`.

    The activation is the pose's length. Its squash is :func:`torchcaps.ops.exponential_squash`.

    Attributes:
        scale: What the logits are divided by the root of: "upper" for d_out, as in the authors' code, or "lower" for
            d_in, as in the paper.
        weight_std: Standard deviation of the initial transformation matrices; None for that of dynamic routing.
        vote_scale: Fixed factor on the poses below; None for that of dynamic routing.

    Raises:
        ValueError: A value out of range.

    Example:
        >>> from torchcaps import DenseCaps
        >>> layer = DenseCaps(16, 10, 8, 16, routing=SelfAttentionRouting())
        >>> sum(p.numel() for p in layer.parameters())  # 16·10·8·16 weights and 16·10 prior biases
        20640

    Source: Mazzia, Salvetti, Chiaberge 2021, Efficient-CapsNet, Scientific Reports 11, arXiv 2101.12491.
    """

    name: ClassVar[str] = "self_attention"

    _: KW_ONLY
    scale: str = "upper"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("scale", self.scale, SCALES)

    def parts(self, sizes: Sizes) -> Mapping[str, Part]:
        """Name the weight and the prior bias ``[I, J]``, which starts at 0."""
        n_in, n_out, _, _ = known_sizes(sizes)
        weight, _ = self.initial(sizes)
        return {"weight": weight, "prior_bias": Init.constant((n_in, n_out), 0.0)._replace(per_child=True)}

    def route(self, capsules: Capsules, parts: Mapping[str, Any], *, return_coupling: bool = False) -> Capsules:
        """Route by :func:`torchcaps.ops.self_attention_routing`."""
        return self_attention_routing(capsules.pose, **parts, scale=self.scale, return_coupling=return_coupling)
