"""A training step as one function of memory that stays where it is, which a GPU can record and repeat."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from torchcaps.ops import spread_margin
from torchcaps.training.config import Experiment
from torchcaps.training.environment import seed
from torchcaps.training.examples import Batch
from torchcaps.training.objective import Loss, answer, total_loss

#: Steps before one is recorded: kernels are compiled, libraries choose theirs, the optimizer makes its state.
_WARM_UP = 3
#: Replays that are compared with the step itself, whose rate, seed and number differ.
_CHECKS = 2
#: How far apart the two may be, relative to the change of the weights, at least. The same kernels give the same bits,
#: except those that add in any order.
_APART = 0.02


class Unrecordable(Exception):
    """A step that cannot be recorded, and why."""


class Recorder(Protocol):
    """How steps are recorded; :class:`~torchcaps.training.cuda_graph.CudaGraph` is one."""

    def run(self, work: Callable[[], Tensor]) -> Tensor:
        """Run it where it will be recorded."""
        ...

    def record(self, work: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Return what does the same again, without having run it.

        Raises:
            Unrecordable: with the reason.
        """
        ...


class Fault(NamedTuple):
    """The first number that was none.

    Attributes:
        name: "loss" or "gradient".
        value: NaN or infinity.
        step: of the training.
    """

    name: str
    value: float
    step: int


def clip_gradients(model: nn.Module, most: float) -> Tensor:
    """Scale a model's gradients down to a norm of ``most``, where that is not 0; returns the norm they had."""
    trained = [p for p in model.parameters() if p.grad is not None]
    norm = torch.nn.utils.get_total_norm([p.grad for p in trained if p.grad is not None])
    if most:  # Lightning would refuse to, with a fused Adam in bfloat16
        torch.nn.utils.clip_grads_with_norm_(trained, most, norm)
    return norm


class WholeStep:
    """Forward pass, backward pass and the optimizer's step, without a wait for the device.

    All that changes from step to step lies in tensors: the batch, the learning rate, the spread loss's margin and
    the step's number. Random numbers are those of the seed that was set before the call, replayed or not. The first
    replays are compared with the step itself; where they differ, or nothing can be recorded, one line is logged and
    training goes on step by step.

    Args:
        config: the experiment.
        model: on the device where it is trained.
        optimizer: of its parameters. A rate that the schedule sets as a number is handed to it as a tensor.
        recorder: how steps are recorded; None for not at all.
    """

    def __init__(
        self,
        config: Experiment,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        recorder: Recorder | None,
        own_loss: Loss | None = None,
    ) -> None:
        self.config, self.model, self.optimizer, self.recorder = config, model, optimizer, recorder
        self.own_loss = own_loss
        device = next(model.parameters()).device
        self._kind = device.type
        # A fused Adam reads float32 from a GPU, and on a CPU whatever it is.
        rate = torch.float64 if self._kind == "cpu" else torch.float32
        self._rate, self._margin = torch.zeros((), dtype=rate, device=device), torch.zeros((), device=device)
        self._step = torch.zeros((), dtype=torch.float64, device=device)
        self._first = torch.full((2,), -1.0, dtype=torch.float64, device=device)  # step at which loss or gradient …
        self._value = torch.zeros_like(self._first)  # … first was this, which is no number
        self._held: Batch | None = None
        self._replay: Callable[[], Tensor] | None = None
        self._taken = self._checked = 0

    def __call__(self, batch: Batch, step: int, progress: float) -> Tensor:
        """Take one step.

        Args:
            batch: on the model's device.
            step: its number.
            progress: part of the training that is done, 0 … 1.

        Returns:
            The loss, detached; the next call may overwrite it.
        """
        self._step.fill_(step)
        self._rate.fill_(float(self.optimizer.param_groups[0]["lr"]))
        if self.config.loss == "spread":
            self._margin.fill_(spread_margin(progress, self.config.margin))
        self._taken += 1
        held = self._hold(batch)
        if held is None:
            return self._run(batch)
        if self.recorder is None or self._taken <= _WARM_UP:
            return self._run(held)
        return self._checked_replay() if self._replay is None or self._checked < _CHECKS else self._replay()

    def fault(self) -> Fault | None:
        """Return the first loss or gradient that was no number, of all steps so far. It waits for them."""
        steps, values = torch.stack((self._first, self._value)).tolist()
        found = [
            Fault(name, value, int(step))
            for name, step, value in zip(("loss", "gradient"), steps, values, strict=True)
            if step >= 0
        ]
        return min(found, key=lambda fault: fault.step, default=None)

    def _work(self, batch: Batch) -> Tensor:
        """Take the step that is recorded. Autocast is for the forward pass, as Lightning has it."""
        self.optimizer.zero_grad()
        output = answer(self.model, batch)
        loss = total_loss(self.config, self.model, output, batch, margin=self._margin, loss=self.own_loss)
        with torch.autocast(self._kind, enabled=False):
            loss.backward()
            self._note(loss.detach(), clip_gradients(self.model, self.config.optim.clip))
            with _rate_in(self.optimizer, self._rate):
                self.optimizer.step()
        return loss.detach()

    def _note(self, *values: Tensor) -> None:
        """Keep the first step at which each is no number."""
        now = torch.stack([value.double() for value in values])
        new = (self._first < 0) & ~now.isfinite()
        self._value.copy_(torch.where(new, now, self._value))
        self._first.copy_(torch.where(new, self._step, self._first))

    def _run(self, batch: Batch) -> Tensor:
        work = partial(self._work, batch)
        return work() if self.recorder is None else self.recorder.run(work)

    def _hold(self, batch: Batch) -> Batch | None:
        """Copy a batch to where all steps read it, recorded or not; None if its shapes are not those of the first."""
        if self._held is None:
            told = batch.transformation
            images, labels, parts = map(_place_for, (batch.images, batch.labels, batch.parts))
            masks = None if batch.masks is None else _place_for(batch.masks)
            self._held = Batch(images, labels, parts, None if told is None else _place_for(told), masks=masks)
        here, there = _tensors(batch), _tensors(self._held)
        if [each.shape for each in here] != [each.shape for each in there]:
            return None
        for to, each in zip(there, here, strict=True):
            to.copy_(each)
        return self._held

    def _checked_replay(self) -> Tensor:
        """Take the step itself, then the same again as a replay, and believe that only if it did the same."""
        assert self.recorder is not None
        assert self._held is not None
        state, weights = self._state(), list(self.model.parameters())
        before = _copies(state)
        loss = self._run(self._held).clone()
        after, stepped = _copies(state), _copies(weights)
        _put(state, before)
        seed(torch.initial_seed(), self._step.device)
        try:
            if self._replay is None:
                _require_tensors(self.optimizer)
                self.optimizer.zero_grad()  # before what is free is given back, for the recording's own memory
                self._replay = self.recorder.record(partial(self._work, self._held))
            replayed = self._replay()
            apart = _norm(_copies(weights), stepped)
            change = _norm(stepped, before[: len(weights)])
            if apart <= _APART * change or apart <= 3 * self._unsure(state, before, stepped):
                self._checked += 1
                return replayed
            reason = (
                f"its weights are {apart:.2g} away from those of the step itself, which changed them by {change:.2g}"
            )
        except Unrecordable as error:
            reason = str(error)
        _put(state, after)
        self.recorder = self._replay = None
        self.optimizer.zero_grad()  # recorded gradients keep the memory of all that was recorded
        logging.getLogger("torchcaps").warning("steps are taken one by one, not replayed as a CUDA graph: %s", reason)
        return loss

    def _unsure(self, state: list[Tensor], before: list[Tensor], stepped: list[Tensor]) -> float:
        """Measure how far the step, taken again, is from itself: kernels that add in any order may lead far apart."""
        assert self._held is not None
        _put(state, before)
        seed(torch.initial_seed(), self._step.device)
        self._run(self._held)
        return _norm(_copies(list(self.model.parameters())), stepped)

    def _state(self) -> list[Tensor]:
        """Return all that a step changes, the parameters first."""
        kept = [value for state in self.optimizer.state.values() for value in state.values()]
        kept = [value for value in kept if isinstance(value, Tensor)]
        return [*self.model.parameters(), *self.model.buffers(), *kept, self._first, self._value]


