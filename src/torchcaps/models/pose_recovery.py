"""Measure whether the poses of an auto-encoder follow its image: recover a transformation from the capsules alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchcaps.checks import check_beside, check_floating, check_shapes
from torchcaps.layers.modes import inspects_model, unwrap
from torchcaps.models.transforming_autoencoder import Transforming
from torchcaps.ops.affine import affine_parts, shift_matrix
from torchcaps.ops.precision import without_autocast

#: A capsule is active in an image if its presence is at least this.
ACTIVE = 0.5
#: Names of the six parameters of an affine transformation.
AFFINE_PARAMETERS = ("rotation", "scale x", "scale y", "shear", "shift x", "shift y")


def as_autoencoder(model: nn.Module) -> Transforming:
    """Return the model as a transforming auto-encoder, whose poses can be transformed; unwrap it first.

    Raises:
        ValueError: the model is another one.
    """
    bare = unwrap(model)
    if isinstance(bare, Transforming):
        return bare
    raise ValueError(f"model must be a transforming auto-encoder, got a {type(model).__name__}")


class RecoveredTransformation(NamedTuple):
    """Transformations of B images, estimated from their capsules.

    Attributes:
        each: the estimate of every capsule alone, ``[B, J, 3, 3]``: A(Tx)·A(x)⁻¹, or the shift from point to point.
            It is not finite where A has no inverse.
        presence: the smaller of the capsule's two presences, ``[B, J]``.
        together: the estimate of all capsules, ``[B, 3, 3]``; each is weighted by the product of its presences.
    """

    each: Tensor
    presence: Tensor
    together: Tensor

    @property
    def active(self) -> Tensor:
        """Say which capsules are active in both images, ``[B, J]`` bool."""
        return self.presence >= ACTIVE


@inspects_model
def recover_transformation(model: nn.Module, images: Tensor, transformed: Tensor) -> RecoveredTransformation:
    """Estimate a transformation from the poses of the capsules before and after it.

    The poses of a translation are points, and differ by the shift. Matrices A before and A' after give A'·A⁻¹.
    Several capsules side by side give [A'₁ … A'_J] [A₁ … A_J]⁺, the least squares over all of them.

    Args:
        model: a transforming auto-encoder.
        images: x, ``[B, C, H, W]``.
        transformed: T x, ``[B, C, H, W]``.

    Raises:
        ValueError: the model is another one, or the shapes do not fit.

    Source: Hinton, Krizhevsky, Wang 2011, after figure 2.
    """
    model = as_autoencoder(model)
    check_shapes(images=(images, "B C H W"), transformed=(transformed, "B C H W"))
    before, after = model.encode(images), model.encode(transformed)
    presence = torch.minimum(before.activation, after.activation)
    weight = before.activation * after.activation
    if before.pose.dim() == 3:
        each = after.pose - before.pose
        together = (weight.unsqueeze(-1) * each).sum(dim=1) / weight.sum(dim=1, keepdim=True).clamp_min(1e-12)
        return RecoveredTransformation(shift_matrix(each), presence, shift_matrix(together))
    with without_autocast(before.pose):  # bfloat16 would round them by a tenth of a pixel
        return RecoveredTransformation(*_of_matrices(before.pose, after.pose, presence, weight, model.unit))


def _of_matrices(
    before: Tensor, after: Tensor, presence: Tensor, weight: Tensor, unit: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Solve for the transformation of matrix poses, capsule by capsule and by weighted least squares."""
    each = after @ torch.linalg.inv_ex(before).inverse
    # Columns count in the model's unit, or the translations would outweigh all else.
    scale = before.new_tensor((1 / unit, 1 / unit, 1.0))
    a, b = (pose * scale.unsqueeze(-1) for pose in (before, after))
    across = torch.einsum("bj,bjxk,bjyk->bxy", weight, b, a)
    within = torch.einsum("bj,bjxk,bjyk->bxy", weight, a, a)
    solved = torch.linalg.lstsq(within.cpu().double(), across.transpose(1, 2).cpu().double()).solution
    together = solved.transpose(1, 2).to(across) * scale / scale.unsqueeze(-1)
    return each, presence, together


