"""What an auto-encoder of capsules paints: told a transformation, capsule by capsule, and with which units."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from torchcaps.analysis.needs import autoencoder, observing
from torchcaps.checks import check_shapes
from torchcaps.ops.affine import warp


class Told(NamedTuple):
    """Squared errors of what is painted, summed over pixels, of each image ``[B]``.

    Attributes:
        itself: of what is painted for (x, T), against what is painted for (T x, identity).
        ignoring: of what is painted for (x, identity), against what is painted for (T x, identity): the same model
            with T ignored.
    """

    itself: Tensor
    ignoring: Tensor


@observing
def told(model: nn.Module, images: Tensor, transformation: Tensor, transformed: Tensor) -> Told:
    """Whether a model that is told T paints what it would paint if it saw T x.

    Args:
        model: a transforming auto-encoder.
        images: x, ``[B, C, H, W]``.
        transformation: T, ``[B, 3, 3]``.
        transformed: T x, ``[B, C, H, W]``.

    Raises:
        ValueError: another model, or the shapes do not fit.
    """
    model = autoencoder(model)
    check_shapes(
        images=(images, "B C H W"), transformation=(transformation, "B 3 3"), transformed=(transformed, "B C H W")
    )
    there = model(transformed).images
    painted, ignoring = model(images, transformation).images, model(images).images
    return Told(*((each - there).square().sum(dim=(1, 2, 3)) for each in (painted, ignoring)))


@observing
def painted_alone(model: nn.Module, image: Tensor) -> Tensor:
    """What each capsule adds to the picture of one image ``[C, H, W]``: ``[J, C, H, W]``, without the ground.

    Raises:
        ValueError: another model, or an image that does not fit it.
    """
    model = autoencoder(model)
    pose, presence, _ = model.recognise(image.unsqueeze(0))
    alone = presence[0].diag()  # [J, J]: row j has capsule j only
    return model.generate(pose.expand(len(alone), *pose.shape[1:]), alone) - model.ground


@observing
def generative_units(model: nn.Module) -> Tensor:
    """What a capsule paints with: its generation units' weights, or its template, in pixels.

    Args:
        model: a transforming auto-encoder.

    Returns:
        ``[J, G, C, h, w]``: G pictures of every capsule; a template is one.

    Raises:
        ValueError: another model.

    Source: Hinton, Krizhevsky, Wang 2011, after figure 2.
    """
    return autoencoder(model).generative_units()


@observing
def sweep(model: nn.Module, image: Tensor, matrices: Tensor) -> tuple[Tensor, Tensor]:
    """One image under many transformations, such as go beyond those of the training.

    Args:
        model: a transforming auto-encoder.
        image: as the model sees it, ``[C, H, W]``.
        matrices: K transformations, ``[K, 3, 3]``.

    Returns:
        the transformed images, and what the model paints when it sees the image and is told each transformation;
        both ``[K, C, H, W]``.

    Raises:
        ValueError: another model, or the shapes do not fit.
    """
    model = autoencoder(model)
    check_shapes(image=(image, "C H W"), matrices=(matrices, "K 3 3"))
    images = image.expand(len(matrices), *image.shape)
    return warp(images, matrices), model(images, matrices).images
