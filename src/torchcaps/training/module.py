"""One experiment as Lightning sees it, with its learning rate."""

from __future__ import annotations

import math
import time
from collections import Counter
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn

from torchcaps.optim import Muon, groups, is_weight
from torchcaps.training import cuda_graph
from torchcaps.training.batches import Batches
from torchcaps.training.config import Experiment, Optim
from torchcaps.training.dice import averages
from torchcaps.training.environment import seed
from torchcaps.training.examples import Batch, mixed_seed
from torchcaps.training.objective import Loss, answer, judge, total_loss
from torchcaps.training.whole_step import WholeStep, clip_gradients


def depends_on_length(optim: Optim) -> bool:
    """Return whether the learning rate of a step depends on how many there will be."""
    in_parts = optim.schedule == "exponential" and optim.decay_steps < 1
    return optim.warmup > 0 or optim.schedule == "cosine" or in_parts


def learning_rate(optim: Optim, step: int, n_steps: int) -> float:
    """Learning rate of step ``step`` (from 0) of ``n_steps``.

    Warm-up rises linearly from 0 over its fraction of the run; then "exponential" decays by ``decay`` every
    ``decay_steps`` steps (or that fraction of the run, below 1), "cosine" falls to ``floor`` at the
    end; neither goes below ``floor``.
    """
    warm = round(optim.warmup * n_steps)
    if step < warm:
        return optim.lr * (step + 1) / warm
    if optim.schedule == "constant":
        return optim.lr
    if optim.schedule == "cosine":
        part = (step - warm) / max(1, n_steps - warm)
        return optim.floor + (optim.lr - optim.floor) * (1 + math.cos(math.pi * part)) / 2
    every = optim.decay_steps if optim.decay_steps >= 1 else optim.decay_steps * n_steps
    return max(optim.floor, optim.lr * optim.decay ** ((step - warm) / every))


#: How often a GPU's steps are waited for, to see that their numbers are some.
_SECONDS = 0.1


class NonFiniteLoss(ValueError):
    """Loss, gradient or weights became NaN or infinite; the last checkpoint is still good."""


