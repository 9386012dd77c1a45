"""Features and confidences of any classifier, with capsules or without, in terms that can be compared."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchcaps.checks import check_at_least, check_classes, check_shapes
from torchcaps.explain.models import inspects_model, scores_of, unwrap
from torchcaps.ops import Capsules
from torchcaps.typed import typed


class Features(NamedTuple):
    """Confidences and features of B images.

    Attributes:
        confidence: confidence in each class, 0 … 1, ``[B, J]``. With capsules these are the activations of the class
            capsules (their lengths, in a CapsNet), which need not add up to 1; else the softmax of the logits.
        features: the last layer before the decision. With capsules these are the poses of the class capsules,
            ``[B, J, D]``; else the input of the last ``nn.Linear``, ``[B, D]``.
    """

    confidence: Tensor
    features: Tensor

    def of_class(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the confidence ``[B]`` in these classes, and the features ``[B, D]``.

        With capsules the features are the pose of the label's capsule.

        Raises:
            ValueError: a label is no class.
        """
        check_classes("labels", labels, self.confidence.shape[1])
        rows, labels = torch.arange(len(labels), device=labels.device), labels.long()
        features = self.features[rows, labels] if self.features.dim() == 3 else self.features
        return self.confidence[rows, labels], features

    @property
    def predicted(self) -> Tensor:
        """Return the class of most confidence, ``[B]``."""
        return self.confidence.argmax(dim=1)


@typed
@inspects_model
def extract_features(model: nn.Module, images: Tensor, batch_size: int = 100) -> Features:
    """Extract features and confidences of a classifier, without dropout.

    Args:
        model: any network that returns scores ``[B, J]``, a :class:`~torchcaps.models.ModelOutput` that has them, or a
            ``Capsules``. Without capsules the scores are logits, and a forward hook records the input of the last
            ``nn.Linear`` that is registered in the model.
        images: ``[B, C, H, W]``, values 0 … 1, at least one.
        batch_size: number of images at a time.

    Returns:
        :class:`Features`.

    Raises:
        ValueError: the shapes do not fit, or the images are no floats; the model returns no scores, or has neither
            capsules nor an ``nn.Linear``.

    Example:
        >>> import torch
        >>> from torchcaps import build
        >>> extract_features(build("capsnet_small", (1, 28, 28), 10), torch.rand(2, 1, 28, 28)).features.shape
        torch.Size([2, 10, 16])
    """
    sizes = check_shapes(images=(images, "B C H W"))
    check_at_least("the number of images", sizes["B"], 1)
    if not images.is_floating_point():
        raise ValueError(f"images must be floats 0 … 1, got {images.dtype}: torchcaps.data.to_float makes them")
    check_at_least("batch_size", batch_size, 1)
    model = unwrap(model)  # hooks are not run by what was compiled without them
    batches = [_extract(model, batch) for batch in images.split(batch_size)]
    return Features(*(torch.cat(parts) for parts in zip(*batches, strict=True)))


def _extract(model: nn.Module, images: Tensor) -> tuple[Tensor, Tensor]:
    """Run one batch with hooks on the model and on its last linear layer."""
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
    capsules = (output[0],) if isinstance(output[0], Capsules) else getattr(output[0], "capsules", ())
    if capsules:
        return scores, capsules[-1].pose.flatten(2)
    if not inputs:
        raise ValueError(
            f"model must have capsules or an nn.Linear to take features from, got a {type(model).__name__}"
        )
    return scores.softmax(dim=1), inputs[-1].flatten(1)
