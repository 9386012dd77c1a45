"""Batch normalization over the batch of all processes.

``torch.nn.SyncBatchNorm`` does that on GPUs and refuses a CPU, and takes another module's place. Here the module stays
what it is, and so do its names in a ``state_dict``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from torchcaps.training.processes import World


@contextmanager
def over_processes(model: nn.Module, world: World) -> Iterator[None]:
    """Let a model's batch normalizations take the statistics of all processes' images for a while."""
    layers = [each for each in model.modules() if isinstance(each, _BatchNorm)] if world.size > 1 else []
    for layer in layers:
        vars(layer)["forward"] = partial(batch_norm, layer, world=world)  # goes before its class's
    try:
        yield
    finally:
        for layer in layers:
            del vars(layer)["forward"]


def batch_norm(layer: _BatchNorm, x: Tensor, *, world: World) -> Tensor:
    """Normalize as the layer does, in training by mean and variance over the examples of all processes.

    Args:
        layer: whose running statistics move, with the unbiased variance, as PyTorch has it.
        x: this process's part of the batch, ``[B, C, ...]``.
        world: the processes. All must call this equally often.

    Returns:
        What one process would return for these examples in the whole batch.
    """
    if not layer.training:
        return type(layer).forward(layer, x)
    axes = [axis for axis in range(x.dim()) if axis != 1]
    shape = [1, -1] + [1] * (x.dim() - 2)
    wide = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
    n = world.sum(wide.new_tensor(float(x.numel() // x.shape[1])))
    mean = world.sum(wide.sum(axes)) / n
    centred = wide - mean.view(shape)
    variance = world.sum(centred.square().sum(axes)) / n  # of what is centred: no digits cancel
    if layer.track_running_stats:
        _move(layer, mean, variance * (n / (n - 1)))
    made = centred * (variance + layer.eps).rsqrt().view(shape)
    if layer.affine:
        made = made * layer.weight.view(shape) + layer.bias.view(shape)
    return made.to(x.dtype)


@torch.no_grad()
def _move(layer: _BatchNorm, mean: Tensor, variance: Tensor) -> None:
    """Move the running statistics towards those of the batch."""
    assert layer.num_batches_tracked is not None
    assert layer.running_mean is not None
    assert layer.running_var is not None
    layer.num_batches_tracked.add_(1)
    by = 1 / layer.num_batches_tracked.item() if layer.momentum is None else layer.momentum
    layer.running_mean.lerp_(mean.to(layer.running_mean.dtype), by)
    layer.running_var.lerp_(variance.to(layer.running_var.dtype), by)
