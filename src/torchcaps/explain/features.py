"""What any classifier reads in images, capsules or not, in terms that can be compared."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchcaps.checks import check_at_least, check_classes, check_shapes
from torchcaps.explain.models import inspects_model, scores_of, unwrap
from torchcaps.ops import Routed


class Features(NamedTuple):
    """Of B images.

    Attributes:
        confidence: in each class, 0 … 1, ``[B, J]``: the activations of class capsules (their lengths, in a
            CapsNet), which need not add up to 1; of other networks the softmax of their logits.
        features: the last layer before the decision: poses of the class capsules ``[B, J, D]``; of other
            networks the input of their last ``nn.Linear``, ``[B, D]``.
    """

    confidence: Tensor
    features: Tensor

    def of_class(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Confidence ``[B]`` in these classes, and features ``[B, D]``: of capsules, the pose of that class.

        Raises:
            ValueError: labels that are no classes.
        """
        check_classes("labels", labels, self.confidence.shape[1])
        rows, labels = torch.arange(len(labels), device=labels.device), labels.long()
        features = self.features[rows, labels] if self.features.dim() == 3 else self.features
        return self.confidence[rows, labels], features

    @property
    def predicted(self) -> Tensor:
        """The class of most confidence, ``[B]``."""
        return self.confidence.argmax(dim=1)


@inspects_model
def extract_features(model: nn.Module, images: Tensor, batch_size: int = 100) -> Features:
    """Let a classifier read images, without dropout.

    Args:
        model: any that returns scores ``[B, J]``, an :class:`~torchcaps.models.Output` that has them, or a ``Routed``.
            Where there are capsules their activations and poses are read; else the scores are taken for logits, and a
            forward hook takes what goes into the last ``nn.Linear`` that was registered in the model.
        images: ``[B, C, H, W]``, values 0 … 1, at least one.
        batch_size: images at a time.

    Returns:
        :class:`Features`.

    Raises:
        ValueError: the shapes do not fit, images that are no floats; the model returns no scores, or has neither
            capsules nor ``nn.Linear``.
    """
    sizes = check_shapes(images=(images, "B C H W"))
    check_at_least("the number of images", sizes["B"], 1)
    if not images.is_floating_point():
        raise ValueError(f"images must be floats 0 … 1, got {images.dtype}: torchcaps.data.to_float makes them")
    check_at_least("batch_size", batch_size, 1)
    model = unwrap(model)  # hooks are not run by what was compiled without them
    found = [_read(model, part) for part in images.split(batch_size)]
    return Features(*(torch.cat(parts) for parts in zip(*found, strict=True)))


def _read(model: nn.Module, images: Tensor) -> tuple[Tensor, Tensor]:
    last = next((part for part in reversed(list(model.modules())) if isinstance(part, nn.Linear)), None)
    inputs: list[Tensor] = []
    output: list[object] = []
    hooks = [model.register_forward_hook(lambda _module, _given, made: output.append(made))]
    if last is not None:
        hooks.append(last.register_forward_pre_hook(lambda _module, given: inputs.append(given[0])))
    try:
        scores = scores_of(model, images)
    finally:
        for hook in hooks:
            hook.remove()
    said = output[0]
    capsules = (said,) if isinstance(said, Routed) else getattr(said, "capsules", ())
    if capsules:
        return scores, capsules[-1].pose.flatten(2)
    if not inputs:
        raise ValueError(
            f"model must have capsules or an nn.Linear to take features from, got a {type(model).__name__}"
        )
    return scores.softmax(dim=1), inputs[-1].flatten(1)
