"""From class capsules back to the image."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from torchcaps.checks import (
    check_at_least,
    check_classes,
    check_flag,
    check_int64,
    check_list,
    check_positive,
    check_shapes,
)
from torchcaps.layers.init import Scaled, truncated_normal_
from torchcaps.layers.shapes import as_image_shape, check_like
from torchcaps.ops import Capsules, mask_capsules
from torchcaps.ops.backends.tracing import has_values
from torchcaps.ops.precision import at_least_float32
from torchcaps.types import as_pose


class Decoder(Scaled):
    """Fully connected decoder that sees only the target's capsule.

    Args:
        n_classes: class capsules J.
        d_in: their pose size D.
        image_shape: (channels, height, width) of the image to make.
        hidden: widths of the ReLU layers; 512 and 1024 in the paper.
        pose_scale: divide the poses by this number. Above EM layers, whose poses are small, hand over the
            ``pose_scale`` of the layer of class capsules: undivided, they hardly change what is decoded at first.
            The paper's capsules, whose lengths are 0 … 1, are decoded as they are.
        shared: let all classes share the first layer too. It sees the D numbers of the target's capsule and not which
            class that is, so that a number means the same for all classes (DeepCaps calls that class-independent). By
            default it sees J·D numbers, of which those of other classes are 0.

    Attributes:
        scale: 1 / ``pose_scale``, a buffer that is saved with the weights; only where ``pose_scale`` is not 1. Weights
            that lack it were trained without it, and leave it at 1.

    Output of every call: values 0 … 1 (a sigmoid), so reconstruct the image on that scale.

    Example:
        >>> import torch
        >>> decoder = Decoder(10, 16, (1, 28, 28))
        >>> decoder(torch.rand(2, 10, 16), torch.tensor([3, 7])).shape  # from the capsules of these classes
        torch.Size([2, 1, 28, 28])

    Source: Sabour et al. 2017, section 4.1, figure 2; Rajasegaran et al. 2019, arXiv 1904.09546 (``shared``).
    """

    def __init__(
        self,
        n_classes: int,
        d_in: int,
        image_shape: tuple[int, int, int],
        hidden: Sequence[int] = (512, 1024),
        *,
        pose_scale: float = 1.0,
        shared: bool = False,
    ) -> None:
        super().__init__()
        if not isinstance(hidden, Sequence):
            raise ValueError(f"hidden must be the widths of layers, got {hidden!r}")
        check_at_least("n_classes", n_classes, 1)
        check_at_least("d_in", d_in, 1)
        check_list("hidden", hidden)
        check_positive("pose_scale", pose_scale)
        check_flag("shared", shared)
        if pose_scale != 1:
            self.make_scale(1 / pose_scale, given=False)
        self.n_classes, self.d_in, self.image_shape = n_classes, d_in, as_image_shape(image_shape)
        self.shared = bool(shared)
        sizes = [d_in if shared else n_classes * d_in, *hidden, math.prod(self.image_shape)]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(sizes))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the initial values anew, in place: to train again, or after :meth:`torch.nn.Module.to_empty`."""
        for layer in self.layers:
            assert isinstance(layer, nn.Linear)
            truncated_normal_(layer.weight, (2 / layer.in_features) ** 0.5)
            nn.init.zeros_(layer.bias)
        if "scale" in self._buffers:
            self.reset_scale()

    @property
    def pose_scale(self) -> Tensor | float:
        """Return the number that poses are divided by."""
        return 1 / self.scale if "scale" in self._buffers else 1.0

    def forward(self, capsules: Capsules | Tensor, target: Tensor | None = None) -> Tensor:
        """Reconstruct each image from its target's capsule.

        Args:
            capsules: of the classes, or their poses ``[B, J, D]``; 4×4 matrices are poses of size 16.
            target: see :func:`torchcaps.ops.mask_capsules`: the true class in training, None (the most active
                capsule; of poses alone the longest) in test, multi-hot to see several classes in one image. (If
                ``shared``, it sees the sum of their capsules.)

        Returns:
            ``[B, C, H, W]``.

        Raises:
            ValueError: another number or size of capsules, or targets that do not fit.
        """
        x = mask_capsules(capsules, target)
        if tuple(x.shape[1:]) != (self.n_classes, self.d_in):
            raise ValueError(f"capsules must be [B, J={self.n_classes}, D={self.d_in}], got shape {list(x.shape)}")
        check_like("capsules", x, self.layers[0].weight)
        x = x.sum(dim=1) if self.shared else x.flatten(1)  # all but the target's are 0
        if "scale" in self._buffers:
            x = x * self.scale
        *hidden, last = self.layers
        for layer in hidden:
            x = F.relu(layer(x))
        return at_least_float32(last(x)).sigmoid().unflatten(1, self.image_shape)

    def each(self, capsules: Capsules | Tensor, classes: Tensor) -> Tensor:
        """Reconstruct several classes of one image, each from its own capsule alone.

        Args:
            capsules: as :meth:`forward` takes them.
            classes: K classes of every image, ``[B, K]`` (int64).

        Returns:
            ``[B, K, C, H, W]``.

        Raises:
            ValueError: as :meth:`forward`; classes that are none.

        Source: Sabour et al. 2017, section 6 (MultiMNIST).
        """
        pose = as_pose(capsules)
        check_shapes(pose=(pose, "B J D" if pose.dim() < 4 else "B J 4 4"), classes=(classes, "B K"))
        check_int64("classes", classes)
        if has_values(classes):
            check_classes("classes", classes, self.n_classes)
        images = self.forward(pose.repeat_interleave(classes.shape[1], dim=0), classes.flatten())
        return images.unflatten(0, classes.shape)
