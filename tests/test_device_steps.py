"""A training step on a GPU: the host waits for nothing, and the same step gives the same bits.

To wait is to read from the device or to copy to it. That leaves a GPU idle, and is an error while a CUDA graph is
captured. Bits differ where numbers are added as they come, by atomics. No GPU is needed to see either: tensors
without values, on the "meta" device, stand for those that cannot be read. Where there is a GPU, it is asked too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.battery import SUBJECTS
from torchcaps.data.augment import crop, shift
from torchcaps.models import MODELS, Reconstruction, build
from torchcaps.ops import (
    dice_loss,
    margin_loss,
    mask_capsules,
    pixel_margin_loss,
    pose_loss,
    reconstruction_loss,
    spread_loss,
    transform_pose,
    warp,
    weighted_cross_entropy,
)
from torchcaps.optim import Muon, groups
from torchcaps.testing import Subject
from torchcaps.types import SegmentationOutput, StackedOutput

DEVICES = ["meta", *(["cuda"] if torch.cuda.is_available() else [])]
#: What makes tensors from numbers of the host.
_FROM_HOST = (torch.tensor, torch.as_tensor, torch.asarray, Tensor.new_tensor)


#: Of these the result's shape is a matter of values only where an index is a mask.
_INDEXING = (torch.ops.aten.index.Tensor,)


#: These add by atomics on CUDA, or refuse to work where ``use_deterministic_algorithms`` is asked for. Source: its
#: documentation, and the kernels' calls of ``alertNotDeterministic``.
_SCATTERED = {
    *("index_add", "index_put", "scatter_add", "scatter_reduce", "put", "grid_sampler_2d_backward", "histc"),
    *("embedding_dense_backward", "embedding_bag", "bincount", "cumsum", "kthvalue", "median", "nll_loss2d_forward"),
    *("_adaptive_avg_pool2d_backward", "adaptive_max_pool2d_backward", "max_pool3d_with_indices_backward"),
    *("upsample_bilinear2d_backward", "upsample_bicubic2d_backward", "_upsample_bilinear2d_aa_backward"),
    *("reflection_pad2d_backward", "replication_pad2d_backward", "fractional_max_pool2d_backward", "ctc_loss"),
}


class Waits(AssertionError):
    """The host would have waited, or bits have differed."""


class _NoNumbers(TorchFunctionMode):
    """Refuses what copies numbers to the device before it is one operation among others."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        found = func(*args, **kwargs)
        if func in _FROM_HOST and found.device.type != "cpu":
            raise Waits(f"{func.__name__} copies numbers from the host to {found.device}")
        if func in (Tensor.__getitem__, Tensor.__setitem__) and args[0].device.type != "cpu":
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            if any(isinstance(one, list) for one in index):
                raise Waits("an index of numbers is copied from the host")
        return found


