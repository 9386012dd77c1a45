"""From a feature map to the first capsules."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from torchcaps.checks import check_number, check_positive
from torchcaps.layers.init import Scaled, step_scale, truncated_normal_
from torchcaps.layers.sizes import Two, check_capsules, conv_size, require_map, windows
from torchcaps.ops import Routed, conv2d, safe_norm, squash


class PrimaryCaps(Scaled):
    """Vector capsules read off any feature map by one convolution, then squashed.

    A capsule is ``d_out`` channels of one type at one place: v = squash(scale · (x ∗ K) + bias).
    No non-linearity stands between the convolution and squash.

    Args:
        in_channels: channels C of the feature map.
        n_types: types of capsule T at every place.
        d_out: pose size D.
        kernel_size: of the convolution, or (rows, columns).
        stride: of the convolution, or (rows, columns).
        padding: zeros on every side, or (above and below, left and right).
        scale: factor before the bias and squash. The paper has none (1); its authors' code sends the
            primary capsules through one routing step of one input, which makes it 1/T. A smaller factor makes
            the initial weights larger, and Adam's steps smaller relative to them. By default a power of two such that
            a step of 1e-3 moves s by about a half, see :mod:`torchcaps.layers.init`: with factor 1 the first step
            may saturate all capsules.
        mean_square: of the features, from which the standard deviation of the initial K follows:
            1/(scale · √(mean_square · D · C · K²)), so that E‖s‖² = 1 as in :mod:`torchcaps.layers.init`. A
            He-initialised convolution makes 0.2 of MNIST, and about 1 of standardised images.
        weight_std: that standard deviation itself; the authors' code has 0.088. The factor is 1 then, unless it is
            given too.
        bias_init: initial value of the bias ``[T, D]``; the authors' code has 0.1.

    Attributes:
        weight: K, ``[K_h, K_w, C, T·D]``, from inputs to outputs as in the routed layers (and as the fast
            convolution reads it); torch's convolutions have ``[T·D, C, K_h, K_w]``.
        bias: ``[T, D]``.
        scale: the factor, a buffer: it is kept with the weights. Files without one are of older versions, which had 1.
        pose_scale: deviation that poses of length ½ have, which they are at first: hand it to an EM layer above.

    Input:
        x: ``[B, C, H, W]``, any height and width of at least the kernel.

    Output:
        :class:`~torchcaps.ops.Routed` with pose ``[B, T, H', W', D]`` and activation
        ``[B, T, H', W']``.

    Raises:
        ValueError: sizes below 1, a scale or mean square that is not positive, a bias that is no number; another number
            of channels, a map smaller than the kernel.

    Source: Sabour et al. 2017, section 4.
    """

    def __init__(
        self,
        in_channels: int,
        n_types: int,
        d_out: int,
        kernel_size: Two,
        *,
        stride: Two = 1,
        padding: Two = 0,
        scale: float | None = None,
        mean_square: float = 0.2,
        weight_std: float | None = None,
        bias_init: float = 0.0,
    ) -> None:
        super().__init__()
        check_capsules(in_channels, n_types, d_out)
        self.kernel_size, self.stride, self.padding = windows(kernel_size, stride, padding)
        if scale is not None:
            check_positive("scale", scale)
        check_positive("mean_square", mean_square)
        check_number("bias_init", bias_init)
        self.in_channels, self.n_types, self.d_out = in_channels, n_types, d_out
        n_summed = in_channels * math.prod(self.kernel_size)
        made = 1.0 if weight_std is not None else step_scale(n_summed * math.sqrt(mean_square / math.pi), d_out)
        self.make_scale(made if scale is None else scale, given=scale is not None)
        self.pose_scale = 0.5 / math.sqrt(d_out)
        default = 1 / (self._scale * math.sqrt(mean_square * d_out * n_summed))
        self._weight_std, self._bias_init = default if weight_std is None else weight_std, bias_init
        self.weight = nn.Parameter(torch.empty(*self.kernel_size, in_channels, n_types * d_out))
        self.bias = nn.Parameter(torch.empty(n_types, d_out))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the initial values anew, in place: to train again, or after :meth:`torch.nn.Module.to_empty`."""
        drawn = torch.empty_like(self.weight.permute(3, 2, 0, 1), memory_format=torch.channels_last)
        truncated_normal_(drawn, self._weight_std)
        self.weight.copy_(drawn.permute(2, 3, 1, 0))
        self.bias.fill_(self._bias_init)
        self.reset_scale()

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of the capsule map made from a feature map of this size."""
        return conv_size((height, width), self.kernel_size, self.stride, self.padding)

    def forward(self, x: Tensor) -> Routed:
        require_map(x, self.in_channels, self.kernel_size, self.padding)
        s = conv2d(x, self.weight.permute(3, 2, 0, 1), stride=self.stride, padding=self.padding)
        s = s.unflatten(1, (self.n_types, self.d_out)).permute(0, 1, 3, 4, 2)  # [B, T, H', W', D]
        pose = squash(self.scale * s + self.bias[:, None, None])
        return Routed(pose, safe_norm(pose))

    def extra_repr(self) -> str:
        return (
            f"[B, {self.in_channels}, H, W] -> [B, {self.n_types}, H', W', {self.d_out}], "
            f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}, scale={self.scale_repr()}"
        )
