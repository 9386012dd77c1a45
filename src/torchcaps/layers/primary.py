"""From a feature map to the first capsules, of vectors and of matrices."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from torchcaps.checks import check_choice, check_flag, check_number, check_positive
from torchcaps.layers.init import Scaled, step_scale, truncated_normal_
from torchcaps.layers.routings import POSES
from torchcaps.layers.shapes import Two, check_capsules, check_feature_map, conv_size, windows
from torchcaps.ops import Capsules, conv2d
from torchcaps.ops.squash import squash_with_length


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
        :class:`~torchcaps.ops.Capsules` with pose ``[B, T, H', W', D]`` and activation
        ``[B, T, H', W']``.

    Raises:
        ValueError: sizes below 1, a scale or mean square that is not positive, a bias that is no number; another number
            of channels, a map smaller than the kernel.

    Example:
        >>> import torch
        >>> PrimaryCaps(256, 32, 8, kernel_size=9, stride=2)(torch.rand(2, 256, 20, 20)).pose.shape
        torch.Size([2, 32, 6, 6, 8])

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

    def forward(self, x: Tensor) -> Capsules:
        """Make capsules ``[B, T, H', W', D]`` of a feature map ``[B, C, H, W]``."""
        check_feature_map(x, self.in_channels, self.kernel_size, self.padding)
        s = conv2d(x, self.weight.permute(3, 2, 0, 1), stride=self.stride, padding=self.padding)
        s = s.unflatten(1, (self.n_types, self.d_out)).permute(0, 1, 3, 4, 2)  # [B, T, H', W', D]
        return Capsules(*squash_with_length(self.scale * s + self.bias[:, None, None]))

    def extra_repr(self) -> str:
        """Describe the layer for ``print``: shapes, then options."""
        return (
            f"[B, {self.in_channels}, H, W] -> [B, {self.n_types}, H', W', {self.d_out}], "
            f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}, scale={self.scale_repr()}"
        )


class MatrixPrimaryCaps(nn.Module):
    """Matrix capsules read off any feature map by one convolution: pose linear, activation a sigmoid.

    Args:
        in_channels: channels C of the feature map.
        n_types: types of capsule T at every place.
        kernel_size: of the convolution, or (rows, columns); 1 in the paper.
        stride: of the convolution, or (rows, columns).
        padding: zeros on every side, or (above and below, left and right).
        pose: "matrix" for n×n, or "vector".
        d_out: numbers in a pose; n² for matrices, 16 in the paper.
        pose_std: standard deviation of the initial weights of the poses. By default 1/√(C·K²), so that
            features of mean square 1 make poses of deviation 1; 0.44 in the released code.
        activation_std: of the activations'; by default twice as much; 2.64 in the released code.
        activation_bias: added to the activations' logits, not learned; −1 in the released code.
        normalize: batch normalization of poses and logits (not in the paper), which makes them spread as
            ``pose_std`` and ``activation_std`` would have it of features of mean square 1, whatever these are.

    Attributes:
        pose_scale: deviation that the poses have at first, for features of mean square 1: hand it to the layer above.

    Input:
        x: ``[B, C, H, W]``, any height and width of at least the kernel.

    Output:
        :class:`~torchcaps.ops.Capsules` with pose ``[B, T, H', W', 4, 4]`` (vectors ``[B, T, H', W', d_out]``)
        and activation ``[B, T, H', W']``, 0 … 1.

    Raises:
        ValueError: sizes below 1, matrices of other than 16 numbers, initial values that are none; another number of
            channels, a map smaller than the kernel.

    Example:
        >>> import torch
        >>> MatrixPrimaryCaps(64, 8)(torch.rand(2, 64, 14, 14)).pose.shape
        torch.Size([2, 8, 14, 14, 4, 4])

    Source: Hinton, Sabour, Frosst 2018, section 4.
    """

    def __init__(
        self,
        in_channels: int,
        n_types: int,
        *,
        kernel_size: Two = 1,
        stride: Two = 1,
        padding: Two = 0,
        pose: str = "matrix",
        d_out: int = 16,
        pose_std: float | None = None,
        activation_std: float | None = None,
        activation_bias: float = 0.0,
        normalize: bool = False,
    ) -> None:
        super().__init__()
        check_capsules(in_channels, n_types, d_out)
        self.kernel_size, self.stride, self.padding = windows(kernel_size, stride, padding)
        check_choice("pose", pose, POSES)
        if pose == "matrix" and math.isqrt(d_out) ** 2 != d_out:
            raise ValueError(f"d_out must be a square number for matrices, got {d_out}; or take pose='vector'")
        check_number("activation_bias", activation_bias)
        check_flag("normalize", normalize)
        for name, value in {"pose_std": pose_std, "activation_std": activation_std}.items():
            if value is not None:
                check_positive(name, value)
        self.in_channels, self.n_types, self.d_out, self.pose = in_channels, n_types, d_out, pose
        # Not learned, but a part of the function all the same: kept with the weights.
        self.register_buffer("activation_bias", torch.empty(()))
        self.weight = nn.Parameter(torch.empty(n_types * (d_out + 1), in_channels, *self.kernel_size))
        default = 1 / math.sqrt(in_channels * math.prod(self.kernel_size))
        self._pose_std = default if pose_std is None else pose_std
        self._activation_std = 2 * default if activation_std is None else activation_std
        self._activation_bias = float(activation_bias)
        self._spreads = self._pose_std / default, self._activation_std / default
        self.pose_scale = self._spreads[0]
        self.norm = nn.BatchNorm2d(n_types * (d_out + 1)) if normalize else nn.Identity()
        self.reset_parameters()

    @property
    def _parts(self) -> tuple[int, int]:
        """Return how many channels are numbers of poses, and how many logits."""
        return self.n_types * self.d_out, self.n_types

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the initial values anew, in place: to train again, or after :meth:`torch.nn.Module.to_empty`."""
        poses, activations = self.weight.split(self._parts)
        truncated_normal_(poses, self._pose_std, "pose_std")
        truncated_normal_(activations, self._activation_std, "activation_std")
        self.weight.copy_(torch.cat((poses, activations)))  # of a sharded weight the parts are copies
        assert isinstance(self.activation_bias, Tensor)
        self.activation_bias.fill_(self._activation_bias)
        if isinstance(self.norm, nn.BatchNorm2d):
            self.norm.reset_parameters()
            self.set_spreads(*self._spreads)

    @torch.no_grad()
    def set_spreads(self, pose: float, logit: float) -> None:
        """Set in place how far normalized poses and logits spread."""
        assert isinstance(self.norm, nn.BatchNorm2d)
        poses, logits = self.norm.weight.split(self._parts)
        self.norm.weight.copy_(torch.cat((torch.full_like(poses, pose), torch.full_like(logits, logit))))

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of the capsule map made from a feature map of this size."""
        return conv_size((height, width), self.kernel_size, self.stride, self.padding)

    def forward(self, x: Tensor) -> Capsules:
        """Make capsules ``[B, T, H', W', 4, 4]`` of a feature map ``[B, C, H, W]``."""
        check_feature_map(x, self.in_channels, self.kernel_size, self.padding)
        made = self.norm(conv2d(x, self.weight, stride=self.stride, padding=self.padding))
        pose, logit = made.split(self._parts, dim=1)
        pose = pose.unflatten(1, (self.n_types, self.d_out)).permute(0, 1, 3, 4, 2)  # [B, T, H', W', D]
        if self.pose == "matrix":
            pose = pose.unflatten(-1, (math.isqrt(self.d_out),) * 2)
        assert isinstance(self.activation_bias, Tensor)
        return Capsules(pose, (logit + self.activation_bias).sigmoid())

    def extra_repr(self) -> str:
        """Describe the layer for ``print``: shapes, then options."""
        return (
            f"[B, {self.in_channels}, H, W] -> [B, {self.n_types}, H', W', {self.d_out}], pose={self.pose}, "
            f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"
        )
