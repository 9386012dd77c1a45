"""The checkpoint that a run goes on from: whole, of this model, and the one before it where the last is damaged."""

from __future__ import annotations

import logging
from pathlib import Path

import torch
from torch import nn

from torchcaps.training.run import Run

#: What training goes on from.
_HELD = {"epoch", "global_step", "loops", "callbacks", "optimizer_states", "lr_schedulers"}


def resumable(run: Run, model: nn.Module) -> str | None:
    """Return the path of the last checkpoint, once it is known to be whole and this model's; None if there is none.

    A damaged one is put aside as ``damaged.ckpt``, and the one before it takes its place.

    Raises:
        ValueError: it is not, nor is the one before it; training from scratch instead would lose what it holds.
    """
    if run.checkpoint.is_file():
        try:
            shapes = _shapes_in(run.checkpoint)
        except ValueError as error:
            if not run.previous.is_file():
                raise ValueError(f"{error}. Remove it to start again.") from error
            shapes = _shapes_in(run.previous)
            logging.getLogger("torchcaps").warning("%s; going on from the one before it, %s", error, run.previous)
            run.checkpoint.replace(run.checkpoint.with_name("damaged.ckpt"))
            run.previous.replace(run.checkpoint)
    elif run.previous.is_file():  # a kill came between these two
        shapes = _shapes_in(run.previous)
        run.previous.replace(run.checkpoint)
    else:
        return None
    return _fitting(run.checkpoint, shapes, model)


def _shapes_in(checkpoint: Path) -> dict[str, torch.Size]:
    """Return the shapes of the weights, once the file is known to be readable; nothing in it is executed."""
    try:
        content = torch.load(checkpoint, weights_only=True, map_location="cpu")
        shapes = {name: value.shape for name, value in content["state_dict"].items()}
        missing = _HELD - content.keys()
        if missing:
            raise ValueError(f"it lacks {', '.join(sorted(missing))}")
        return shapes
    except Exception as error:  # torch raises whatever the broken bytes lead it to
        raise ValueError(f"{checkpoint} is not a whole checkpoint: {error}") from error


def _fitting(checkpoint: Path, shapes: dict[str, torch.Size], model: nn.Module) -> str:
    """Return the path, once the weights in it are known to be this model's.

    Raises:
        ValueError: they are not.
    """
    now = {f"model.{name}": value.shape for name, value in model.state_dict().items()}
    older = {name: shape for name, shape in now.items() if name.endswith(".scale")}  # which kept no factors
    if older | shapes != now:
        raise ValueError(f"{checkpoint} is the checkpoint of another model. Remove it to start again.")
    return str(checkpoint.absolute())  # Lightning takes what begins with "http" for an address


def require_seen(checkpoint: Path) -> None:
    """Refuse a checkpoint that the first process sees and this one does not."""
    if not checkpoint.is_file():
        raise ValueError(f"out must be a folder that all machines see, got {checkpoint}, which is not on all")
