"""A word in the epoch in which training is seen to be stuck: saturated capsules, or one class for every image."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn

from torchcaps.models import ModelOutput
from torchcaps.ops import Capsules
from torchcaps.training.module import TrainingModule

#: A capsule of this length passes less than a hundredth of the gradient that one of length ½ passes …
_SATURATED = 0.99
#: … and a layer is stuck where so many of its capsules, over all images, are longer.
_SHARE = 0.95
#: Steps behind the warm-up after which a network should tell classes apart.
_STEPS = 100
_ADVICE = "What to do: the page Stuck at chance? (docs/do/stuck.md). In short: a lower optim.lr, a longer optim.warmup"


class Stuck(L.Callback):
    """Warns once of saturated capsules, and once of a network that gives all validation images one class.

    Args:
        classes: their names.
    """

    def __init__(self, classes: Sequence[str]) -> None:
        self.classes = classes
        self.warned: set[str] = set()
        self._hook: Any = None
        self._begin()

    def _begin(self) -> None:
        self._predicted: list[Tensor] = []
        self._labels: list[Tensor] = []
        self._shares: list[list[Tensor]] = []  # of long capsules, by image batch and layer

    def on_validation_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, TrainingModule)
        self._begin()
        self._hook = pl_module.model.register_forward_hook(self._look)

    def _look(self, model: nn.Module, inputs: Any, output: Any) -> None:
        if isinstance(output, ModelOutput):
            self._predicted.append(output.scores.argmax(dim=1))
            self._shares.append([_long(layer) for layer in output.capsules])

    def on_validation_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        if batch.labels.shape[1] == 1:  # of pairs no image has one class
            self._labels.append(batch.labels[:, 0])

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._hook.remove()
        assert isinstance(pl_module, TrainingModule)
        world = pl_module.train_batches.world
        if world.size > 1:
            parts = world.gathered([[x.cpu() for x in xs] for xs in (self._predicted, self._labels)])
            self._predicted, self._labels = ([x for part in parts for x in part[k]] for k in (0, 1))
            shares = world.gathered([[share.cpu() for share in batch] for batch in self._shares])
            self._shares = [batch for part in shares for batch in part]
        if not self._predicted or trainer.sanity_checking:
            return
        found = self._saturated() + self._one_class(pl_module, trainer.current_epoch + 1)
        if found:
            said = " and ".join(found)
            logging.getLogger("torchcaps").warning(
                "epoch %d: %s. %s", trainer.current_epoch + 1, said, _advice(pl_module)
            )

    def _saturated(self) -> list[str]:
        shares = torch.tensor([[share.item() for share in batch] for batch in self._shares]).mean(dim=0)
        layers = [str(layer) for layer, share in enumerate(shares.tolist()) if share >= _SHARE]
        if not layers or not self._new("saturated"):
            return []
        return [
            f"nearly all capsules of layer {' and '.join(layers)} (output.capsules, from 0) are longer than "
            f"{_SATURATED}: they are saturated, and hardly learn"
        ]

    def _one_class(self, task: TrainingModule, epoch: int) -> list[str]:
        predicted = torch.cat(self._predicted).unique()
        if not self._labels or len(predicted) > 1 or len(torch.cat(self._labels).unique()) < 2:
            return []
        config = task.config
        late = task.global_step >= _STEPS + config.optim.warmup * task.n_steps or epoch == config.epochs
        if not (late or "saturated" in self.warned) or not self._new("one class"):
            return []
        return [f"all validation images are given one class, {self.classes[int(predicted.item())]}"]

    def _new(self, kind: str) -> bool:
        new = kind not in self.warned
        self.warned.add(kind)
        return new


def _advice(task: TrainingModule) -> str:
    """Say what to do, with those options alone that the network has."""
    more = [", standardize=True"] if hasattr(task.model, "standardize") else []
    more += [f", {name}=None" for name in ("primary_scale", "vote_scale") if name in task.config.model.options]
    return _ADVICE + "".join(more)


def _long(capsules: Capsules) -> Tensor:
    """Share of capsules that are saturated; 0 where activations are no lengths, as those of EM routing."""
    pose, activation = capsules.pose, capsules.activation
    if pose.dim() != activation.dim() + 1 or not torch.allclose(pose.norm(dim=-1), activation, atol=1e-2):
        return activation.new_zeros(())
    return (activation > _SATURATED).float().mean()
