"""A trained network in use: what a user would pick to answer for some images on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from benchmarks import by_jax
from benchmarks.by_runtimes import RUNTIMES
from benchmarks.compiled import compiled
from benchmarks.contenders import take, torchs_convolutions
from torchcaps.checks import check_choice
from torchcaps.models import build
from torchcaps.models.matrix_capsnet import MatrixCapsNet
from torchcaps.training.export import plain_copy

#: Who takes part beside the runtimes.
OURS, EAGER, COMPILED, JAX = "ours", "plain PyTorch", "torch.compile", "JAX"


@dataclass(frozen=True)
class InUse:
    """The scores of some images.

    Attributes:
        who: "ours", "plain PyTorch", "torch.compile", "JAX", or one of :data:`~benchmarks.by_runtimes.RUNTIMES`.
        model: one of ``torchcaps.models.MODELS``.
        image_shape: (channels, height, width).
        n_classes: of the model.
        batch: images.
    """

    who: str = OURS
    model: str = "capsnet"
    image_shape: tuple[int, int, int] = (1, 28, 28)
    n_classes: int = 10
    batch: int = 1

    def prepare(self, device: torch.device) -> Callable[[], dict[str, Tensor]]:
        """Make the network and one batch, and return the call. Runtimes take as many threads as torch has."""
        model, images = self._made()
        call = _scorer(self.who, model.to(device), images.to(device))
        return lambda: {"scores": call()}

    def exact(self) -> dict[str, Tensor]:
        """Return the scores in float64."""
        model, images = self._made()
        with torch.no_grad():
            return {"scores": plain_copy(model).double()(images.double()).scores}

    def _made(self) -> tuple[nn.Module, Tensor]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = build(self.model, self.image_shape, self.n_classes).eval()
            return model, torch.rand(self.batch, *self.image_shape)


def _scorer(who: str, model: nn.Module, images: Tensor) -> Callable[[], Tensor]:
    if who in RUNTIMES:
        return RUNTIMES[who](model, images, torch.get_num_threads())
    if who == JAX:
        return by_jax.scorer(model, images)
    check_choice("who", who, (OURS, EAGER, COMPILED, JAX, *RUNTIMES))
    take(model, "ours" if who == OURS else in_plain_torch(model) if who == EAGER else "reference")
    network = compiled(model) if who == COMPILED else model
    convolutions = nullcontext if who == OURS else torchs_convolutions

    def call() -> Tensor:
        with torch.inference_mode(), convolutions():
            return network(images).scores

    return call


def in_plain_torch(model: nn.Module) -> str:
    """Name the contender that routes a network in plain PyTorch."""
    return "stored_votes" if isinstance(model, MatrixCapsNet) else "reference"
