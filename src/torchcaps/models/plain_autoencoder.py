"""An ordinary auto-encoder, to compare capsules with: a code without poses."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchcaps.checks import check_at_least, check_shapes
from torchcaps.layers.init import reset_layers
from torchcaps.layers.shapes import as_image_shape, check_like, require_images
from torchcaps.ops import Capsules
from torchcaps.ops.backends.tracing import has_values
from torchcaps.types import Reconstruction


class PlainAutoencoder(nn.Module):
    """Fully connected layers down to a code, and up again.

    Its code stands where capsules have their poses: one vector, always there.

    Args:
        image_shape: (channels, height, width).
        code: size of the code.
        hidden: widths of the ReLU layers above it; those below it mirror them.

    Raises:
        ValueError: a number below 1, or no widths.
    """

    def __init__(
        self, image_shape: tuple[int, int, int], *, code: int = 32, hidden: Sequence[int] = (512, 256)
    ) -> None:
        super().__init__()
        if not isinstance(hidden, Sequence):
            raise ValueError(f"hidden must be the widths of layers, got {hidden!r}")
        for name, value in (("code", code), *(("hidden", width) for width in hidden)):
            check_at_least(name, value, 1)
        self.image_shape = channels, height, width = as_image_shape(image_shape)
        sizes = (channels * height * width, *hidden, code)
        self.down = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(sizes))
        self.up = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(sizes[::-1]))

    def reset_parameters(self) -> None:
        """Draw the initial values anew, in place: to train again, or after :meth:`torch.nn.Module.to_empty`."""
        reset_layers(self)

    def forward(self, x: Tensor, transformation: Tensor | None = None) -> Reconstruction:
        """Reconstruct images ``[B, C, H, W]``. It has no way to follow a transformation: it must be None or identity.

        Raises:
            ValueError: images of another shape than the model was made for; a transformation (looked for on the CPU
                alone, where that stops no device; and not in code that is compiled or within ``torch.func``, which
                cannot look).
        """
        if transformation is not None:
            check_shapes(x=(x, "B C H W"), transformation=(transformation, "B 3 3"))
        if transformation is not None and not _is_identity(transformation):
            raise ValueError("transformation must be None or identity for an auto-encoder without poses, got another")
        found = self.encode(x)
        y = _through(self.up, found.pose.squeeze(1)).unflatten(1, self.image_shape)
        return Reconstruction(y, found)

    def encode(self, x: Tensor) -> Capsules:
        """Return the code ``[B, 1, D]`` of images ``[B, C, H, W]``, with activation 1."""
        require_images(x, self.image_shape)
        check_like("x", x, self.down[0].weight)
        code = _through(self.down, x.flatten(1))
        return Capsules(code.unsqueeze(1), torch.ones_like(code[:, :1]))


def _is_identity(transformation: Tensor) -> bool:
    """Return whether nothing is to be done, of matrices ``[B, 3, 3]``; yes if none can look."""
    if not has_values(transformation):
        return True
    nothing = torch.eye(3, dtype=transformation.dtype, device=transformation.device)
    return torch.equal(transformation, nothing.expand_as(transformation))


def _through(layers: nn.ModuleList, x: Tensor) -> Tensor:
    *hidden, last = layers
    for layer in hidden:
        x = F.relu(layer(x))
    return last(x)


def plain_autoencoder(
    image_shape: tuple[int, int, int] = (1, 28, 28), code: int = 32, hidden: Sequence[int] = (512, 256)
) -> PlainAutoencoder:
    """Build an ordinary auto-encoder: 512, 256, code of 32, and back."""
    return PlainAutoencoder(image_shape, code=code, hidden=hidden)
