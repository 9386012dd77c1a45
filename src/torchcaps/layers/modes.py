"""Evaluate, inspect or unwrap any model, and leave it as it was."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from torchcaps.checks import check_module
from torchcaps.layers.base import RoutedLayer

_WRAPPERS = (AveragedModel, nn.DataParallel, nn.parallel.DistributedDataParallel)
_Function = TypeVar("_Function", bound=Callable[..., Any])


def unwrap(model: nn.Module) -> nn.Module:
    """Return the model inside the wrappers of torch: a compiled, averaged or data-parallel one."""
    while isinstance(model, _WRAPPERS) or hasattr(model, "_orig_mod"):
        model = cast(nn.Module, model._orig_mod if hasattr(model, "_orig_mod") else model.module)
    return model


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Switch a model to evaluation mode for a while, then restore the mode of each of its parts.

    Raises:
        ValueError: ``model`` is no module.
    """
    check_module("model", model)
    training = [part for part in model.modules() if part.training]
    model.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True


@contextmanager
def full_gradient(model: nn.Module) -> Iterator[None]:
    """Backpropagate through all routing iterations for a while: the gradient of the last one is no derivative.

    Raises:
        ValueError: ``model`` is no module.
    """
    check_module("model", model)
    layers = [part for part in model.modules() if isinstance(part, RoutedLayer)]
    routings = [layer.routing for layer in layers]
    for layer in layers:
        layer.routing = layer.routing.with_full_gradient()
    try:
        yield
    finally:
        for layer, routing in zip(layers, routings, strict=True):
            layer.routing = routing


def inspects_model(function: _Function) -> _Function:
    """Decorate a function whose first argument is a model: run it without gradients and in evaluation mode.

    Raises:
        ValueError: it is no function.
    """
    if not callable(function):
        raise ValueError(f"function must be one that can be called, got {function!r:.80}")

    @functools.wraps(function)
    def wrapped(model: nn.Module, *args: Any, **kwargs: Any) -> Any:
        with torch.no_grad(), eval_mode(model):
            return function(model, *args, **kwargs)

    return cast(_Function, wrapped)
