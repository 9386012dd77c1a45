"""What routings, layers and networks return."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import _register_namedtuple

Class = TypeVar("Class", bound=type)


def saveable(cls: Class) -> Class:
    """Let this named tuple of tensors be saved: in exported programs, for which torch has no public name, and alone."""
    _register_namedtuple(cls, serialized_type_name=f"torchcaps.{cls.__name__}")
    torch.serialization.add_safe_globals([cls])
    return cls


@saveable
class Capsules(NamedTuple):
    """Capsules: what each one says (pose) and how sure it is that it is there (activation).

    Attributes:
        pose: ``[B, J, D]``, or ``[B, T, H, W, D]`` for a map of capsules.
        activation: ``[B, J]`` or ``[B, T, H, W]``, in 0 … 1. For vector capsules the pose's length.
        coupling: ``[B, I, J]``, of a map ``[B, H', W', T·K_h·K_w, J]``: how much of each lower capsule went to each
            upper one in the last iteration; None unless it was asked for, and for capsules that no routing made.

    Example:
        >>> import torch
        >>> capsules = Capsules(pose=torch.rand(2, 6, 8), activation=torch.rand(2, 6))
        >>> capsules.pose.shape, capsules.coupling
        (torch.Size([2, 6, 8]), None)
    """

    pose: Tensor
    activation: Tensor
    coupling: Tensor | None = None


def as_pose(capsules: Capsules | Tensor) -> Tensor:
    """Return the poses of capsules; a tensor of poses alone is returned as it is.

    Raises:
        ValueError: neither capsules nor poses, as a whole network's output is.

    Example:
        >>> import torch
        >>> as_pose(Capsules(torch.rand(2, 3, 8), torch.rand(2, 3))).shape
        torch.Size([2, 3, 8])
    """
    if isinstance(capsules, Capsules):
        return capsules.pose
    if isinstance(capsules, Tensor):
        return capsules
    raise ValueError(
        f"capsules must be a Capsules or a tensor of poses, got a {type(capsules).__name__}: "
        "torchcaps.Capsules(pose, activation) makes one, and output.capsules[-1] are the classes of a model's output"
    )


@saveable
class ModelOutput(NamedTuple):
    """One forward pass.

    Attributes:
        scores: ``[B, J]``; lengths 0 … 1 of the class capsules, or logits of a CNN and some routings. The largest is
            the prediction (for two digits the two largest).
        capsules: the capsules of every layer, the class capsules last; empty for a CNN.
    """

    scores: Tensor
    capsules: tuple[Capsules, ...] = ()


@saveable
class SegmentationOutput(NamedTuple):
    """One forward pass of a network that says of every pixel what is there.

    Attributes:
        scores: ``[B, J, H, W]``, 0 … 1: lengths of the class capsules at each pixel, or a CNN's probabilities. A class
            is predicted where its score is above ½. Several classes may be at one pixel, or none, which is background.
        capsules: the capsules of every layer, the class capsules last; empty for a CNN.
    """

    scores: Tensor
    capsules: tuple[Capsules, ...] = ()


@saveable
class Reconstruction(NamedTuple):
    """One forward pass of an auto-encoder that is given the transformation of its image.

    Attributes:
        images: as they should look transformed, ``[B, C, H, W]``.
        capsules: found in the untransformed images: poses ``[B, J, 2]`` (points) or ``[B, J, 3, 3]``, presences
            ``[B, J]`` as activation. A plain auto-encoder has its code there, ``[B, 1, D]``.
    """

    images: Tensor
    capsules: Capsules


@saveable
class StackedOutput(NamedTuple):
    """One forward pass of a stacked capsule auto-encoder, which finds parts, and objects that explain them.

    Attributes:
        posterior: how many parts each object explains, ``[B, K]``: a feature to cluster images by.
        losses: what is minimized, term by term, each with its weight: means over the batch.
        parts: poses ``[B, M, 2]`` (points) or ``[B, M, 3, 3]``, and presences ``[B, M]`` as activation.
        objects: poses ``[B, K, 3, 3]``, presences ``[B, K]`` as activation, and as coupling the share that each object
            has in each part ``[B, M, K]``; what is missing to 1 no object explains.
        images: as the parts make them, ``[B, C, H, W]``; None where parts were given.
    """

    posterior: Tensor
    losses: dict[str, Tensor]
    parts: Capsules
    objects: Capsules
    images: Tensor | None = None

    @property
    def loss(self) -> Tensor:
        """The sum of all terms."""
        return torch.stack(list(self.losses.values())).sum()

    @property
    def prior(self) -> Tensor:
        """Presences of the objects ``[B, K]``: another feature to cluster images by."""
        return self.objects.activation


def as_output(output: Any) -> Any:
    """Return scores or capsules alone, as a network of one's own may return them, as a :class:`ModelOutput`."""
    if isinstance(output, Tensor):
        return ModelOutput(output)
    return ModelOutput(output.activation, (output,)) if isinstance(output, Capsules) else output
