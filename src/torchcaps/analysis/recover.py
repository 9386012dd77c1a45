"""Whether poses follow the image: what was done to it, read off the capsules."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchcaps.analysis.needs import autoencoder, observing
from torchcaps.checks import check_shapes
from torchcaps.ops.affine import affine_parts, shift_matrix
from torchcaps.ops.precision import without_autocast

#: A capsule is active in an image if its presence is at least this.
ACTIVE = 0.5
#: What a transformation does, by name.
QUANTITIES = ("rotation", "scale x", "scale y", "shear", "shift x", "shift y")


class Recovered(NamedTuple):
    """What capsules say was done to B images.

    Attributes:
        each: by every capsule alone: A(Tx)·A(x)⁻¹, or the shift from point to point, as matrices ``[B, J, 3, 3]``;
            not finite where A has no inverse.
        presence: the smaller of its two presences, ``[B, J]``.
        together: by all capsules, each weighted by the product of its presences, ``[B, 3, 3]``.
    """

    each: Tensor
    presence: Tensor
    together: Tensor

    @property
    def active(self) -> Tensor:
        """Which capsules are active in both images, ``[B, J]`` bool."""
        return self.presence >= ACTIVE


@observing
def recover(model: nn.Module, images: Tensor, transformed: Tensor) -> Recovered:
    """Look at images before and after a transformation, and say from the poses what it was.

    Points differ by the shift. Matrices A before and A' after give A'·A⁻¹; those of several capsules side by side
    give [A'₁ … A'_J] [A₁ … A_J]⁺, the least squares over all of them.

    Args:
        model: a transforming auto-encoder.
        images: x, ``[B, C, H, W]``.
        transformed: T x, ``[B, C, H, W]``.

    Raises:
        ValueError: another model, or the shapes do not fit.

    Source: Hinton, Krizhevsky, Wang 2011, after figure 2.
    """
    model = autoencoder(model)
    check_shapes(images=(images, "B C H W"), transformed=(transformed, "B C H W"))
    before, after = model.recognise(images), model.recognise(transformed)
    presence = torch.minimum(before.activation, after.activation)
    weight = before.activation * after.activation
    if before.pose.dim() == 3:
        each = after.pose - before.pose
        together = (weight.unsqueeze(-1) * each).sum(dim=1) / weight.sum(dim=1, keepdim=True).clamp_min(1e-12)
        return Recovered(shift_matrix(each), presence, shift_matrix(together))
    with without_autocast(before.pose):  # bfloat16 would round them by a tenth of a pixel
        return Recovered(*_of_matrices(before.pose, after.pose, presence, weight, model.unit))


def _of_matrices(
    before: Tensor, after: Tensor, presence: Tensor, weight: Tensor, unit: float
) -> tuple[Tensor, Tensor, Tensor]:
    each = after @ torch.linalg.inv_ex(before).inverse
    # Columns count in the model's unit, or the translations would outweigh all else.
    scale = before.new_tensor((1 / unit, 1 / unit, 1.0))
    a, b = (pose * scale.unsqueeze(-1) for pose in (before, after))
    across = torch.einsum("bj,bjxk,bjyk->bxy", weight, b, a)
    within = torch.einsum("bj,bjxk,bjyk->bxy", weight, a, a)
    solved = torch.linalg.lstsq(within.cpu().double(), across.transpose(1, 2).cpu().double()).solution
    together = solved.transpose(1, 2).to(across) * scale / scale.unsqueeze(-1)
    return each, presence, together


def quantities(matrix: Tensor) -> Tensor:
    """What transformations ``[..., 3, 3]`` do: ``[..., 6]``, as :data:`QUANTITIES` names them; rotations in degrees."""
    parts = affine_parts(matrix)
    angle, shear = parts.angle.rad2deg().unsqueeze(-1), parts.shear.unsqueeze(-1)
    return torch.cat((angle, parts.scale, shear, parts.shift), dim=-1)


def unwound(true: Tensor, got: Tensor) -> Tensor:
    """Quantities with rotations by such full turns that they come nearest to the true ones: 179° and −179° differ by 2.

    Args:
        true: ``[..., 6]``, as of :func:`quantities`.
        got: likewise; with more images or capsules than ``true`` where that is 1.
    """
    parts = list(got.unbind(dim=-1))
    angle = QUANTITIES.index("rotation")
    off = torch.remainder(parts[angle] - true[..., angle] + 180, 360) - 180
    parts[angle] = true[..., angle] + off
    return torch.stack(parts, dim=-1)


class Line(NamedTuple):
    """How one quantity follows another.

    Attributes:
        slope: of the regression line.
        r2: 1 − Σ(got − true)² / Σ(true − mean)²: of the quantities as they are, not of a line laid through them.
    """

    slope: float
    r2: float


def line(true: Tensor, got: Tensor) -> Line:
    """Compare what was found with what is so.

    Args:
        true: ``[N]``.
        got: ``[N]``.

    Raises:
        ValueError: the shapes do not fit, or ``true`` does not vary.
    """
    check_shapes(true=(true, "N"), got=(got, "N"))
    x, y = true.double(), got.double()
    if not (x != x[:1]).any():
        raise ValueError(f"true must hold different numbers, got {len(true)} equal ones")
    spread = (x - x.mean()).square().sum().item()
    slope = ((x - x.mean()) * (y - y.mean())).sum().item() / spread
    return Line(slope, 1 - (y - x).square().sum().item() / spread)