class _NoCopies(TorchDispatchMode):
    """Refuses operations between devices, those whose result's shape is a matter of values, and scattered sums."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        kinds = {x.device.type for x in given if x.dim() > 0 or x.device.type != "cpu"}
        if kinds != {"cpu"} and torch.Tag.data_dependent_output in func.tags:
            raise Waits(f"{func} reads from the device")
        masks = any(x.dtype in (torch.bool, torch.uint8) for x in given[1:])
        if kinds != {"cpu"} and torch.Tag.dynamic_output_shape in func.tags and (masks or func not in _INDEXING):
            raise Waits(f"the shape of what {func} makes is read from the device")
        if kinds != {"cpu"} and func.overloadpacket.__name__.removesuffix("_") in _SCATTERED:
            raise Waits(f"{func} adds in another order each time")
        found = func(*args, **kwargs)
        made = {x.device.type for x in tree_leaves(found) if isinstance(x, Tensor)}
        if given and len(kinds | made) > 1:
            raise Waits(f"{func} copies between {', '.join(sorted(kinds | made))}")
        return found


@pytest.fixture(autouse=True)
def _deterministic_algorithms() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@contextmanager
def guard(device: str) -> Iterator[None]:
    """Refuse whatever makes the host wait for the device, or the device add in another order each time."""
    if device == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")
        return
    with _NoCopies(), _NoNumbers():
        yield


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x: x.sum().item(),
        lambda x: bool((x > 0).any()),
        lambda x: x.tolist(),
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        lambda x: x.unique(),
        lambda x: torch.equal(x, x),
        lambda x: x.cpu(),
        lambda x: torch.arange(4, device="cpu").to(x.device),
        lambda x: x + torch.ones(5, device="cpu"),
        lambda x: x[torch.arange(2, device="cpu")],
        lambda x: x.new_tensor([1.0, 2.0]),
        lambda x: torch.tensor([1.0, 2.0], device=x.device),
        lambda x: x[[0, 1]],
        lambda x: x.copy_(torch.ones(4, 5, device="cpu")),
        lambda x: x.repeat_interleave(torch.arange(4, device=x.device), dim=0),
        lambda x: x.index_add(0, torch.zeros(4, dtype=torch.int64, device=x.device), x),
        lambda x: x.scatter_add(0, torch.zeros(4, 5, dtype=torch.int64, device=x.device), x),
        lambda x: x.requires_grad_()[torch.zeros(2, dtype=torch.int64, device=x.device)].sum().backward(),
    ],
)
def test_the_guard_sees_what_waits(wrong: Callable[[Tensor], object]) -> None:
    x = torch.ones(4, 5, device="meta")
    with pytest.raises((Waits, RuntimeError)), guard("meta"):
        wrong(x)


@pytest.mark.parametrize(
    ("subject", "device"),
    [
        pytest.param(each, device, id=f"{each.name}-{device}")
        for device in DEVICES
        for each in SUBJECTS
        if "-cpu" not in each.name and (device == "cuda" or "triton" not in each.name)
    ],
)
def test_what_routes(subject: Subject, device: str) -> None:
    module = subject.make().to(device)
    x = torch.rand(3, *subject.shape, device=device, requires_grad=True)

    def step() -> None:
        routed = module(x)
        (routed.pose.square().sum() + routed.activation.sum()).backward()

    _watch(step, device)


#: For each model images of a size that it takes, and options that make it small.
_SIZES: dict[str, tuple[tuple[int, int, int], dict[str, Any]]] = {
    "capsnet": ((1, 28, 28), {"channels": 8, "n_types": 2}),
    "capsnet_deep": ((1, 28, 28), {"channels": 8, "n_types": 2}),
    "matrix_capsnet": ((2, 32, 32), {"A": 4, "B": 2, "C": 2, "D": 2}),
    "matrix_capsnet_deep": ((2, 32, 32), {"A": 4, "B": 2, "C": 2, "D": 2}),
    "matrix_capsnet_small": ((2, 32, 32), {"A": 4, "B": 2, "C": 2, "D": 2}),
    "norb_cnn": ((2, 32, 32), {}),
    "matched_cnn": ((1, 28, 28), {"n_parameters": 3000}),
    "multimnist_cnn": ((1, 36, 36), {}),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", MODELS)
def test_a_training_step_of(name: str, device: str) -> None:
    shape, options = _SIZES.get(name, ((1, 28, 28), {}))
    model = build(name, shape, 4, **options).to(device)
    images, labels = torch.rand(3, *shape, device=device), torch.zeros(3, dtype=torch.int64, device=device)
    matrices = torch.eye(3, device=device).repeat(3, 1, 1)
    optimizer = torch.optim.Adam(model.parameters(), capturable=True) if device == "cuda" else None

    def step() -> None:
        found = model(images, matrices) if hasattr(model, "recognise") else model(images)
        _loss(model, found, images, labels, matrices).backward()
        if optimizer is not None:
            optimizer.step()

    _watch(step, device)
    missing = [name for name, weight in model.named_parameters() if weight.grad is None]
    assert not missing, missing


def _watch(step: Callable[[], None], device: str) -> None:
    if device == "cuda":
        step()  # compiles, and makes what is made once
    with guard(device):
        step()


def _loss(model: nn.Module, found: Any, images: Tensor, labels: Tensor, matrices: Tensor) -> Tensor:
    """All that recipes ask of such a model."""
    if isinstance(found, Reconstruction):
        error = reconstruction_loss(found.images, images)
        if not hasattr(model, "unit"):  # an auto-encoder without poses
            return error
        pose = model.encode(images).pose  # type: ignore[operator]
        return error + pose_loss(pose, transform_pose(found.capsules.pose, matrices), model.unit)  # type: ignore[arg-type]
    if isinstance(found, StackedOutput):
        return found.loss
    if isinstance(found, SegmentationOutput):
        masks = images.gt(0.5).float().expand_as(found.scores)
        of_pixels = dice_loss(found.scores, masks) + pixel_margin_loss(found.scores, masks)
        of_pixels = of_pixels + weighted_cross_entropy(found.scores, masks)
        decoder: Any = getattr(model, "decoder", None)
        return of_pixels if decoder is None else of_pixels + decoder(found.capsules[-1], masks).mean()
    loss = margin_loss(found.scores, labels) + spread_loss(found.scores.sigmoid(), labels, 0.5)
    loss = loss + F.cross_entropy(found.scores, labels)
    decoder = getattr(model, "decoder", None)
    if decoder is None:
        return loss
    each = decoder.each(found.capsules[-1], labels[:, None])
    return loss + reconstruction_loss(decoder(found.capsules[-1], labels), images) + each.sum()


@pytest.mark.parametrize("device", DEVICES)
def test_losses_masks_and_warps(device: str) -> None:
    lengths = torch.rand(3, 4, device=device, requires_grad=True)
    pose = torch.rand(3, 4, 5, device=device, requires_grad=True)
    images = torch.rand(3, 1, 6, 6, device=device)
    labels, present = torch.zeros(3, dtype=torch.int64, device=device), torch.ones(3, 4, device=device)
    matrices, corners = torch.eye(3, device=device).repeat(3, 1, 1), torch.zeros(3, 2, dtype=torch.int64, device=device)

    def step() -> None:
        loss = margin_loss(lengths, labels) + margin_loss(lengths, present) + spread_loss(lengths, labels, 0.2)
        masked = [mask_capsules(pose, target).sum() for target in (None, labels, present)]
        (loss + sum(masked)).backward()
        warp(images, matrices)
        crop(shift(images, corners, 2), corners, (3, 3))

    _watch(step, device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["capsnet_small", "matrix_capsnet_small"])
def test_a_step_of_muon(name: str, device: str) -> None:
    shape, options = _SIZES.get(name, ((1, 28, 28), {}))
    model = build(name, shape, 4, **options).to(device)
    optimizer = Muon(groups(model, 1e-3), 1e-3, capturable=True)
    for group in optimizer.param_groups:
        group["lr"] = torch.full((), 1e-3, device=device)
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight)
    optimizer.step()  # makes the state
    with guard(device):
        optimizer.step()
