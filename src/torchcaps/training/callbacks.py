"""What happens beside the training steps: rows of metrics, and checkpoints that survive a kill."""

from __future__ import annotations

import csv
import math
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import TQDMProgressBar
from lightning.pytorch.loggers import Logger
from lightning.pytorch.plugins.io import TorchCheckpointIO
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from torchcaps.data import Dataset
from torchcaps.progress import in_minutes
from torchcaps.training.environment import commit, splits_in_words
from torchcaps.training.files import link, write_atomically, write_tensors
from torchcaps.training.module import TrainingModule
from torchcaps.training.run import Run

#: Of the rows, where they have them: classifiers make errors, networks that segment have Dice scores.
COLUMNS: tuple[str, ...] = ("epoch", "step", "lr", "train_loss", "val_loss", "val_error", "val_dice", "seconds")


class Metrics(L.Callback):
    """Write ``metrics.csv``, one row an epoch.

    Its state goes into the checkpoint, so that a resumed run has the same rows as an unbroken one.

    Args:
        run: where to.
        data: what is trained on.
        device: where, in words.
    """

    def __init__(self, run: Run, data: Dataset, device: str) -> None:
        self.run, self.data = run, {"note": data.note, "classes": list(data.classes), "sizes": splits_in_words(data)}
        self.rows: list[dict[str, Any]] = []
        self.seconds, self.n = 0.0, 0
        self.started = time.monotonic()
        self.total: float | Tensor = 0.0
        self.commits = [commit() or "unknown"]  #: of the code that ran, oldest first
        self.devices = [device]  #: that it ran on, likewise
        self.befores = run.befores()  #: epochs after which it was finished, and was given more

    def state_dict(self) -> dict[str, Any]:
        return {
            "rows": self.rows,
            "seconds": self.elapsed(),
            "total": float(self.total),
            "n": self.n,
            "commits": self.commits,
            "devices": self.devices,
            "data": self.data,
            "befores": self.befores,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        before = dict(state_dict.get("data", {"note": ""}))  # older versions said less, or nothing
        if "classes" in before:  # or had numbers there
            before["classes"] = list(map(str, before["classes"]))
        now = {name: self.data[name] for name in before}
        if before != now:
            raise ValueError(
                f"{self.run.path} was begun on other data ({before}), now {now}: name another folder by out"
            )
        self.befores = sorted({*state_dict.get("befores", []), *self.befores})
        self.rows, self.seconds = list(state_dict["rows"]), state_dict["seconds"]
        self.total, self.n = state_dict["total"], state_dict["n"]
        self.commits = list(dict.fromkeys([*state_dict["commits"], *self.commits]))
        self.devices = list(dict.fromkeys([*state_dict.get("devices", []), *self.devices]))  # older versions kept none

    def elapsed(self) -> float:
        """Seconds of training and evaluation so far, over all resumptions, not counting what a kill lost."""
        return self.seconds + time.monotonic() - self.started

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        loss = outputs.get("mean", outputs["loss"])  # over the processes, where there are several
        assert isinstance(loss, Tensor)
        self.total = self.total + loss.detach()  # on its device: reading it would wait for the step
        self.n += 1

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.sanity_checking:
            return
        values = trainer.callback_metrics
        row = {
            "epoch": trainer.current_epoch + 1,
            "step": trainer.global_step,
            "lr": trainer.optimizers[0].param_groups[0]["lr"],
            "train_loss": float(self.total) / max(1, self.n),
            **{name: values[name].item() for name in COLUMNS if name in values},
            "seconds": self.elapsed(),
        }
        self.total, self.n = 0.0, 0
        # An epoch whose end was reached twice, before and after a kill, has one row.
        self.rows = [old for old in self.rows if old["epoch"] != row["epoch"]] + [row]
        if not trainer.is_global_zero:
            return
        try:
            write_atomically(self.run.metrics, self._write)
        except PermissionError as error:  # on Windows, as long as another program shows it
            warnings.warn(f"{self.run.metrics} cannot be written now, and waits: {error}", stacklevel=2)

    def write(self) -> None:
        """Write all rows, once training is over: an earlier attempt may have failed, or its file be gone since."""
        write_atomically(self.run.metrics, self._write)

    def _write(self, path: Path) -> None:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, [name for name in COLUMNS if name in self.rows[0]])
            writer.writeheader()
            writer.writerows(self.rows)


