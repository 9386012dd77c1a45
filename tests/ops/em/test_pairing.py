"""Fused EM routing against the reference, by the pairing rule."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st
from torch import Tensor

from tests.backends import needs_cpu
from tests.pairing import Inputs, assert_paired, distance, double, largest, outcome
from torchcaps.ops import conv_em_routing, em_routing, which_backend
from torchcaps.ops.em import cpu as cpu_em

pytestmark = needs_cpu

#: B, (T, H, W), kernel, J, stride: dense; more types of parent than lanes; an oblong kernel and unequal strides with
#: children that no parent sees; many places to a child; places apart; a kernel that covers the map; one
#: type; more votes of a type than are made at once; many children to a parent; many images.
GEOMETRIES = [
    (3, (7, 1, 1), (1, 1), 5, (1, 1)),
    (2, (300, 1, 1), (1, 1), 10, (1, 1)),
    (2, (3, 7, 7), (3, 3), 17, (2, 2)),
    (2, (2, 8, 9), (3, 2), 19, (2, 3)),
    (1, (3, 6, 5), (3, 3), 4, (1, 1)),
    (1, (2, 9, 9), (2, 2), 3, (3, 3)),
    (2, (5, 4, 3), (4, 3), 5, (1, 1)),
    (1, (4, 5, 4), (3, 3), 1, (1, 1)),
    (1, (2, 13, 12), (3, 3), 17, (1, 1)),
    (1, (256, 6, 6), (6, 6), 2, (1, 1)),
    (12, (6, 1, 1), (1, 1), 3, (2, 3)),
]
#: With the named settings' λ the activations hardly depend on so few votes; with a small floor of the variance,
#: three iterations are chaotic in float32, in the reference as well.
SETTINGS = [
    {"settings": "paper", "final_lambda": 0.3, "variance_floor": 0.1},
    {"settings": "paper", "final_lambda": 0.3, "variance_floor": 0.1, "compete": "positions", "normalize": True},
    {"settings": "released", "final_lambda": 0.001},
    {"settings": "released", "final_lambda": 0.001, "compete": "all", "start": "parents"},
]


#: The shapes of a pose and of a transformation.
POSES = {"matrices": ((4, 4), (4, 4)), "vectors": ((16,), (16, 16))}
every_pose = pytest.mark.parametrize("poses", POSES)


def inputs(geometry: tuple[Any, ...], dtype: torch.dtype = torch.float32, poses: str = "matrices") -> Inputs:
    n, shape, kernel, n_out, _ = geometry
    pose, transformation = POSES[poses]
    return {
        "pose": torch.randn(n, *shape, *pose).to(dtype),
        "activation": torch.rand(n, *shape).to(dtype),
        "weight": (torch.randn(shape[0], *kernel, n_out, *transformation) / transformation[0] ** 0.5).to(dtype),
        "beta_u": (torch.randn(n_out) / 2).to(dtype),
        "beta_a": (torch.randn(n_out) / 2).to(dtype),
    }


def routing(**options: Any) -> Any:
    def function(backend: str, tensors: Inputs) -> Sequence[Tensor]:
        routed = conv_em_routing(**tensors, **options, backend=backend)  # type: ignore[arg-type]
        return [x for x in routed if x is not None]

    return function


@pytest.mark.parametrize("options", SETTINGS, ids=lambda x: "-".join(map(str, x.values())))
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
@every_pose
def test_geometries(poses: str, geometry: tuple[Any, ...], options: dict[str, Any]) -> None:
    assert_paired(routing(stride=geometry[-1], **options), inputs(geometry, poses=poses), "cpu")


@pytest.mark.parametrize("backprop", ["full", "last"])
@pytest.mark.parametrize("n_iters", [1, 2, 3, 4])
@pytest.mark.parametrize("options", SETTINGS, ids=lambda x: "-".join(map(str, x.values())))
@pytest.mark.parametrize("given", [(), ("coupling",), ("offset",)], ids=str)
@every_pose
def test_options(poses: str, given: tuple[str, ...], options: dict[str, Any], n_iters: int, backprop: str) -> None:
    geometry = (2, (3, 5, 6), (3, 3), 6, (1, 2))
    if "offset" in given:
        options = options | {"offset": torch.randn(3, 3, 3, *POSES[poses][0])}
    function = routing(
        stride=(1, 2), n_iters=n_iters, backprop=backprop, return_coupling="coupling" in given, **options
    )
    assert_paired(function, inputs(geometry, poses=poses), "cpu")


@pytest.mark.parametrize("options", SETTINGS, ids=lambda x: "-".join(map(str, x.values())))
@every_pose
def test_bfloat16(poses: str, options: dict[str, Any]) -> None:
    assert_paired(routing(stride=2, **options), inputs(GEOMETRIES[2], torch.bfloat16, poses), "cpu")


@pytest.mark.parametrize(
    "geometry",
    [(0, (3, 5, 4), (3, 3), 4, (1, 1)), (2, (0, 5, 4), (3, 3), 4, (1, 1)), (2, (3, 5, 4), (3, 3), 0, (1, 1))],
    ids=str,
)
@every_pose
def test_nothing_to_route(poses: str, geometry: tuple[Any, ...]) -> None:
    assert_paired(routing(), inputs(geometry, poses=poses), "cpu")


@every_pose
def test_strides_do_not_matter(poses: str) -> None:
    tensors = inputs(GEOMETRIES[2], poses=poses)
    strided = {k: x.transpose(0, -1).contiguous().transpose(0, -1) for k, x in tensors.items() if x is not None}
    assert not strided["pose"].is_contiguous()
    plain = outcome(routing(stride=2), tensors, "cpu")
    for name, x in outcome(routing(stride=2), strided, "cpu").items():  # type: ignore[arg-type]
        torch.testing.assert_close(x, plain[name], rtol=0, atol=0, msg=name)


@every_pose
def test_a_broken_image_breaks_no_other(poses: str) -> None:
    tensors = inputs(GEOMETRIES[-1], poses=poses)
    whole, pose = routing()("cpu", tensors), tensors["pose"]
    assert pose is not None
    pose[3] = torch.nan
    rest = torch.arange(len(pose)) != 3
    for found, wanted in zip(routing()("cpu", tensors), whole, strict=True):
        assert found[3].isnan().all()
        torch.testing.assert_close(found[rest], wanted[rest], rtol=0, atol=0)


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64", "aarch64", "arm64"), reason="as the processor does")
@pytest.mark.parametrize("threads", [1, 3])
@every_pose
def test_numbers_below_the_normal_ones_are_taken_for_0_there_alone(poses: str, threads: int) -> None:
    """Processors compute with them many times slower; the caller's threads stay as they were."""
    tensors = inputs((8, *GEOMETRIES[2][1:]), poses=poses)
    tensors["activation"] = torch.full_like(tensors["activation"], 1e-40)  # type: ignore[arg-type]
    torch.set_num_threads(threads)
    assert outcome(routing(stride=2), tensors, "reference")["gradient of pose"].abs().max() > 0
    assert outcome(routing(stride=2), tensors, "cpu")["gradient of pose"].abs().max() == 0
    assert bool((0.5 * torch.full((1 << 20,), 1e-40) > 0).all())