def affine_parameters(matrix: Tensor) -> Tensor:
    """Compute the parameters of transformations ``[..., 3, 3]``, in the order of :data:`AFFINE_PARAMETERS`.

    Returns:
        ``[..., 6]``; rotations are in degrees.
    """
    parts = affine_parts(matrix)
    angle, shear = parts.angle.rad2deg().unsqueeze(-1), parts.shear.unsqueeze(-1)
    return torch.cat((angle, parts.scale, shear, parts.shift), dim=-1)


def unwrap_rotation(true: Tensor, predicted: Tensor) -> Tensor:
    """Unwrap predicted rotations to within ±180° of the true ones: 179° and −179° differ by 2°.

    Args:
        true: ``[..., 6]``, as :func:`affine_parameters` computes it.
        predicted: likewise; it may have more images or capsules where ``true`` has one.

    Returns:
        The predicted parameters, with their rotations unwrapped.

    Raises:
        ValueError: no floats, or other shapes.
    """
    for name, parameters in (("true", true), ("predicted", predicted)):
        check_floating(name, parameters)
        check_beside(name, parameters, "true", true)
        if parameters.dim() < 1 or parameters.shape[-1] != len(AFFINE_PARAMETERS):
            raise ValueError(f"{name} must be [..., {len(AFFINE_PARAMETERS)}], got shape {list(parameters.shape)}")
    if not _broadcasts(true.shape, predicted.shape):
        raise ValueError(
            f"true must be as predicted or of one image, got shapes {list(true.shape)} and {list(predicted.shape)}"
        )
    parts = list(predicted.unbind(dim=-1))
    angle = AFFINE_PARAMETERS.index("rotation")
    off = torch.remainder(parts[angle] - true[..., angle] + 180, 360) - 180
    parts[angle] = true[..., angle] + off
    return torch.stack(parts, dim=-1)


def _broadcasts(given: Sequence[int], to: Sequence[int]) -> bool:
    """Return whether sizes are those of another shape, or 1, from the last on."""
    return len(given) <= len(to) and all(a in (1, b) for a, b in zip(reversed(given), reversed(to), strict=False))


class Fit(NamedTuple):
    """How well predicted values follow the true ones.

    Attributes:
        slope: slope of the regression line.
        r2: 1 − Σ(predicted − true)² / Σ(true − mean)². It judges the predictions themselves, not the regression line.
    """

    slope: float
    r2: float


def regression_fit(true: Tensor, predicted: Tensor) -> Fit:
    """Compare predicted values with the true ones.

    Args:
        true: ``[N]``.
        predicted: ``[N]``.

    Raises:
        ValueError: the shapes do not fit, or ``true`` does not vary.
    """
    check_shapes(true=(true, "N"), predicted=(predicted, "N"))
    x, y = true.double(), predicted.double()
    if not (x != x[:1]).any():
        raise ValueError(f"true must hold different numbers, got {len(true)} equal ones")
    variation = (x - x.mean()).square().sum().item()
    slope = ((x - x.mean()) * (y - y.mean())).sum().item() / variation
    return Fit(slope, 1 - (y - x).square().sum().item() / variation)


class ConsistencyError(NamedTuple):
    """Squared errors against the reconstruction from (T x, identity), summed over pixels, ``[B]``.

    Attributes:
        error: error of the reconstruction from (x, T).
        baseline: error of the reconstruction from (x, identity): the same model with T ignored.
    """

    error: Tensor
    baseline: Tensor


@inspects_model
def transformation_consistency(
    model: nn.Module, images: Tensor, transformation: Tensor, transformed: Tensor
) -> ConsistencyError:
    """Compare the reconstruction from (x, T) with the reconstruction from (T x, identity).

    Args:
        model: a transforming auto-encoder.
        images: x, ``[B, C, H, W]``.
        transformation: T, ``[B, 3, 3]``.
        transformed: T x, ``[B, C, H, W]``.

    Raises:
        ValueError: the model is another one, or the shapes do not fit.
    """
    model = as_autoencoder(model)
    check_shapes(
        images=(images, "B C H W"), transformation=(transformation, "B 3 3"), transformed=(transformed, "B C H W")
    )
    target = model(transformed).images
    predicted, ignoring = model(images, transformation).images, model(images).images
    return ConsistencyError(*((each - target).square().sum(dim=(1, 2, 3)) for each in (predicted, ignoring)))