class TrainingModule(L.LightningModule):
    """Trains and validates one model.

    On a GPU a step is a :class:`WholeStep`, recorded as a CUDA graph where that can be done; elsewhere Lightning takes
    it apart. Both do the same.

    Args:
        config: the experiment.
        model: returns :class:`~torchcaps.models.ModelOutput`, :class:`~torchcaps.models.Reconstruction` or
            :class:`~torchcaps.models.SegmentationOutput`.
        train: batches to train on.
        val: batches to validate on.
        own_loss: in place of the experiment's.
    """

    def __init__(
        self, config: Experiment, model: nn.Module, train: Batches, val: Batches, own_loss: Loss | None = None
    ) -> None:
        super().__init__()
        self.config, self.model, self.own_loss = config, model, own_loss
        self.train_batches, self.val_batches, self.world = train, val, train.world
        self.n_steps = config.epochs * len(train)
        self.whole: WholeStep | None = None
        self.loss: Tensor | None = None  #: of the last whole step
        self._seen = 0.0  # when the last ones were waited for

    def train_dataloader(self) -> Any:
        return self.train_batches

    def val_dataloader(self) -> Any:
        return self.val_batches

    def configure_optimizers(self) -> Any:
        optim = self.config.optim
        if optim.name == "muon":
            on_gpu = next(self.model.parameters()).is_cuda
            optimizer = Muon(groups(self.model, optim.weight_decay), optim.lr, eps=optim.eps, capturable=on_gpu)
        else:
            weights = [p for name, p in self.model.named_parameters() if is_weight(name)]
            others = [p for name, p in self.model.named_parameters() if not is_weight(name)]
            parts = [{"params": weights, "weight_decay": optim.weight_decay}, {"params": others}]
            optimizer = torch.optim.Adam(parts, lr=optim.lr, eps=optim.eps, fused=True)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: learning_rate(optim, step, self.n_steps) / optim.lr
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def whole_step(self, optimizer: torch.optim.Optimizer) -> WholeStep | None:
        """Return the step in one piece, on one GPU; a CPU and others would not gain by it.

        Of several processes Lightning sums the gradients between backward pass and step.
        """
        if self.device.type != "cuda" or self.world.size > 1:
            return None
        recorder = cuda_graph.CudaGraph(self.device) if cuda_graph.wanted() else None
        return WholeStep(self.config, self.model, optimizer, recorder, self.own_loss)

    def on_train_start(self) -> None:
        optimizer = self.optimizers(use_pl_optimizer=False)
        assert isinstance(optimizer, torch.optim.Optimizer)
        self.whole, self._seen = self.whole_step(optimizer), time.monotonic()

    def on_train_end(self) -> None:
        self.require_sound()
        self.whole = self.loss = None  # and the memory that was recorded
        self.zero_grad()

    def on_train_epoch_start(self) -> None:
        self.train_batches.epoch = self.current_epoch

    def training_step(self, batch: Batch, _: int) -> Tensor | dict[str, Tensor]:
        rank = [self.world.rank] if self.world.rank else []  # for other noise in other images
        seed(mixed_seed(self.config.seed, 2, self.global_step, *rank), self.device)  # dropout, reproducibly
        progress = self.global_step / self.n_steps
        if self.whole is not None:
            self.loss = self.whole(batch, self.global_step, progress)
            if time.monotonic() - self._seen >= _SECONDS:
                self.require_sound()
            return self.loss
        output = answer(self.model, batch)
        loss = total_loss(self.config, self.model, output, batch, progress=progress, loss=self.own_loss)
        if batch.share is None:
            self.require_finite("loss", loss.item())
            self.log("loss", loss, prog_bar=True, logger=False)
            return loss
        loss = loss * batch.share.weight(len(batch.images))  # gradients are averaged over processes
        mean = self.world.mean(loss.detach())
        self.require_finite("loss", mean.item())  # in all, or in none
        self.log("loss", mean, prog_bar=True, logger=False)
        return {"loss": loss, "mean": mean}

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        self.require_finite("gradient", clip_gradients(self.model, self.config.optim.clip).item())

    # What a whole step has done already.

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        if self.whole is None:
            super().backward(loss, *args, **kwargs)

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: torch.optim.Optimizer) -> None:
        if self.whole is None:
            super().optimizer_zero_grad(epoch, batch_idx, optimizer)

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        if self.whole is None:
            super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)
        else:
            optimizer_closure()

    def require_sound(self) -> None:
        """Wait for the steps that were taken, and stop if one met a number that is none.

        Raises:
            NonFiniteLoss: saying which and when.
        """
        fault = None if self.whole is None else self.whole.fault()
        self._seen = time.monotonic()
        if fault is not None:
            self.require_finite(fault.name, fault.value, fault.step)

    def require_finite(self, name: str, value: float, step: int | None = None) -> None:
        """Stop before a number that is none reaches a file, and of a step at hand the weights.

        Raises:
            NonFiniteLoss: saying which and when.
        """
        if not math.isfinite(value):
            epoch = 1 + (self.current_epoch if step is None else step // len(self.train_batches))  # from 1, as in logs
            raise NonFiniteLoss(
                f"the {name} became {value} at step {self.global_step if step is None else step} (epoch {epoch}); "
                f"what was saved before is kept. A lower optim.lr or optim.clip may help."
            )

    def on_validation_epoch_start(self) -> None:
        self.require_sound()
        self._sums, self._n = Counter[str](), 0

    def validation_step(self, batch: Batch, _: int) -> None:
        self._sums.update(judge(self.config, self.model, [batch], loss=self.own_loss))  # of several windows one
        self._n += len(batch.images)

    def on_validation_epoch_end(self) -> None:
        if self.world.size > 1:
            parts = self.world.gathered((self._sums, self._n))
            self._sums, self._n = Counter[str](), sum(n for _, n in parts)
            for sums, _ in parts:
                self._sums.update(sums)
        self.require_finite("validation loss", self._sums["loss"] / self._n)
        for name, value in averages(self._sums, self._n).items():
            self.log(f"val_{name}", value, prog_bar=True, logger=False)
