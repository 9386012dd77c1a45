"""Looking at a model changes nothing, in whatever mode it is, and an image's answer hangs on no other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from torchcaps import explain
from torchcaps.models import CapsNet, MatrixCapsNet, build

LABELS = torch.tensor([0, 1, 2])
ANGLES = torch.arange(3.0)
Look = Callable[[nn.Module, Tensor], Any]
#: Of a CapsNet with a decoder, an EM network, and one without capsules: n images, or the first alone.
CAPSNET: dict[str, Look] = {
    "coupling_maps": explain.coupling_maps,
    "part_maps": explain.part_maps,
    "parse_tree": lambda model, x: explain.parse_tree(model, x[0]),
    "perturb": lambda model, x: explain.perturb(model, x, LABELS[: len(x)], (0.0, 0.1)),
    "extract_features": explain.extract_features,
    "reconstruct": lambda model, x: explain.reconstruct(model, x, LABELS[: len(x)]),
    "segment": lambda model, x: explain.segment(
        model, x, LABELS[: len(x), None].expand(-1, 2), x[:, None].expand(-1, 2, -1, -1, -1)
    ),
    "views": lambda model, x: explain.view_responses(model, x, 0, ANGLES[: len(x)], ANGLES[: len(x)]),
}
EM: dict[str, Look] = {"class_votes": lambda model, x: explain.class_votes(model, x[0], 1)}
CNN: dict[str, Look] = {"extract_features": explain.extract_features}


def tensors(found: Any) -> list[Tensor]:
    """All that are in it."""
    if isinstance(found, Tensor):
        return [found]
    parts = found if isinstance(found, tuple | list) else ()
    return [each for part in parts for each in tensors(part)]


@pytest.mark.parametrize(
    ("make", "name"),
    [("capsnet", name) for name in CAPSNET] + [("em", name) for name in EM] + [("cnn", name) for name in CNN],
)
def test_a_model_in_training_is_looked_at_as_in_evaluation(make: str, name: str) -> None:
    model: nn.Module
    if make == "capsnet":
        model, look = CapsNet((2, 20, 18), 3, channels=4, n_types=2), CAPSNET[name]
    elif make == "em":
        model, look = MatrixCapsNet((2, 24, 24), 3, A=4, B=2, C=2, D=2), EM[name]
    else:
        model, look = build("baseline_cnn", (2, 28, 28), 3), CNN[name]
    size = {"capsnet": (20, 18), "em": (24, 24), "cnn": (28, 28)}[make]
    normalized = nn.BatchNorm2d(2)  # in training, an image's answer is that of its batch, and is remembered
    model.register_forward_pre_hook(lambda _, given: (normalized(given[0]),))
    model.normalized = normalized
    x = torch.rand(3, 2, *size)
    wanted = tensors(look(model.eval(), x))
    model.train()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    found = tensors(look(model, x))
    assert wanted and not any(each.requires_grad for each in found)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)
    assert all(value.equal(before[key]) for key, value in model.state_dict().items())
    assert all(part.training for part in model.modules())


def test_what_is_no_module_is_named() -> None:
    with pytest.raises(ValueError, match="model must be nn.Module, got <function"):
        explain.extract_features(explain.extract_features, torch.rand(1, 1, 4, 4))


def test_a_compiled_network_is_read_after_it_was_called() -> None:
    model = build("baseline_cnn", (1, 28, 28), 3).eval()
    compiled, x = torch.compile(model, backend="eager"), torch.rand(2, 1, 28, 28)
    with torch.no_grad():
        compiled(x)
    torch.testing.assert_close(explain.extract_features(compiled, x), explain.extract_features(model, x))
    averaged = AveragedModel(compiled)
    with torch.no_grad():
        averaged(x)
    torch.testing.assert_close(explain.extract_features(averaged, x), explain.extract_features(model, x))
