"""A transforming auto-encoder whose capsules each own a template, after Tieleman's thesis (2014)."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchcaps.checks import check_at_least, check_number, check_two
from torchcaps.layers.shapes import as_image_shape, check_like, require_images
from torchcaps.models.transforming_autoencoder import Transforming
from torchcaps.ops import Capsules
from torchcaps.ops.affine import AffineParts, affine_inverse, affine_matrix, affine_parts_of, sample
from torchcaps.ops.precision import at_least_float32, constant

#: Numbers read for each capsule: angle, two scales, shear, two shifts, presence.
_N_READ = 7


class TemplateAutoencoder(Transforming):
    """Each capsule draws its learned template, warped by its pose and scaled by its presence.

    With a generator that can do nothing else, the pose must be one: it cannot be used as a code for anything but
    where, how large and how sheared the part is. In pixels from the image's centre, the columns of the pose say how far
    the template's right and lower edges are from its middle, and where that is.

    Args:
        image_shape: (channels, height, width).
        n_capsules: J.
        template: side of the square templates in pixels.
        channels: of two convolutions of stride 2, 5×5 and 3×3.
        width: of the layer after them, which all capsules read from. (Layers without convolutions find poses less
            exactly: after 4 epochs on MNIST the loss was half as large again.)
        most_scale: largest factor by which a template is enlarged, or made smaller, before the transformation.

    Raises:
        ValueError: a number below 1.

    Example:
        >>> import torch
        >>> model = TemplateAutoencoder((1, 28, 28), n_capsules=4)
        >>> model.encode(torch.rand(2, 1, 28, 28)).pose.shape
        torch.Size([2, 4, 3, 3])

    Source: Tieleman 2014 (thesis, Toronto) for the generator; all sizes, and the encoder that the capsules share, are
    ours.
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        *,
        n_capsules: int,
        template: int = 11,
        channels: tuple[int, int] = (32, 64),
        width: int = 256,
        most_scale: float = 2.0,
    ) -> None:
        super().__init__()
        for name, value in {"n_capsules": n_capsules, "template": template, "width": width}.items():
            check_at_least(name, value, 1)
        check_two("channels", channels, 1)
        check_number("most_scale", most_scale)
        if not 1 < most_scale < math.inf:
            raise ValueError(f"most_scale must be above 1 and finite, got {most_scale}")
        self.image_shape = depth, *size = as_image_shape(image_shape)
        self.n_capsules, self.most_scale = n_capsules, most_scale
        self.unit = min(size) / 4  #: pixels that the encoder counts as one
        kernels = ((depth, channels[0], 5), (channels[0], channels[1], 3))
        self.convolutions = nn.ModuleList(nn.Conv2d(a, b, k, stride=2, padding=k // 2) for a, b, k in kernels)
        places = math.prod(-(-side // 4) for side in size)  # a quarter of each side, rounded up
        self.encoder = nn.Linear(channels[1] * places, width)
        self.read = nn.Linear(width, n_capsules * _N_READ)
        self.templates = nn.Parameter(torch.empty(n_capsules, depth, template, template))
        self.background = nn.Parameter(torch.empty(self.image_shape))
        self._start()

    @torch.no_grad()
    def _start(self) -> None:
        super()._start()
        self.templates.uniform_(0, 1).mul_(_spot(self.templates))
        # Parts begin at places of their own: those that begin alike remain alike.
        self.read.bias.view(self.n_capsules, _N_READ)[:, 4:6].uniform_(-1, 1)

    def encode(self, x: Tensor) -> Capsules:
        """Poses ``[B, J, 3, 3]`` and presences ``[B, J]`` as activation, of images ``[B, C, H, W]``."""
        require_images(x, self.image_shape)
        check_like("x", x, self.convolutions[0].weight)
        for layer in self.convolutions:
            x = F.relu(layer(x))
        x = F.relu(self.encoder(x.flatten(1)))
        numbers = at_least_float32(self.read(x)).unflatten(1, (-1, _N_READ))  # bfloat16 knows pixels to an eighth
        parts = affine_parts_of(numbers[..., :-1], self.most_scale)
        matrix = affine_matrix(AffineParts(parts.angle, parts.scale, parts.shear, parts.shift * self.unit))
        return Capsules(matrix * self._half_sides(), numbers[..., -1].sigmoid())

    def decode(self, pose: Tensor, presence: Tensor) -> Tensor:
        """Draw the templates: poses ``[B, J, 3, 3]`` and presences ``[B, J]`` to images ``[B, C, H, W]``."""
        back = affine_inverse((pose / self._half_sides()).flatten(0, 1))
        size = self.image_shape[1], self.image_shape[2]
        templates = (presence.to(self.templates.dtype)[..., None, None, None] * self.templates).flatten(0, 1)
        drawn = sample(templates, back, size).to(templates.dtype)
        return drawn.unflatten(0, presence.shape).sum(dim=1) + self.background

    def generative_units(self) -> Tensor:
        """Return the templates, ``[J, 1, C, h, w]``."""
        return self.templates.unsqueeze(1)

    def _half_sides(self) -> Tensor:
        """Return what turns columns in the template's pixels such in half its sides."""
        half = self.templates.shape[-1] / 2
        return constant((half, half, 1.0), self.templates)


def _spot(templates: Tensor) -> Tensor:
    """Return a soft spot, bright in the middle, of the size of each template: ``[h, w]``."""
    side = templates.shape[-1]
    along = torch.linspace(-1, 1, side, device=templates.device) if side > 1 else templates.new_zeros(1)
    return torch.exp(-3 * (along[:, None] ** 2 + along[None, :] ** 2))


def template_autoencoder(image_shape: tuple[int, int, int] = (1, 28, 28), **options: Any) -> TemplateAutoencoder:
    """Capsules with a template each: 16 of 11×11 pixels."""
    return TemplateAutoencoder(image_shape, **{"n_capsules": 16, **options})
