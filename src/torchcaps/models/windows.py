"""Places side by side, each with weights of its own: windows of an image, and linear maps of what is in them."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchcaps.checks import check_at_least
from torchcaps.layers.shapes import as_image_shape, conv_size


class Windows:
    """P square windows of an image: what is seen in each, and what is drawn about its centre.

    Where they do not fill the image, they lie in its middle, and at the edges at most half a stride is not seen.

    Args:
        image_shape: (channels, height, width).
        field: side of the windows; None makes the whole image the only one.
        stride: pixels from one to the next, by default 3. Only with a field.
        patch: side of what is drawn, larger than the field by an even number; by default about twice
            as large. Only with a field.

    Raises:
        ValueError: a size that does not fit.
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        field: int | None = None,
        stride: int | None = None,
        patch: int | None = None,
    ) -> None:
        self.channels, height, width = as_image_shape(image_shape)
        self.size = (height, width)
        self.field, self.patch, self.stride, self.padding, places = self.size, self.size, 1, 0, (1, 1)
        if field is None and patch is not None:
            raise ValueError(f"patch must be None without a field, as the whole image is drawn; got {patch}")
        if field is None and stride is not None:
            raise ValueError(f"stride must be None without a field, as the whole image is seen; got {stride}")
        if field is not None:
            check_at_least("field", field, 1)
            stride = 3 if stride is None else stride
            check_at_least("stride", stride, 1)
            if field > min(self.size):
                raise ValueError(f"field must be at most {min(self.size)} in images of {height}×{width}, got {field}")
            places = conv_size(self.size, field, stride)
            patch = field + 2 * (field // 2) if patch is None else patch
            check_at_least("patch", patch, field)
            if (patch - field) % 2:
                raise ValueError(f"patch must be larger than field={field} by an even number, got {patch}")
            self.field, self.patch, self.stride, self.padding = (field,) * 2, (patch,) * 2, stride, (patch - field) // 2
        self.n = places[0] * places[1]
        self.n_seen = self.channels * self.field[0] * self.field[1]  #: numbers in a window
        self.n_output = self.channels * self.patch[0] * self.patch[1]  #: numbers in what is drawn for it
        spans = [side + self.stride * (n - 1) for n, side in zip(places, self.field, strict=True)]
        #: rows above and columns left of the first window
        self.outside = [(size - span) // 2 for size, span in zip(self.size, spans, strict=True)]
        self.canvas = (spans[0] + 2 * self.padding, spans[1] + 2 * self.padding)  #: of all that is drawn
        self.places = places  #: rows and columns of windows
        sides = zip(self.outside, self.field, self.size, strict=True)
        #: (y, x) of the first window's centre
        self.first = [float(first + (side - size) / 2) for first, side, size in sides]
        rows, columns = (
            [first + self.stride * k for k in range(n)] for first, n in zip(self.first, places, strict=True)
        )
        #: (x, y) of each window's centre in pixels from the image's: P of them
        self.centres = [(x, y) for y in rows for x in columns]

    def centres_on(self, like: Tensor) -> Tensor:
        """Return the centres ``[P, 2]``, made on the device and in the dtype of ``like``."""
        sides = zip(self.first, self.places, strict=True)
        y, x = (first + self.stride * torch.arange(n, dtype=like.dtype, device=like.device) for first, n in sides)
        return torch.stack((x.expand(len(y), -1), y[:, None].expand(-1, len(x))), dim=2).flatten(0, 1)

    def take(self, images: Tensor) -> Tensor:
        """Cut out what is in each window: ``[B, C, H, W]`` to ``[B, P, n_seen]``."""
        if self.field == self.size:
            return images.flatten(1).unsqueeze(1)  # unfold would copy
        first_row, first_column = self.outside
        return F.unfold(images[..., first_row:, first_column:], self.field, stride=self.stride).transpose(1, 2)

    def put(self, patches: Tensor) -> Tensor:
        """Add up what was drawn for each window: ``[B, P, n_output]`` to ``[B, C, H, W]``."""
        if self.canvas == self.size == self.patch:
            return patches.reshape(patches.shape[0], self.channels, *self.size)
        drawn = F.fold(patches.transpose(1, 2), self.canvas, self.patch, stride=self.stride)
        above, left = (first - self.padding for first in self.outside)  # negative: what lies outside is cut off
        below, right = (
            size - before - canvas for size, before, canvas in zip(self.size, (above, left), self.canvas, strict=True)
        )
        return F.pad(drawn, (left, right, above, below))


class Local(nn.Module):
    """P linear maps at once, each of its own input: ``[B, P, I]`` to ``[B, P, O]``.

    Args:
        n: P.
        n_in: I.
        n_out: O.
        bias: add a learned number to each output.
        spread: how many times larger than in torch.nn.Linear all numbers may be at first.
    """

    def __init__(self, n: int, n_in: int, n_out: int, *, bias: bool = True, spread: float = 1.0) -> None:
        super().__init__()
        self._limit = spread / math.sqrt(n_in)
        self.weight = nn.Parameter(torch.empty(n, n_in, n_out))
        self.bias = nn.Parameter(torch.empty(n, 1, n_out)) if bias else None
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the initial values anew, in place: to train again, or after :meth:`torch.nn.Module.to_empty`."""
        for numbers in (self.weight, self.bias):  # by name: parameters may be what a parametrisation makes them of
            if numbers is not None:
                numbers.uniform_(-self._limit, self._limit)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[B, n, n_in]`` to ``[B, n, n_out]``, each of the n by a matrix of its own."""
        x = x.transpose(0, 1)
        y = torch.bmm(x, self.weight) if self.bias is None else torch.baddbmm(self.bias, x, self.weight)
        return y.transpose(0, 1)
