"""The convolution of few places, compiled and as a product, against the library's in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.backends import needs_cpu
from torchcaps.layers import PrimaryCaps
from torchcaps.ops import conv2d, few_places
from torchcaps.ops.few_places import few_places_conv2d

#: B, C, H, W, C', K_h, K_w, stride, padding: one place; several tiles of places and of channels, and what is left over;
#: more channels than a stretch has; a kernel that is no square; a stride beyond the kernel; many images.
SIZES = [
    (1, 5, 3, 3, 16, 3, 3, 1, 0),
    (1, 7, 20, 20, 112, 9, 9, 2, 0),
    (3, 130, 6, 7, 48, 3, 2, 1, 1),
    (2, 257, 5, 5, 80, 2, 2, 1, 0),
    (1, 3, 9, 11, 16, 2, 4, 5, 2),
    (40, 2, 7, 7, 32, 3, 3, 1, 0),
]


def tensors(sizes: tuple[int, ...], dtype: torch.dtype, bias: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    n, n_in, height, width, n_out, rows, columns, *_ = sizes
    weight = torch.randn(rows, columns, n_in, n_out, dtype=dtype).permute(3, 2, 0, 1)
    return torch.randn(n, n_in, height, width, dtype=dtype), weight, torch.randn(n_out, dtype=dtype) if bias else None


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note which way is taken."""
    found: list[str] = []
    for way in ("_compiled", "_by_product"):
        function = getattr(few_places, way)
        monkeypatch.setattr(few_places, way, lambda *given, f=function, w=way: found.append(w) or f(*given))
    return found


@pytest.mark.parametrize("way", [pytest.param("_compiled", marks=needs_cpu), "_by_product"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_is_convolution(
    sizes: tuple[int, ...], dtype: torch.dtype, bias: bool, way: str, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, weight, b = tensors(sizes, dtype, bias)
    stride, padding = sizes[-2:]
    if way == "_by_product":
        monkeypatch.setattr(few_places, "why_not", lambda _: "no compiler")
    exact = F.conv2d(x.double(), weight.double(), None if b is None else b.double(), stride=stride, padding=padding)
    for given in (x, x.to(memory_format=torch.channels_last)):
        found = few_places_conv2d(given, weight, b, stride, padding)
        tolerance = 1e-12 if dtype == torch.float64 else 2e-6 * exact.abs().max().item()
        torch.testing.assert_close(found.double(), exact, rtol=0, atol=tolerance)
        assert found.is_contiguous(memory_format=torch.channels_last)
    assert asked == [way, way]


@needs_cpu
def test_threads_change_nothing() -> None:
    x, weight, b = tensors(SIZES[1], torch.float32, True)
    found = []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        found.append(few_places_conv2d(x, weight, b, 2, 0))
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


@needs_cpu
def test_which_convolutions_it_is_for(asked: list[str]) -> None:
    """Those whose weight lies as that of primary capsules does; others, and training, are left alone."""
    x, weight, b = tensors((1, 6, 9, 8, 16, 3, 4, 2, 0), torch.float32, True)
    with torch.no_grad():
        for n in (1, 33):
            conv2d(x.repeat(n, 1, 1, 1), weight, b, stride=2)
        assert asked == ["_compiled", "_compiled"]
        conv2d(x, weight[:5], b[:5], stride=2)  # type: ignore[index]
        conv2d(x, weight.contiguous(), b, stride=2)
        conv2d(x.repeat(200, 1, 1, 1), weight, b, stride=2)
        conv2d(x.bfloat16(), weight.bfloat16(), b.bfloat16(), stride=2)  # type: ignore[union-attr]
        with torch.autocast("cpu", torch.bfloat16):
            conv2d(x, weight, b, stride=2)
        torch.func.vmap(lambda x: conv2d(x, weight, b, stride=2))(x[None])
    conv2d(x, weight, b, stride=2)
    assert asked == ["_compiled", "_compiled", "_by_product"]  # the last of bfloat16


def test_no_weight_is_kept() -> None:
    """However a weight is changed, the next answer is by the new one."""
    layer, x = PrimaryCaps(3, 2, 8, 3, stride=2), torch.rand(1, 3, 9, 9)
    other = PrimaryCaps(3, 2, 8, 3, stride=2)

    def answers() -> None:
        with torch.inference_mode():
            found = layer(x).pose
        assert torch.allclose(found, layer(x).pose.detach(), atol=1e-6)
        assert not torch.allclose(found, before, atol=1e-3)

    with torch.inference_mode():
        before = layer(x).pose.clone()
    with torch.no_grad():
        layer.weight.mul_(-2)
    answers()
    layer.weight.data.mul_(-3)
    answers()
    layer.weight.detach().numpy()[:] += 1
    answers()
    layer.load_state_dict(other.state_dict())
    answers()
    layer.weight.data = torch.randn_like(layer.weight)
    answers()
    layer.double().float()
    answers()
