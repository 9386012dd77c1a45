"""Whether a classifier's scores are probabilities, or logits that want a softmax."""

from __future__ import annotations

from torch import nn

from torchcaps.layers.base import RoutedLayer
from torchcaps.types import ModelOutput


def are_logits(loss: str, model: nn.Module, output: ModelOutput) -> bool:
    """Tell whether scores are logits: of a network without capsules, or of one that :func:`gives_logits`."""
    return not output.capsules or gives_logits(loss, model)


def gives_logits(loss: str, model: nn.Module) -> bool:
    """Tell whether a network with capsules was trained on logits by cross-entropy, instead of on probabilities.

    It is known of a model that says so itself, in ``bounded_scores``, and else of the routing to its classes. Of any
    other network cross-entropy is taken at its word.
    """
    if loss != "cross_entropy":
        return False
    told = [each.bounded_scores for each in model.modules() if hasattr(each, "bounded_scores")]
    routed = [each.routing.bounded for each in model.modules() if isinstance(each, RoutedLayer)]
    known = told or routed
    return not known or not known[-1]