class FirstLine(L.Callback):
    """Says what is trained on what and where, and from which step a run resumes.

    Args:
        text: what is said of a run that begins.
        run: which is resumed.
    """

    def __init__(self, text: str, run: Run) -> None:
        self.text, self.run = text, run

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, TrainingModule)
        print(f"{self.text}; {self.run.path}", flush=True)
        if trainer.global_step:
            step, n = trainer.global_step, pl_module.n_steps
            print(f"resuming after step {step:,} of {n:,}, in epoch {trainer.current_epoch + 1}", flush=True)


class TimeLeft:
    """Estimates the rest of a run from the steps since it began, or was resumed."""

    def __init__(self) -> None:
        self._began: tuple[float, int] | None = None

    def __call__(self, trainer: L.Trainer, n_steps: int) -> float | None:
        """Return the seconds that are left; None before anything is known."""
        now, step = time.monotonic(), trainer.global_step
        if self._began is None:
            self._began = now, step
        began, first = self._began
        return None if step <= first else (now - began) / (step - first) * (n_steps - step)


class Lines(L.Callback):
    """Prints a line an epoch, where a progress bar would only fill a log file.

    Args:
        metrics: whose rows are printed.
    """

    def __init__(self, metrics: Metrics) -> None:
        self.metrics, self.left = metrics, TimeLeft()

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, TrainingModule)
        self.left(trainer, pl_module.n_steps)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        row = self.metrics.rows[-1]
        error = f", error {row['val_error']:.2%}" if "val_error" in row else ""
        error += f", Dice {row['val_dice']:.4f}" if "val_dice" in row else ""
        assert isinstance(pl_module, TrainingModule)
        left = self.left(trainer, pl_module.n_steps)
        rest = f", {in_minutes(left)} left" if left and not trainer.should_stop else ""
        print(
            f"epoch {row['epoch']}/{trainer.max_epochs}: train loss {row['train_loss']:.4f}, "
            f"validation loss {row['val_loss']:.4f}{error}, {row['seconds']:.0f} s{rest}",
            flush=True,
        )


class Bar(TQDMProgressBar):
    """The bar of steps, moved on so rarely that a fast GPU does not wait for it. It says the rest of the whole run."""

    _SECONDS = 0.05

    def __init__(self) -> None:
        super().__init__()
        self._shown = -math.inf
        self.left = TimeLeft()

    def on_train_epoch_start(self, trainer: L.Trainer, *args: Any) -> None:
        self.train_progress_bar.reset(self.total_train_batches)  # Lightning's own counts epochs from 0
        self.train_progress_bar.set_description(f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}")

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if time.monotonic() - self._shown >= self._SECONDS or trainer.is_last_batch:
            super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
            self._shown = time.monotonic()

    def get_metrics(self, trainer: L.Trainer, pl_module: L.LightningModule) -> dict[str, Any]:
        task, shown = pl_module, super().get_metrics(trainer, pl_module)
        assert isinstance(task, TrainingModule)
        left = self.left(trainer, task.n_steps)
        rest = {} if left is None else {"left": in_minutes(left)}
        loss = {} if task.loss is None else {"loss": task.loss.item()}
        return {**loss, **shown, **rest}


class ToLoggers(L.Callback):
    """Hands every row of the metrics to loggers of Lightning, such as TensorBoard's.

    Args:
        metrics: whose rows are handed over.
        loggers: which take them.
    """

    def __init__(self, metrics: Metrics, loggers: Sequence[Logger]) -> None:
        self.metrics, self.loggers = metrics, loggers

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        row = dict(self.metrics.rows[-1])
        step = row.pop("step")
        for logger in self.loggers:
            logger.log_metrics(row, step)
            logger.save()


class Stop(L.Callback):
    """Ends training with the epoch whose validation error is low enough.

    It asks the rows, which are in the checkpoint: so a run that was killed behind that epoch trains no
    further when it is resumed.

    Args:
        metrics: whose rows are asked.
        error: at or below which to stop.
    """

    def __init__(self, metrics: Metrics, error: float) -> None:
        # The rows have been through float32; half a millionth is less than one image of any validation split.
        self.metrics, self.most = metrics, error + 5e-7

    def _ask(self, trainer: L.Trainer) -> None:
        if any(row["val_error"] <= self.most for row in self.metrics.rows):
            trainer.should_stop = True

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._ask(trainer)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._ask(trainer)


