"""TF32, in which PyTorch runs float32 convolutions on Ampere and newer GPUs: switched off while results are checked.

Its products have 10 bits of fraction: gradients of a CapsNet are then off by 1.4e-2, whatever does the routing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from torchcaps.training.environment import tf32


@contextmanager
def without_tf32() -> Iterator[None]:
    """Run float32 convolutions and products in float32; afterwards the switches stand as they were.

    From 2.9 on PyTorch keeps each switch twice, and reading the old one raises a RuntimeError where only the new one
    was set. torch.compile reads the old one still. So what is off stays untouched, and what is on is switched by the
    interface that the caller used.
    """
    on = tf32()
    with ExitStack() as stack:
        if "convolutions" in on:
            stack.enter_context(_without_convolutions())
        if "products" in on:
            stack.enter_context(_without_products())
        yield


@contextmanager
def _without_convolutions() -> Iterator[None]:
    cudnn: Any = torch.backends.cudnn  # its module has what its stub has not
    try:
        _ = cudnn.allow_tf32
    except RuntimeError:  # the caller set the new switch
        cudnn.conv.fp32_precision = "ieee"
        try:
            yield
        finally:
            cudnn.conv.fp32_precision = "tf32"
        return
    cudnn.allow_tf32 = False
    try:
        yield
    finally:
        cudnn.allow_tf32 = True


@contextmanager
def _without_products() -> Iterator[None]:
    matmul = torch.backends.cuda.matmul
    try:
        before = torch.get_float32_matmul_precision()
    except RuntimeError:
        before = "highest"
    if before == "highest":  # and yet products are on: by the new switch
        matmul.fp32_precision = "ieee"
        try:
            yield
        finally:
            matmul.fp32_precision = "tf32"
        return
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