def _place_for(x: Tensor) -> Tensor:
    """Memory of the same layout, for sums over another one are rounded otherwise."""
    overlaps = any(size > 1 and stride == 0 for size, stride in zip(x.shape, x.stride(), strict=True))
    return torch.empty_strided(
        x.shape, x.contiguous().stride() if overlaps else x.stride(), dtype=x.dtype, device=x.device
    )


def _tensors(batch: Batch) -> list[Tensor]:
    return [each for each in batch if isinstance(each, Tensor)]


@contextmanager
def _rate_in(optimizer: torch.optim.Optimizer, rate: Tensor) -> Iterator[None]:
    """Put the learning rate in memory for a while, and tell the optimizer that a graph may hold its step.

    The numbers stay in its groups, and so in checkpoints, which other devices may go on from.
    """
    before = [dict(group) for group in optimizer.param_groups]
    try:
        for group in optimizer.param_groups:
            group["lr"] = rate
            if "capturable" in group:
                group["capturable"] = rate.device.type == "cuda"
        yield
    finally:
        for group, values in zip(optimizer.param_groups, before, strict=True):
            group.update(values)


def _require_tensors(optimizer: torch.optim.Optimizer) -> None:
    """See that the optimizer counts in memory: a number of Python's would be the same in every replay."""
    for state in optimizer.state.values():
        for name, value in state.items():
            if not isinstance(value, Tensor):
                raise Unrecordable(f"{type(optimizer).__name__} keeps its {name} as a {type(value).__name__}")


def _copies(tensors: list[Tensor] | list[nn.Parameter]) -> list[Tensor]:
    """On the CPU, where there is room."""
    return [each.detach().to("cpu", copy=True) for each in tensors]


@torch.no_grad()
def _put(tensors: list[Tensor], copies: list[Tensor]) -> None:
    for each, copy in zip(tensors, copies, strict=True):
        each.copy_(copy)


def _norm(some: list[Tensor], others: list[Tensor]) -> float:
    """Return ‖some − others‖ over all of their numbers."""
    return sum((a.double() - b.double()).square().sum().item() for a, b in zip(some, others, strict=True)) ** 0.5
