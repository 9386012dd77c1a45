"""What transforming auto-encoders (Hinton, Krizhevsky, Wang 2011) share: find poses, transform them, paint again."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from torchcaps.checks import check_shapes
from torchcaps.layers.init import reset_layers
from torchcaps.layers.sizes import require_images
from torchcaps.models.output import Transformed
from torchcaps.ops import Routed
from torchcaps.ops.affine import transform_pose


class Transforming(nn.Module, ABC):
    """Finds the poses of J capsules, transforms them, and paints the image anew.

    Attributes:
        image_shape: (channels, height, width).
        n_capsules: J.
        unit: pixels that the network counts as one.
        ground: what is painted without any capsule, ``[C, H, W]``.
    """

    image_shape: tuple[int, int, int]
    n_capsules: int
    unit: float
    ground: nn.Parameter

    def reset_parameters(self) -> None:
        """Draw the initial values anew, in place: to train again, or after :meth:`torch.nn.Module.to_empty`."""
        reset_layers(self)
        self._start()

    @torch.no_grad()
    def _start(self) -> None:
        """Give initial values to what belongs to no layer."""
        self.ground.zero_()

    @abstractmethod
    def recognise(self, x: Tensor) -> Routed:
        """Poses ``[B, J, 2]`` or ``[B, J, 3, 3]``, presences ``[B, J]`` as activation, of images ``[B, C, H, W]``.

        Raises:
            ValueError: images of another shape than the model was made for.
        """

    @abstractmethod
    def generate(self, pose: Tensor, presence: Tensor) -> Tensor:
        """What the capsules paint together: ``[B, J, …]`` and ``[B, J]`` to ``[B, C, H, W]``."""

    @abstractmethod
    def generative_units(self) -> Tensor:
        """What the capsules paint with, in pixels: G pictures of every capsule, ``[J, G, C, h, w]``.

        Source: Hinton, Krizhevsky, Wang 2011, after figure 2.
        """

    def forward(self, x: Tensor, transformation: Tensor | None = None) -> Transformed:
        """Paint images as they will look transformed.

        Args:
            x: ``[B, C, H, W]``, values 0 … 1.
            transformation: T of each, ``[B, 3, 3]`` in pixels (:mod:`torchcaps.ops.affine`); None for none.

        Raises:
            ValueError: images of another shape than the model was made for, or not one transformation for each.
        """
        require_images(x, self.image_shape)
        if transformation is not None:
            check_shapes(x=(x, "B C H W"), transformation=(transformation, "B 3 3"))
        found = self.recognise(x)
        pose = found.pose
        if transformation is not None:
            pose = transform_pose(pose, transformation.to(pose.dtype))
        return Transformed(self.generate(pose, found.activation), found)
