"""What capsule networks are trained to make small."""

from __future__ import annotations

from torch import Tensor

from torchcaps.ops.checks import at_least_float32, check_shapes
from torchcaps.ops.mask import multi_hot


def margin_loss(
    lengths: Tensor, target: Tensor, *, positive: float = 0.9, negative: float = 0.1, absent_weight: float = 0.5
) -> Tensor:
    """Ask present classes for a length above ``positive`` and absent ones for one below ``negative``.

    L_k = T_k max(0, 0.9 − ‖v_k‖)² + 0.5 (1 − T_k) max(0, ‖v_k‖ − 0.1)², summed over k.

    Args:
        lengths: of the class capsules, as they are (no softmax), ``[B, J]``.
        target: class indices ``[B]``, or multi-hot ``[B, J]`` where several classes may be present.
        positive: margin m⁺.
        negative: margin m⁻.
        absent_weight: λ, which keeps early learning from shrinking all lengths.

    Returns:
        The mean over the batch, a scalar; 0 for an empty one.

    Raises:
        ValueError: shapes that do not fit, or a class out of range.

    Source: Sabour et al. 2017, section 3, equation 4.
    """
    sizes = check_shapes(lengths=(lengths, "B J"))
    lengths = at_least_float32(lengths)
    present = multi_hot(target, sizes["J"]).to(lengths.dtype)  # [B, J]
    if len(present) != sizes["B"]:
        raise ValueError(f"target must have B={sizes['B']} rows as lengths has, got shape {list(target.shape)}")
    too_short = (positive - lengths).clamp_min(0).square()
    too_long = (lengths - negative).clamp_min(0).square()
    return (present * too_short + absent_weight * (1 - present) * too_long).sum() / max(1, sizes["B"])


def reconstruction_loss(reconstruction: Tensor, image: Tensor) -> Tensor:
    """Sum of squared differences over the pixels, mean over the batch.

    The paper adds it to the margin loss with weight 0.0005. Its authors' code divides the margin
    loss by 20 and not this one: on the paper's scale that is a weight of 0.01.

    Args:
        reconstruction: made from the masked capsules (:func:`mask_capsules`), ``[B, C, H, W]``.
        image: what it should be, values 0 … 1, ``[B, C, H, W]``.

    Returns:
        A scalar; 0 for an empty batch.

    Raises:
        ValueError: the shapes differ.

    Source: Sabour et al. 2017, section 4.1.
    """
    sizes = check_shapes(reconstruction=(reconstruction, "B C H W"), image=(image, "B C H W"))
    difference = at_least_float32(reconstruction) - at_least_float32(image)
    return difference.square().sum() / max(1, sizes["B"])
