"""One experiment as Lightning sees it."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn

from torchcaps.experiments.batches import Batch, Batches, mixed_seed
from torchcaps.experiments.experiment import Experiment
from torchcaps.experiments.objective import answer, judge, total_loss
from torchcaps.experiments.schedule import learning_rate
from torchcaps.optim import Muon, groups, is_weight


class NonFiniteLoss(ValueError):
    """Loss, gradient or weights became NaN or infinite; the last checkpoint is still good."""


class Task(L.LightningModule):
    """Trains and validates one model.

    Args:
        config: the experiment.
        model: returns :class:`~torchcaps.models.Output` or :class:`~torchcaps.models.Transformed`.
        train: batches to train on.
        val: batches to validate on.
    """

    def __init__(self, config: Experiment, model: nn.Module, train: Batches, val: Batches) -> None:
        super().__init__()
        self.config, self.model = config, model
        self.train_batches, self.val_batches = train, val
        self.n_steps = config.epochs * len(train)

    def train_dataloader(self) -> Any:
        return self.train_batches

    def val_dataloader(self) -> Any:
        return self.val_batches

    def configure_optimizers(self) -> Any:
        optim = self.config.optim
        if optim.name == "muon":
            optimizer = Muon(groups(self.model, optim.weight_decay), optim.lr, eps=optim.eps)
        else:
            weights = [p for name, p in self.model.named_parameters() if is_weight(name)]
            others = [p for name, p in self.model.named_parameters() if not is_weight(name)]
            parts = [{"params": weights, "weight_decay": optim.weight_decay}, {"params": others}]
            optimizer = torch.optim.Adam(parts, lr=optim.lr, eps=optim.eps, fused=True)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: learning_rate(optim, step, self.n_steps) / optim.lr
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_train_epoch_start(self) -> None:
        self.train_batches.epoch = self.current_epoch

    def training_step(self, batch: Batch, _: int) -> Tensor:
        torch.manual_seed(mixed_seed(self.config.seed, 2, self.global_step))  # dropout, reproducibly
        progress = self.global_step / self.n_steps
        loss = total_loss(self.config, self.model, answer(self.model, batch), batch, progress=progress)
        self.require_finite("loss", loss.item())
        self.log("loss", loss, prog_bar=True, logger=False)
        return loss

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        trained = [p for p in self.model.parameters() if p.grad is not None]
        norm = torch.nn.utils.get_total_norm([p.grad for p in trained if p.grad is not None])
        self.require_finite("gradient", norm.item())
        if self.config.optim.clip:  # Lightning would refuse to, with a fused Adam in bfloat16
            torch.nn.utils.clip_grads_with_norm_(trained, self.config.optim.clip, norm)

    def require_finite(self, name: str, value: float) -> None:
        """Stop before a number that is none reaches the weights or a file.

        Raises:
            NonFiniteLoss: saying which and when.
        """
        if not math.isfinite(value):
            raise NonFiniteLoss(
                f"the {name} became {value} at step {self.global_step} (epoch {self.current_epoch}); "
                f"what was saved before is kept. A lower optim.lr or optim.clip may help."
            )

    def on_validation_epoch_start(self) -> None:
        self._sums, self._n = Counter[str](), 0

    def validation_step(self, batch: Batch, _: int) -> None:
        self._sums.update(judge(self.config, self.model, [batch]))  # of several windows the central one
        self._n += len(batch.images)

    def on_validation_epoch_end(self) -> None:
        self.require_finite("validation loss", self._sums["loss"] / self._n)
        for name, total in self._sums.items():
            self.log(f"val_{name}", total / self._n, prog_bar=True, logger=False)