@pytest.mark.parametrize("n_images", [2, 35])
@every_pose
def test_threads_change_nothing(poses: str, n_images: int) -> None:
    tensors = inputs((n_images, *GEOMETRIES[2][1:]), poses=poses)
    one = outcome(routing(stride=2, return_coupling=True), tensors, "cpu")
    for threads in (2, 5):
        torch.set_num_threads(threads)
        for name, x in outcome(routing(stride=2, return_coupling=True), tensors, "cpu").items():
            torch.testing.assert_close(x, one[name], rtol=0, atol=0, msg=name)


@pytest.mark.parametrize("damping", [0.0, 0.1])
@pytest.mark.parametrize("case", ["off", "on", "equal", "huge and equal", "far"])
@every_pose
def test_extremes(poses: str, case: str, damping: float) -> None:
    """Votes whose variance is nothing beside their mean: it must not cancel."""
    tensors = inputs(GEOMETRIES[2], poses=poses)
    pose, activation, weight = tensors["pose"], tensors["activation"], tensors["weight"]
    assert pose is not None and activation is not None and weight is not None
    if case in ("off", "on"):
        activation.fill_(0.0 if case == "off" else 1.0)
    if "equal" in case:
        pose.fill_(1e4 if "huge" in case else 1.0)
        weight.fill_(1.0)
    if case == "far":
        pose.mul_(0.01).add_(3.0)
    function = routing(stride=2, damping=damping, variance_floor=1e-4)
    assert_paired(function, tensors, "cpu")


