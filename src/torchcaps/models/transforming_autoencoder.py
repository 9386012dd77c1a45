"""What transforming auto-encoders (Hinton, Krizhevsky, Wang 2011) share: find poses, transform them, draw again.

Transforming auto-encoders: capsules that learn the poses of parts without labels (Hinton et al. 2011).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from torchcaps.checks import check_at_least, check_choice, check_shapes
from torchcaps.layers.init import reset_layers
from torchcaps.layers.shapes import as_image_shape, check_like, require_images
from torchcaps.models.windows import Local, Windows
from torchcaps.ops import Capsules
from torchcaps.ops.affine import affine_matrix, affine_parts_of, transform_pose
from torchcaps.ops.precision import at_least_float32, constant
from torchcaps.types import Reconstruction


class Transforming(nn.Module, ABC):
    """Finds the poses of J capsules, transforms them, and draws the image anew.

    Attributes:
        image_shape: (channels, height, width).
        n_capsules: J.
        unit: pixels that the network counts as one.
        background: what is drawn without any capsule, ``[C, H, W]``.
    """

    image_shape: tuple[int, int, int]
    n_capsules: int
    unit: float
    background: nn.Parameter

    def reset_parameters(self) -> None:
        """Draw the initial values anew, in place: to train again, or after :meth:`torch.nn.Module.to_empty`."""
        reset_layers(self)
        self._start()

    @torch.no_grad()
    def _start(self) -> None:
        """Give initial values to what belongs to no layer."""
        self.background.zero_()

    @abstractmethod
    def encode(self, x: Tensor) -> Capsules:
        """Poses ``[B, J, 2]`` or ``[B, J, 3, 3]``, presences ``[B, J]`` as activation, of images ``[B, C, H, W]``.

        Raises:
            ValueError: images of another shape than the model was made for.
        """

    @abstractmethod
    def decode(self, pose: Tensor, presence: Tensor) -> Tensor:
        """Draw what the capsules see: poses ``[B, J, …]`` and presences ``[B, J]`` to images ``[B, C, H, W]``."""

    @abstractmethod
    def generative_units(self) -> Tensor:
        """Return what the capsules draw with, in pixels: G pictures of every capsule, ``[J, G, C, h, w]``.

        Source: Hinton, Krizhevsky, Wang 2011, after figure 2.
        """

    def forward(self, x: Tensor, transformation: Tensor | None = None) -> Reconstruction:
        """Draw images as they will look transformed.

        Args:
            x: ``[B, C, H, W]``, values 0 … 1.
            transformation: T of each, ``[B, 3, 3]`` in pixels (``torchcaps.ops.affine``); None for none.

        Raises:
            ValueError: images of another shape than the model was made for, or not one transformation for each.
        """
        require_images(x, self.image_shape)
        if transformation is not None:
            check_shapes(x=(x, "B C H W"), transformation=(transformation, "B 3 3"))
        found = self.encode(x)
        pose = found.pose
        if transformation is not None:
            pose = transform_pose(pose, transformation.to(pose.dtype))
        return Reconstruction(self.decode(pose, found.activation), found)


#: Kinds of pose, and how many numbers are read of each.
POSES = {"translation": 2, "affine": 9, "parts": 6}


class TransformingAutoencoder(Transforming):
    """Capsules find pose and presence of their parts; the poses are transformed, and the parts drawn again.

    Poses are in pixels from the image's centre, x to the right and y down, so that a transformation of the image
    applies to them as it is.

    Args:
        image_shape: (channels, height, width).
        n_capsules: in each window.
        n_recognition: sigmoid units of each capsule that see its window.
        n_generation: sigmoid units of each capsule that see its transformed pose, and draw.
        pose: "translation", a point (x, y); "affine", a 3×3 matrix, read as nine numbers as in the paper; or "parts", a
            3×3 matrix that is read as angle, scales, shear and shift, so that it always has an inverse.
        field: side of the windows; None lets every capsule see the whole image.
        stride: pixels from one window to the next, by default 3. Only with a field, as is ``patch``.
        patch: side of what a capsule draws about its window's centre; about twice the field by default.

    Raises:
        ValueError: a number below 1, an unknown ``pose``, or windows that do not fit.

    Source: Hinton, Krizhevsky, Wang 2011, figure 1. To the sum of what the capsules draw an image is added that is
    always the same: the background, which needs no capsule.
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        *,
        n_capsules: int,
        n_recognition: int,
        n_generation: int,
        pose: str,
        field: int | None = None,
        stride: int | None = None,
        patch: int | None = None,
    ) -> None:
        super().__init__()
        for name, value in (
            ("n_capsules", n_capsules),
            ("n_recognition", n_recognition),
            ("n_generation", n_generation),
        ):
            check_at_least(name, value, 1)
        check_choice("pose", pose, POSES)
        self.windows = Windows(image_shape, field, stride, patch)
        self.image_shape, self.pose = as_image_shape(image_shape), pose
        self.n_capsules = n = self.windows.n * n_capsules  #: J, window by window
        self.recognition = Local(self.windows.n, self.windows.n_seen, n_capsules * n_recognition)
        self.read = Local(n, n_recognition, POSES[pose] + 1)
        # Poses differ by fractions of the unit, which sigmoids must tell apart from the start.
        self.generation = Local(n, 2 if pose == "translation" else 9, n_generation, spread=4.0)
        self.output = Local(self.windows.n, n_capsules * n_generation, self.windows.n_output, bias=False)
        self.background = nn.Parameter(torch.empty(self.image_shape))
        #: (x, y) of each capsule's window. Numbers and no buffer; what a model is loaded into may not have made one.
        self.centres = [centre for centre in self.windows.centres for _ in range(n_capsules)]
        #: Pixels that the units count as one, a quarter of what they see, so that all they read is about 1.
        self.unit = min(self.windows.field) / 4
        self._start()

    def encode(self, x: Tensor) -> Capsules:
        """Poses ``[B, J, 2]`` or ``[B, J, 3, 3]``, presences ``[B, J]`` as activation, of images ``[B, C, H, W]``."""
        require_images(x, self.image_shape)
        check_like("x", x, self.recognition.weight)
        units = self.recognition(self.windows.take(x)).sigmoid()  # [B, P, ·]
        units = units.reshape(x.shape[0], self.n_capsules, self.read.weight.shape[1])
        numbers = self.read(units)  # [B, J, POSES[pose] + 1]
        return Capsules(self._pose_of(numbers[..., :-1]), numbers[..., -1].sigmoid())

    def decode(self, pose: Tensor, presence: Tensor) -> Tensor:
        """Draw what the capsules see: poses ``[B, J, …]`` and presences ``[B, J]`` to images ``[B, C, H, W]``."""
        numbers = self._numbers_of(pose).to(self.generation.weight.dtype)
        units = self.generation(numbers).sigmoid() * presence.unsqueeze(-1)  # [B, J, ·]
        patches = self.output(units.reshape(pose.shape[0], self.windows.n, self.output.weight.shape[1]))
        return self.windows.put(patches) + self.background

    def generative_units(self) -> Tensor:
        """Return the output weights of each capsule's generation units, ``[J, G, C, h, w]``."""
        units = self.output.weight.reshape(self.n_capsules, -1, self.windows.n_output)
        return units.unflatten(2, (self.image_shape[0], *self.windows.patch))

    def _pose_of(self, numbers: Tensor) -> Tensor:
        """Turn what was read, at first near the window's centre and unturned, into a pose in pixels."""
        numbers = at_least_float32(numbers)  # bfloat16 knows pixels to an eighth or worse
        centre = self._centres(numbers)
        if self.pose == "translation":
            return numbers * self.unit + centre
        if self.pose == "parts":
            matrix = affine_matrix(affine_parts_of(numbers))
        else:
            matrix = numbers.unflatten(-1, (3, 3)) + torch.eye(3, dtype=numbers.dtype, device=numbers.device)
        return _shifted(matrix * self._rows(numbers), centre)

    def _numbers_of(self, pose: Tensor) -> Tensor:
        """Turn poses into the numbers that the generation units take."""
        pose = at_least_float32(pose)
        centre = self._centres(pose)
        if self.pose == "translation":
            return (pose - centre) / self.unit
        return (_shifted(pose, -centre) / self._rows(pose)).flatten(2)

    def _centres(self, like: Tensor) -> Tensor:
        """(x, y) of each capsule's window, ``[J, 2]``."""
        return self.windows.centres_on(like).repeat_interleave(self.n_capsules // self.windows.n, dim=0)

    def _rows(self, like: Tensor) -> Tensor:
        """Pixels in a unit, for each row of a matrix."""
        return constant((self.unit, self.unit, 1.0), like).unsqueeze(1)


def _shifted(matrix: Tensor, by: Tensor) -> Tensor:
    """Return a shift of (x, y) ``[J, 2]`` after each matrix ``[B, J, 3, 3]``."""
    return torch.cat((matrix[..., :2, :] + by.unsqueeze(-1) * matrix[..., 2:, :], matrix[..., 2:, :]), dim=-2)


def translation_autoencoder(image_shape: tuple[int, int, int] = (1, 28, 28), **options: Any) -> TransformingAutoencoder:
    """Build the paper's capsules of points: 30, each with 10 recognition and 20 generation units."""
    settings = {"n_capsules": 30, "n_recognition": 10, "n_generation": 20, "pose": "translation"}
    return TransformingAutoencoder(image_shape, **{**settings, **options})


def affine_autoencoder(image_shape: tuple[int, int, int] = (1, 28, 28), **options: Any) -> TransformingAutoencoder:
    """Build the paper's capsules of matrices: 25, each with 40 recognition and 40 generation units."""
    settings = {"n_capsules": 25, "n_recognition": 40, "n_generation": 40, "pose": "affine"}
    return TransformingAutoencoder(image_shape, **{**settings, **options})


def parts_autoencoder(image_shape: tuple[int, int, int] = (1, 28, 28), **options: Any) -> TransformingAutoencoder:
    """Build those of ``affine_autoencoder``, but that matrices are read as angle, scales, shear and shift."""
    return affine_autoencoder(image_shape, **{"pose": "parts", **options})


def local_autoencoder(image_shape: tuple[int, int, int] = (1, 28, 28), **options: Any) -> TransformingAutoencoder:
    """Capsules of matrices, each of which sees an 11×11 window and draws 21×21 about it.

    After the paper's last model, of cars; the numbers of units are ours.
    """
    settings = {"n_capsules": 1, "n_recognition": 32, "n_generation": 32, "pose": "affine"}
    return TransformingAutoencoder(image_shape, **{**settings, "field": 11, **options})
