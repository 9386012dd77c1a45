"""Parts of an image moved out of their places: the Picasso test.

Every part is still there; only where it stands to the others is wrong.
"""

from __future__ import annotations

import torch
from torch import Tensor

from study.data.transform import shift_right
from torchcaps.checks import check_at_least, check_shapes


def shift_halves(images: Tensor, pixels: int) -> Tensor:
    """Move the upper half right and the lower half left, so that they stand ``pixels`` apart.

    Args:
        images: floats ``[B, C, H, W]``, H at least 2.
        pixels: at least 0; an odd one moves the upper half by one more.

    Returns:
        ``[B, C, H, W]``.

    Raises:
        ValueError: a negative or broken ``pixels``; images that are no floats, or of one row.
    """
    check_at_least("pixels", pixels, 0)
    check_at_least("the images' height", check_shapes(images=(images, "B C H W"))["H"], 2)
    middle = images.shape[2] // 2
    upper, lower = images[:, :, :middle], images[:, :, middle:]
    return torch.cat((shift_right(upper, -(-pixels // 2)), shift_right(lower, -(pixels // 2))), dim=2)


def shuffle_tiles(images: Tensor, n: int, seed: int = 0) -> Tensor:
    """Cut each image into n × n tiles and put them together in another order, no tile in its own place.

    Args:
        images: ``[B, C, H, W]``; height and width divisible by n.
        n: at least 2.
        seed: of the orders, one for each image.

    Returns:
        ``[B, C, H, W]``.

    Raises:
        ValueError: sizes that n does not divide.
    """
    sizes = check_shapes(images=(images, "B C H W"))
    check_at_least("n", n, 2)
    if sizes["H"] % n or sizes["W"] % n:
        raise ValueError(f"images must have height and width divisible by n={n}, got {sizes['H']}×{sizes['W']}")
    # One cycle through all places in random order: place order[k] takes the tile of order[k + 1].
    draw = torch.rand(len(images), n * n, generator=torch.Generator().manual_seed(seed), device="cpu")
    order = draw.argsort(dim=1)  # [B, n²]
    takes = torch.empty_like(order).scatter_(1, order, order.roll(-1, dims=1)).to(images.device)
    tiles = images.unflatten(3, (n, -1)).unflatten(2, (n, -1))  # [B, C, n, h, n, w]
    tiles = tiles.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)  # [B, n², C, h, w]
    rows = torch.arange(len(images), device=images.device)[:, None]
    moved = tiles[rows, takes].unflatten(1, (n, n))  # [B, n, n, C, h, w]
    return moved.permute(0, 3, 1, 4, 2, 5).reshape(images.shape)
