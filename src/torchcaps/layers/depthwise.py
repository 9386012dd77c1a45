"""From a feature map to capsules by one filter for each channel."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchcaps.checks import check_at_least
from torchcaps.layers.shapes import Two, check_feature_map, check_like, conv_size, windows
from torchcaps.ops import Capsules
from torchcaps.ops.squash import exponential_squash_with_length


class DepthwisePrimaryCaps(nn.Module):
    """Vector capsules read off a feature map channel by channel, then squashed.

    Each channel has one filter, and ``d_out`` neighbouring channels are a capsule: C channels make C / d_out types.
    With a kernel of the whole map a type stands at one place, and each of its numbers is a weighted sum over one
    channel. The squash is :func:`~torchcaps.ops.exponential_squash`.

    Args:
        in_channels: channels C of the feature map, a multiple of ``d_out``.
        d_out: pose size D.
        kernel_size: of the convolution, or (rows, columns).
        stride: of the convolution, or (rows, columns).

    Attributes:
        pose_scale: deviation that poses of length ½ have: hand it to an EM layer above.

    Input:
        x: ``[B, C, H, W]``, any height and width of at least the kernel.

    Output:
        :class:`~torchcaps.ops.Capsules` with pose ``[B, C/D, H', W', D]`` and activation ``[B, C/D, H', W']``.

    Raises:
        ValueError: sizes below 1, channels that are no multiple of ``d_out``; another number of channels, a map smaller
            than the kernel.

    Example:
        >>> import torch
        >>> DepthwisePrimaryCaps(128, 8, kernel_size=9)(torch.rand(2, 128, 9, 9)).pose.shape
        torch.Size([2, 16, 1, 1, 8])

    Source: Mazzia, Salvetti, Chiaberge 2021, arXiv 2101.12491.
    """

    def __init__(self, in_channels: int, d_out: int, kernel_size: Two, *, stride: Two = 1) -> None:
        super().__init__()
        for name, value in {"in_channels": in_channels, "d_out": d_out}.items():
            check_at_least(name, value, 1)
        if in_channels % d_out:
            raise ValueError(f"in_channels must be a multiple of d_out={d_out}, got {in_channels}")
        self.kernel_size, self.stride, self.padding = windows(kernel_size, stride, 0)
        self.in_channels, self.n_types, self.d_out = in_channels, in_channels // d_out, d_out
        self.pose_scale = 0.5 / d_out**0.5
        self.conv = nn.Conv2d(in_channels, in_channels, self.kernel_size, self.stride, groups=in_channels)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the initial values anew, in place: those of the authors' code, Glorot's over all filters."""
        rows, columns = self.kernel_size
        limit = (6 / (rows * columns * (1 + self.in_channels))) ** 0.5
        nn.init.uniform_(self.conv.weight, -limit, limit)
        assert self.conv.bias is not None
        nn.init.zeros_(self.conv.bias)

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of the capsule map made from a feature map of this size."""
        return conv_size((height, width), self.kernel_size, self.stride, self.padding)

    def forward(self, x: Tensor) -> Capsules:
        """Make capsules ``[B, C/D, H', W', D]`` of a feature map ``[B, C, H, W]``."""
        check_feature_map(x, self.in_channels, self.kernel_size, self.padding)
        check_like("x", x, self.conv.weight)
        s = self.conv(x).unflatten(1, (self.n_types, self.d_out)).permute(0, 1, 3, 4, 2)  # [B, C/D, H', W', D]
        return Capsules(*exponential_squash_with_length(s))

    def extra_repr(self) -> str:
        """Describe the layer for ``print``: shapes, then options."""
        return (
            f"[B, {self.in_channels}, H, W] -> [B, {self.n_types}, H', W', {self.d_out}], "
            f"kernel_size={self.kernel_size}, stride={self.stride}"
        )
