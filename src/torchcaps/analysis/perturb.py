"""What the dimensions of a class capsule stand for: change one, and decode."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchcaps.analysis.needs import decodable, decoder_of, observing
from torchcaps.checks import check_at_least, check_shapes

#: −0.25 … 0.25 in steps of 0.05, as in the paper.
OFFSETS = tuple(round(0.05 * k, 2) for k in range(-5, 6))


@observing
def perturb(model: nn.Module, images: Tensor, classes: Tensor, offsets: tuple[float, ...] = OFFSETS) -> Tensor:
    """Decode each image's class capsule with one dimension changed, for every dimension and offset.

    Args:
        model: with a decoder.
        images: ``[B, C, H, W]``, values 0 … 1.
        classes: whose capsule is taken, of each image, ``[B]`` int64.
        offsets: K numbers added to the dimension.

    Returns:
        ``[B, D, K, C, H, W]``; where the offset is 0 stands the plain reconstruction.

    Raises:
        ValueError: the model has no decoder, the shapes do not fit, or there are no images or offsets.

    Source: Sabour et al. 2017, section 5.1, figure 4.
    """
    decoder = decoder_of(model)
    check_at_least("the number of images", check_shapes(images=(images, "B C H W"), classes=(classes, "B"))["B"], 1)
    if not offsets:
        raise ValueError("offsets must hold at least one number, got none")
    _, pose = decodable(model, images)
    n_dims, n = pose.shape[2], len(offsets)
    change = torch.eye(n_dims, dtype=pose.dtype, device=pose.device)[:, None] * pose.new_tensor(offsets)[:, None]
    change = change.flatten(0, 1)  # [D·K, D]
    grids = [
        decoder(one + change[:, None], target.expand(len(change)))  # the mask drops the other capsules
        for one, target in zip(pose, classes, strict=True)
    ]
    return torch.stack(grids).unflatten(1, (n_dims, n))


def dimension_strengths(grids: Tensor) -> Tensor:
    """How much each dimension changes the picture: mean absolute difference of its two ends.

    Args:
        grids: as :func:`perturb` gives them, ``[B, D, K, C, H, W]``.

    Returns:
        ``[B, D]``.
    """
    check_shapes(grids=(grids, "B D K C H W"))
    return (grids[:, :, -1] - grids[:, :, 0]).abs().mean(dim=(2, 3, 4))