@limits(max_examples=60, deadline=None, derandomize=True, database=None)
@given(
    st.integers(1, 3),
    st.tuples(st.integers(1, 6), st.integers(1, 7), st.integers(1, 7)),
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
    st.integers(1, 20),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.integers(1, 3),
    st.sampled_from(SETTINGS),
    st.sampled_from(["full", "last"]),
    st.sampled_from(sorted(POSES)),
    st.integers(0, 2**32 - 1),
)
def test_any_sizes(
    n: int,
    shape: tuple[int, int, int],
    kernel: tuple[int, int],
    n_out: int,
    stride: tuple[int, int],
    n_iters: int,
    options: dict[str, Any],
    backprop: str,
    poses: str,
    seed: int,
) -> None:
    torch.manual_seed(seed)
    kernel = min(kernel[0], shape[1]), min(kernel[1], shape[2])
    function = routing(stride=stride, n_iters=n_iters, backprop=backprop, **{**options, "variance_floor": 0.1})
    tensors = inputs((n, shape, kernel, n_out, stride), poses=poses)
    assert_paired(function, tensors, "cpu")
    # In float64 a small mistake is not hidden by rounding.
    exact, ours = outcome(function, double(tensors), "reference"), outcome(function, double(tensors), "cpu")
    for name, wanted in exact.items():
        assert distance(ours[name], wanted) <= 1e-9 * (1 + largest(wanted)), name


def test_what_compiled_code_is_not_for() -> None:
    for d_in, d_out in ((8, 16), (16, 12)):
        vectors = (
            torch.randn(2, 5, d_in),
            torch.rand(2, 5),
            torch.randn(5, 3, d_in, d_out),
            torch.zeros(3),
            torch.ones(3),
        )
        em_routing(*vectors)
        with pytest.raises(
            ValueError, match=f"backend='cpu' wants vectors of 16 numbers, got d_in={d_in} and d_out={d_out}"
        ):
            em_routing(*vectors, backend="cpu")
    matrices = torch.randn(2, 5, 4, 4), torch.rand(2, 5), torch.randn(5, 3, 4, 4), torch.zeros(3), torch.zeros(3)
    offset = torch.zeros(5, 4, 4, requires_grad=True)
    em_routing(*matrices, offset=offset).pose.sum().backward()
    assert offset.grad is not None
    with pytest.raises(ValueError, match="backend='cpu' gives no gradient of offset"):
        em_routing(*matrices, offset=offset, backend="cpu")
    assert which_backend("em", "auto", *matrices) == which_backend("em_vectors", "auto", torch.randn(2, 5, 16)) == "cpu"


@pytest.mark.parametrize(("size", "calls"), [(16, 1), (8, 0)])
def test_auto_takes_compiled_code_where_there_is_some(size: int, calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    called = []
    monkeypatch.setattr(cpu_em, "_call", lambda name, *_: called.append(name))
    vectors = torch.randn(2, 5, size), torch.rand(2, 5), torch.randn(5, 3, size, size), torch.zeros(3), torch.zeros(3)
    em_routing(*vectors)
    assert called == ["forward"] * calls


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # torch's own
@pytest.mark.parametrize("name", ["beta_u", "beta_a", "offset"])
def test_every_forward_derivative_is_seen(name: str) -> None:
    pose, activation, weight = torch.randn(2, 5, 4, 4), torch.rand(2, 5), torch.randn(5, 3, 4, 4)
    others = {"beta_u": torch.rand(3), "beta_a": torch.rand(3), "offset": torch.rand(5, 4, 4)}
    with torch.autograd.forward_ad.dual_level():
        others[name] = torch.autograd.forward_ad.make_dual(others[name], torch.rand(others[name].shape))
        one, two = (
            em_routing(pose, activation, weight, backend=backend, **others) for backend in ("auto", "reference")
        )
        tangents = [torch.autograd.forward_ad.unpack_dual(routed.activation).tangent for routed in (one, two)]
    assert tangents[0] is not None and tangents[0].any()
    torch.testing.assert_close(*tangents)
