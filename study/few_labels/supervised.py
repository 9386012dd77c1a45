"""Networks that see the few labelled examples alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchcaps.data import Images
from torchcaps.data.augment import random_shift
from torchcaps.data.images import to_float
from torchcaps.models import ModelOutput, build
from torchcaps.training.config import Experiment, Loss
from torchcaps.training.examples import Batch
from torchcaps.training.objective import answer, total_loss

#: Name, model and its options, loss. Small ones: of so few examples a larger one learns no more.
NETWORKS: dict[str, tuple[str, dict[str, object], Loss]] = {
    "CNN": ("matched_cnn", {"n_parameters": 705_888}, "cross_entropy"),
    "CapsNet": ("capsnet_small", {}, "margin"),
}
_BATCH, _LR, _SHIFT, _EPOCHS = 50, 1e-3, 2, 15


def train_on_few(name: str, labelled: Images, n_classes: int, steps: int, seed: int) -> torch.nn.Module:
    """A network trained on these examples, shifted by up to two pixels, for a fixed number of steps.

    (With so few there are none to stop early on.)

    Args:
        name: one of :data:`NETWORKS`.
        labelled: all that it sees.
        n_classes: K.
        steps: of Adam, in batches of at most 50; more where these are fewer than 15 epochs.
        seed: of weights and batches.
    """
    model_name, options, loss_name = NETWORKS[name]
    config = Experiment(loss=loss_name)
    shape = (labelled.images.shape[1], labelled.images.shape[2], labelled.images.shape[3])
    generator = torch.Generator().manual_seed(seed)
    steps = max(steps, _EPOCHS * len(labelled) // _BATCH)
    with torch.random.fork_rng(devices=[]):  # for weights and dropout
        torch.manual_seed(seed)
        model = build(model_name, shape, n_classes, **dict[str, Any](options))
        adam = torch.optim.Adam(model.parameters(), lr=_LR)
        for step in range(steps):
            chosen = torch.randperm(len(labelled), generator=generator)[:_BATCH]
            images = random_shift(to_float(labelled.images[chosen]), _SHIFT, generator)
            batch = Batch(images, labelled.labels[chosen].unsqueeze(1), images.unsqueeze(1))
            loss = total_loss(config, model, answer(model, batch), batch, progress=step / steps)
            adam.zero_grad()
            loss.backward()
            adam.step()
    return model.eval()


@torch.no_grad()
def classes_of(model: torch.nn.Module, images: Tensor) -> Tensor:
    """The class of each image, uint8 ``[N, C, H, W]``."""
    found = []
    for part in images.split(500):
        output = model(to_float(part))
        assert isinstance(output, ModelOutput)
        found.append(output.scores.argmax(dim=1))
    return torch.cat(found)
