"""The constellation auto-encoder: points of the plane, explained by objects (Kosiorek et al. 2019)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from torchcaps.checks import check_at_least, check_flag, check_floating, check_mask, check_number, check_shapes
from torchcaps.layers.shapes import check_like
from torchcaps.models.object_capsules import ObjectCapsules
from torchcaps.models.set_transformer import SetTransformer
from torchcaps.models.sparsity import batch_mean, explained_parts, object_losses
from torchcaps.ops import mixture_likelihood
from torchcaps.types import Capsules, StackedOutput


class ConstellationAutoencoder(nn.Module):
    """Explain points by objects, each of which predicts where its points are.

    A set transformer reads the points, in whatever order. Each of K object capsules makes N votes: its pose times the
    places of its points. Every point is explained by the mixture of all K · N votes. No labels are used, and yet points
    of one object are to be explained by one capsule.

    Args:
        n_objects: K.
        n_points: N, votes of each object.
        width: of the set transformer's members.
        n_layers: of self-attention.
        n_heads: of each.
        d_features: size of the vector of each object.
        d_code: numbers that an object is squeezed into.
        hidden: width of the layers of each object.
        rigid: objects are turned, scaled and shifted alone. An affine transformation would fit any three points, and
            what an image adds to object-part relations would fit all.
        noise: while training, uniform noise of ± this on the logits of presences.
        dynamic_weight: of the loss that keeps objects rigid: half the sum of squares of what an image adds to them, if
            they are not rigid.
        sparsity_weight: of the entropy, in nats, of the objects that explain an image, less that of the batch.

    Raises:
        ValueError: sizes below 1, a width that is no multiple of the heads, weights or a noise below 0.

    Example:
        >>> import torch
        >>> model = ConstellationAutoencoder(n_objects=3, n_points=4)
        >>> output = model(torch.rand(2, 11, 2))
        >>> output.objects.coupling.shape  # the share of each object in each point
        torch.Size([2, 11, 3])
        >>> sorted(output.losses)
        ['part_likelihood']

    Source: Kosiorek et al. 2019, section 2.1; sizes are ours.
    """

    def __init__(
        self,
        n_objects: int = 3,
        n_points: int = 4,
        *,
        width: int = 64,
        n_layers: int = 3,
        n_heads: int = 4,
        d_features: int = 64,
        d_code: int = 32,
        hidden: int = 64,
        rigid: bool = True,
        noise: float = 0.0,
        dynamic_weight: float = 10.0,
        sparsity_weight: float = 0.0,
    ) -> None:
        super().__init__()
        sizes = {"n_objects": n_objects, "n_points": n_points, "width": width, "n_layers": n_layers, "n_heads": n_heads}
        for name, value in {**sizes, "d_features": d_features, "d_code": d_code, "hidden": hidden}.items():
            check_at_least(name, value, 1)
        for name, number in {
            "noise": noise,
            "dynamic_weight": dynamic_weight,
            "sparsity_weight": sparsity_weight,
        }.items():
            check_number(name, number, 0)
        for name, value in {"width": width, "d_features": d_features}.items():
            if value % n_heads:
                raise ValueError(f"{name} must be a multiple of n_heads={n_heads}, got {value}")
        check_flag("rigid", rigid)
        self.weights: dict[str, float] = {
            "dynamic": 0 if rigid else dynamic_weight,
            "posterior_within": sparsity_weight,
            "posterior_between": sparsity_weight,
        }
        self.encoder = SetTransformer(2, n_objects, d_features, width=width, n_layers=n_layers, n_heads=n_heads)
        self.objects = ObjectCapsules(
            n_objects, n_points, d_features, d_code=d_code, hidden=hidden, noise=noise, rigid=rigid
        )

    def reset_parameters(self) -> None:
        """Draw the initial values anew, in place."""
        self.encoder.reset_parameters()
        self.objects.reset_parameters()

    def forward(self, x: Tensor, mask: Tensor | None = None) -> StackedOutput:
        """Explain points.

        Args:
            x: points, −1 … 1, ``[B, M, 2]``.
            mask: true for points that are there, ``[B, M]``; all are by default.

        Raises:
            ValueError: shapes that do not fit, or points that are no floats.
        """
        check_shapes(x=(x, "B M 2"))
        check_floating("x", x)
        check_like("x", x, self.encoder.seeds)
        if mask is None:
            mask = torch.ones_like(x[..., 0], dtype=torch.bool)
        check_mask(mask, x.shape[:2], ("x", x))
        points, presence = torch.where(mask.unsqueeze(2), x, 0.0), mask.to(x.dtype)  # what is absent may be NaN, too
        made = self.objects(self.encoder(points, presence))
        votes = made.votes[..., :2, 2].flatten(1, 2).unsqueeze(1)  # [B, 1, K·N, 2]
        weight, scale = (each.flatten(1, 2).unsqueeze(1) for each in (made.vote_presence, made.scale))
        found = mixture_likelihood(points, votes, weight, scale)
        coupling = found.responsibility.unflatten(2, (-1, self.objects.n_parts)).sum(dim=3)
        losses = {"part_likelihood": -batch_mean(presence * found.log_likelihood)}
        explained = explained_parts(presence, coupling)
        losses |= object_losses(made, explained, weights=self.weights, n_present=1, n_classes=1)
        return StackedOutput(
            explained, losses, Capsules(points, presence), Capsules(made.pose, made.presence, coupling)
        )


def constellation_autoencoder(**options: Any) -> ConstellationAutoencoder:
    """Build the auto-encoder of the paper's points: two squares and a triangle."""
    return ConstellationAutoencoder(**{"n_objects": 3, "n_points": 4, **options})
