"""The stacked capsule auto-encoder: parts of images, explained by objects (Kosiorek et al. 2019)."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from torchcaps.checks import check_at_least, check_choice, check_number, check_positive, check_shapes
from torchcaps.layers.shapes import as_image_shape, check_like, require_images
from torchcaps.models.object_capsules import ObjectCapsules
from torchcaps.models.part_capsules import PartEncoder, Parts, TemplateDecoder
from torchcaps.models.parts_mlp import PartsMLP
from torchcaps.models.set_transformer import SetTransformer
from torchcaps.models.sparsity import batch_mean, explained_parts, object_losses
from torchcaps.ops import mixture_likelihood
from torchcaps.types import Capsules, StackedOutput

#: Networks that encode parts into objects.
ENCODERS = ("set_transformer", "mlp")
#: Factor on the initial weights of objects' presences.
_PRESENCE_GAIN = 30.0
#: Images smaller than this leave the four convolutions no place.
_LEAST_SIDE = 23


class StackedCapsuleAutoencoder(nn.Module):
    """Learn parts of images and objects made of them, without labels.

    Part capsules: a CNN finds the pose, presence and features of M templates, whose mixture is to be the image. Object
    capsules: a set transformer reads the parts; each of K objects predicts the pose of each part, and a mixture of
    these predictions is to explain the poses found. No gradient of the objects reaches the parts, so parts are learned
    by the image alone.

    Args:
        image_shape: (channels, height, width), at least 23×23.
        n_parts: M.
        n_objects: K.
        n_features: of each part, beside its pose.
        template: side of the square templates in pixels.
        channels: of the four convolutions.
        encoder: of the parts: a set transformer, or an MLP that has its own weights for each part.
        width: of the set transformer's members, whose attention has one head; or of the MLP's hidden layers.
        n_layers: of self-attention; or the MLP's hidden layers.
        d_features: size of the vector of each object.
        d_code: numbers that an object is squeezed into.
        hidden: width of the layers of each object.
        image_scale: standard deviation of a pixel.
        noise: while training, uniform noise of ± this on the logits of presences; evaluated there is none.
        n_classes: kinds of image that the sparsity terms expect: an object in B / this images.
        n_present: c, objects that an image is expected to have. The initial presences are c / K, at most ½.
        part_weight: of the parts' negative log-likelihood.
        dynamic_weight: of the loss that keeps objects rigid.
        prior_weights: of sparsity of presences, within an image and between images.
        posterior_weights: of sparsity of what objects explain, within an image and between images.

    Raises:
        ValueError: images that are too small, sizes below 1, weights below 0, or a scale that is not positive.

    Example:
        >>> import torch
        >>> model = StackedCapsuleAutoencoder((1, 28, 28), n_parts=6, n_objects=4)
        >>> output = model(torch.rand(2, 1, 28, 28))
        >>> output.images.shape, output.posterior.shape
        (torch.Size([2, 1, 28, 28]), torch.Size([2, 4]))
        >>> list(output.losses)[:3]
        ['image_likelihood', 'part_likelihood', 'dynamic']

    Source: Kosiorek, Sabour, Teh, Hinton 2019, Stacked Capsule Autoencoders, arXiv 1906.06818, and its code.
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int] = (1, 40, 40),
        *,
        n_parts: int = 40,
        n_objects: int = 32,
        n_features: int = 16,
        template: int = 11,
        channels: int = 128,
        encoder: Literal["set_transformer", "mlp"] = "set_transformer",
        width: int = 16,
        n_layers: int = 3,
        d_features: int = 256,
        d_code: int = 32,
        hidden: int = 128,
        image_scale: float = 1.0,
        noise: float = 2.0,
        n_classes: int = 10,
        n_present: float = 4.3,
        part_weight: float = 1.0,
        dynamic_weight: float = 10.0,
        prior_weights: tuple[float, float] = (2.0, 0.35),
        posterior_weights: tuple[float, float] = (0.7, 0.2),
    ) -> None:
        super().__init__()
        sizes = {"n_parts": n_parts, "n_objects": n_objects, "n_features": n_features, "template": template}
        sizes |= {"channels": channels, "width": width, "n_layers": n_layers, "d_features": d_features}
        for name, value in {**sizes, "d_code": d_code, "hidden": hidden, "n_classes": n_classes}.items():
            check_at_least(name, value, 1)
        check_positive("image_scale", image_scale)
        numbers = {"noise": noise, "n_present": n_present, "part_weight": part_weight, "dynamic_weight": dynamic_weight}
        for name, number in numbers.items():
            check_number(name, number, 0)
        check_choice("encoder", encoder, ENCODERS)
        self.weights = {"part_likelihood": float(part_weight), "dynamic": float(dynamic_weight)}
        for kind, pair in {"prior": prior_weights, "posterior": posterior_weights}.items():
            self.weights |= _pair_of_weights(kind, pair)
        self.image_shape = as_image_shape(image_shape)
        if min(self.image_shape[1:]) < _LEAST_SIDE:
            raise ValueError(f"image_shape must have {_LEAST_SIDE}×{_LEAST_SIDE} pixels at least, got {image_shape}")
        self.n_present, self.n_classes = n_present, n_classes
        self.parts = PartEncoder(self.image_shape, n_parts, n_features, channels=channels, noise=noise)
        self.decoder = TemplateDecoder(self.image_shape, n_parts, n_features, template=template, scale=image_scale)
        d_part, d_template = 7 + n_features, self.image_shape[0] * template**2
        self.encoder = (
            PartsMLP(n_parts, d_part, n_objects, d_features, width=width, n_layers=n_layers)
            if encoder == "mlp"
            else SetTransformer(d_part + d_template, n_objects, d_features, width=width, n_layers=n_layers, n_heads=1)
        )
        self.objects = ObjectCapsules(
            n_objects,
            n_parts,
            d_features,
            d_code=d_code,
            hidden=hidden,
            noise=noise,
            initial_presence=min(max(n_present / n_objects, 0.01), 0.5),
            presence_gain=_PRESENCE_GAIN,
        )

    def reset_parameters(self) -> None:
        """Draw the initial values anew, in place."""
        for module in (*self.parts.modules(), self.decoder, self.encoder, self.objects):
            if isinstance(module, nn.Conv2d | TemplateDecoder | SetTransformer | PartsMLP | ObjectCapsules):
                module.reset_parameters()

    def forward(self, x: Tensor) -> StackedOutput:
        """Explain images by parts, and parts by objects.

        Args:
            x: ``[B, C, H, W]``, values 0 … 1.

        Raises:
            ValueError: images of another shape, or no floats.
        """
        require_images(x, self.image_shape)
        check_like("x", x, self.decoder.templates)
        parts = self.parts(x)
        images, likelihood = self.decoder(parts, x)
        output = self.explain(parts)
        losses = {"image_likelihood": -batch_mean(likelihood), **output.losses}
        return output._replace(losses=losses, parts=parts.capsules, images=images)

    def explain(self, parts: Parts) -> StackedOutput:
        """Explain parts by objects alone, to train these on parts that stay as they are.

        Args:
            parts: as the module ``parts`` finds them in images. No gradient reaches them.

        Returns:
            All but images and their likelihood.

        Raises:
            ValueError: parts of another number or shape than this network's.
        """
        self._check_parts(parts)
        target = Capsules(*(each.detach() for each in parts.capsules[:2]))
        made = self.objects(self._read(parts))
        found = mixture_likelihood(
            _numbers(target.pose),
            _numbers(made.votes).transpose(1, 2),
            made.vote_presence.transpose(1, 2),
            made.scale.transpose(1, 2),
        )
        likelihood = batch_mean(target.activation * found.log_likelihood)
        explained = explained_parts(target.activation, found.responsibility)
        losses = {"part_likelihood": -self.weights["part_likelihood"] * likelihood}
        losses |= object_losses(
            made,
            explained,
            weights=self.weights,
            n_present=self.n_present,
            n_classes=self.n_classes,
        )
        objects = Capsules(made.pose, made.presence, found.responsibility)
        return StackedOutput(explained, losses, target, objects)

    def _check_parts(self, parts: Parts) -> None:
        n, n_features = self.parts.n_parts, self.decoder.colour_hidden.in_features
        pose, presence = parts.capsules[:2]
        shapes = {"pose": (pose, f"B {n} 3 3"), "presence": (presence, f"B {n}")}
        check_shapes(**shapes, features=(parts.features, f"B {n} {n_features}"))

    def _read(self, parts: Parts) -> Tensor:
        """Read what is known of the parts into vectors ``[B, K, d_features]``, through which no gradient flows."""
        pose, presence = parts.capsules.pose.detach(), parts.capsules.activation.detach()
        known = torch.cat((_numbers(pose), 1 - presence.unsqueeze(2), parts.features.detach()), dim=2)
        if isinstance(self.encoder, PartsMLP):
            return self.encoder(known)
        templates = self.decoder.templates.detach().sigmoid().flatten(1).expand(pose.shape[0], -1, -1)
        return self.encoder(torch.cat((known, templates), dim=2), presence)


def _numbers(matrix: Tensor) -> Tensor:
    """Return the six numbers of affine matrices ``[..., 3, 3]``."""
    return matrix[..., :2, :].flatten(-2)


def _pair_of_weights(kind: str, pair: tuple[float, float]) -> dict[str, float]:
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise ValueError(f"{kind}_weights must be two numbers, within an image and between images, got {pair!r}")
    for number in pair:
        check_number(f"{kind}_weights", number, 0)
    return {f"{kind}_within": float(pair[0]), f"{kind}_between": float(pair[1])}


def scae(image_shape: tuple[int, int, int] = (1, 40, 40), **options: Any) -> StackedCapsuleAutoencoder:
    """Build the stacked capsule auto-encoder of the published MNIST settings."""
    return StackedCapsuleAutoencoder(image_shape, **options)


def scae_small(image_shape: tuple[int, int, int] = (1, 28, 28), **options: Any) -> StackedCapsuleAutoencoder:
    """Build one for CPUs: fewer parts and objects, and narrower layers."""
    small = {"n_parts": 24, "n_objects": 24, "channels": 64, "width": 32, "d_features": 64, "hidden": 64}
    return StackedCapsuleAutoencoder(image_shape, **{**small, **options})