class Best(L.Callback):
    """Keeps the weights of the epoch that validates best. They are in the checkpoint, so a kill loses none.

    Args:
        metrics: whose rows are compared.

    Attributes:
        epoch: that epoch, from 1; 0 before the first.
        weights: of it, on the CPU.
    """

    def __init__(self, metrics: Metrics) -> None:
        self.metrics, self.epoch, self.weights = metrics, 0, dict[str, Tensor]()

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "weights": self.weights}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.epoch, self.weights = state_dict["epoch"], state_dict["weights"]

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        task, rows = pl_module, self.metrics.rows
        assert isinstance(task, TrainingModule)
        best = min(
            rows, key=lambda row: (row.get("val_error", -row.get("val_dice", 0.0)), row["val_loss"])
        )  # the first
        if best is rows[-1]:
            self.epoch = best["epoch"]
            self.weights = {name: value.detach().cpu().clone() for name, value in task.model.state_dict().items()}


class Rate(L.Callback):
    """Begins with the learning rate of the schedule as it is now; a checkpoint of a shorter run has another."""

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        for each in trainer.lr_scheduler_configs:
            schedule = each.scheduler
            assert isinstance(schedule, LambdaLR)
            for group, rate in zip(schedule.optimizer.param_groups, _rates(schedule), strict=True):
                group["lr"] = rate


def _rates(schedule: LambdaLR) -> list[float]:
    """Return the rate of each group of parameters, at the step that is due."""
    both = zip(schedule.base_lrs, schedule.lr_lambdas, strict=True)
    return [float(base * factor(schedule.last_epoch)) for base, factor in both]


class Straight(TorchCheckpointIO):
    """Writes a checkpoint to the given file; Lightning goes through memory and the folder of temporary files."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        write_tensors(Path(path), checkpoint)


class OutOfTime(Exception):
    """Training stopped at the given time, and left a checkpoint to go on from."""


class Checkpoints(L.Callback):
    """Keeps ``checkpoints/last.ckpt`` and the one before it: at the end of every epoch, and in its midst at times.

    Args:
        run: where to.
        every_seconds: time after which a long epoch is saved in its midst.
        until: when to save and stop, on the clock of ``time.monotonic``; None for never. The step at hand is
            finished, and so are the evaluations after the last one.
    """

    def __init__(self, run: Run, every_seconds: float = 120.0, until: float | None = None) -> None:
        self.run, self.every_seconds, self.until = run, every_seconds, until
        self.saved = time.monotonic()

    def save(self, trainer: L.Trainer) -> None:
        """Write the checkpoint, whole or not at all, and never weights that training cannot go on from."""
        task = trainer.lightning_module
        assert isinstance(task, TrainingModule)
        task.require_sound()
        for name, value in task.model.named_parameters():
            task.require_finite(f"weight {name}", value.detach().abs().max().item())
        if trainer.is_global_zero:
            if self.run.checkpoint.is_file():
                write_atomically(self.run.previous, lambda path: link(self.run.checkpoint, path))
            write_atomically(self.run.checkpoint, trainer.save_checkpoint)
        else:  # which takes part, and writes nothing
            trainer.save_checkpoint(self.run.checkpoint)
        self.saved = time.monotonic()

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.is_last_batch:
            return  # the end of the epoch saves
        assert isinstance(pl_module, TrainingModule)
        due, late = pl_module.world.decided(lambda: (self._due(), self._late()))
        if late or due:
            self.save(trainer)
        if late:
            raise OutOfTime

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.save(trainer)
        last = trainer.should_stop or trainer.current_epoch + 1 == trainer.max_epochs
        assert isinstance(pl_module, TrainingModule)
        if not last and pl_module.world.decided(self._late):
            raise OutOfTime

    def _due(self) -> bool:
        return time.monotonic() - self.saved >= self.every_seconds

    def _late(self) -> bool:
        return self.until is not None and time.monotonic() >= self.until
