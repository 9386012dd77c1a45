"""Routing in Triton, held to the reference by the pairing rule: in its interpreter, or on a GPU where there is one.

The interpreter does some thousand operations a second: sizes are tiny here.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.backends import DEVICES, needs_interpreter, needs_triton, spilled
from tests.ops.dynamic import test_pairing as dynamic
from tests.ops.dynamic.test_fuzz import SCALES, numbers
from tests.ops.em import test_pairing as em
from tests.ops.heinsen_matrix import test_pairing as heinsen
from tests.ops.inverted_attention import test_pairing as inverted_attention
from tests.ops.variational_bayes import test_pairing as variational_bayes
from tests.pairing import Inputs, assert_paired, distance, double, largest, outcome
from torchcaps.ops import conv_em_routing, dynamic_routing, em_routing, which_backend
from torchcaps.ops.backends import dispatch
from torchcaps.ops.backends import triton as library
from torchcaps.ops.backends.errors import Unavailable
from torchcaps.ops.dynamic.tiles import TILES, Sizes, launch
from torchcaps.ops.dynamic.triton import precision

#: B, (T, H, W), kernel, J, stride: dense; an oblong kernel and unequal strides with children that no parent sees.
DENSE = (2, (4, 1, 1), (1, 1), 3, (1, 1))
MAP = (2, (2, 3, 4), (2, 2), 3, (1, 3))
DYNAMIC_KERNELS = {
    *("logits_pass", "sums_pass", "squash_pass", "squash_backward_pass"),
    *("pose_gradient_pass", "weight_gradient_pass"),
}
EM_KERNELS = {
    *("begin_pass", "child_pass", "parent_pass", "pose_pass", "weight_pass"),
    *("mean_pass", "fit_pass", "level_pass", "slopes_pass"),
}


@needs_triton
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "sizes", [(3, 19, 7, 3, 5), (67, 2, 3, 3, 1), (1, 1, 1, 1, 1), (2, 3, 33, 2, 17), (1, 2, 300, 2, 4)], ids=str
)
def test_dynamic_sizes(sizes: tuple[int, ...], dtype: torch.dtype) -> None:
    assert_paired(dynamic.routing(), dynamic.inputs(sizes, dtype, False, False), "triton")


@needs_triton
@pytest.mark.parametrize("backprop", ["full", "last"])
@pytest.mark.parametrize(
    "options",
    [{"n_iters": 1}, {"n_iters": 2, "return_coupling": True}, {"n_iters": 4, "leaky": True, "return_coupling": True}],
    ids=str,
)
@pytest.mark.parametrize("extras", [False, True], ids=["", "bias-initial_logits"])
def test_dynamic_options(extras: bool, options: dict[str, Any], backprop: str) -> None:
    tensors = dynamic.inputs((3, 11, 3, 2, 5), torch.float32, extras, extras)
    assert_paired(dynamic.routing(backprop=backprop, **options), tensors, "triton")


def test_too_large_matrices_for_a_tile() -> None:
    """Refused, before anything is compiled that no GPU has the memory for."""
    assert launch("weight_gradient_pass", Sizes(1, 2, 100_000, 128, 128)).constants["N"] == 16
    with pytest.raises(ValueError, match="at most 16,384 numbers .*, got d_in=129, d_out=65: take backend='reference'"):
        launch("weight_gradient_pass", Sizes(1, 2, 1, 129, 65))
    with pytest.raises(ValueError, match="at most 8,192 numbers"):
        launch("logits_pass", Sizes(1, 2, 1, 128, 128, itemsize=8))


def test_matrices_are_multiplied_as_torch_is_told_to() -> None:
    single, half, double = (torch.empty(1, dtype=x) for x in (torch.float32, torch.bfloat16, torch.float64))
    before = torch.get_float32_matmul_precision()
    try:
        for told, wanted in (("highest", "tf32x3"), ("high", "tf32")):
            torch.set_float32_matmul_precision(told)
            assert precision(single, half) == precision(half, single) == wanted
            assert precision(half, half) == "bfloat16"
            assert precision(single, double) == "ieee"
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("kernel", sorted(TILES))
def test_small_problems_have_small_tiles(kernel: str) -> None:
    """At least what a product of matrices takes, and not more than there is, rounded up."""
    one, many = (launch(kernel, Sizes(n, n, 10, 8, 16)) for n in (1, 4096))
    assert (one.blocks, one.chunks) == (1, 1)
    assert one.constants["N"] == 16 and one.constants["KI"] == 2
    assert many.blocks * many.constants["N"] == many.chunks * many.constants["KI"] == 4096


@pytest.mark.parametrize(("terms", "others"), [(1, 1), (7, 1), (144, 40), (3, 10_000), (1000, 1)])
def test_parts_have_every_term_once(terms: int, others: int) -> None:
    parts, per_part = launch("sums_pass", Sizes(128, 1152, 10, 8, 16)).parts(terms, others)
    assert (parts - 1) * per_part < terms <= parts * per_part
    assert parts == 1 or per_part >= 2


@needs_interpreter
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, in the interpreter
def test_a_logit_of_minus_infinity() -> None:
    """Of a parent that explains a child not at all, the first of several: its share is 0."""
    pose, weight = 1e-3 * torch.randn(1, 4, 4, 4), torch.randn(4, 2, 4, 4)
    pose[0, 3], weight[3, 1] = 1e17 * torch.eye(4), 0
    given_ = pose, torch.ones(1, 4), weight, torch.zeros(2), torch.zeros(2)
    ours, wanted = (em_routing(*given_, backend=backend, return_coupling=True) for backend in ("triton", "reference"))
    assert wanted.coupling[0, 3].tolist() == [0, 1]
    for one, two in zip(ours, wanted, strict=True):
        torch.testing.assert_close(one.isfinite(), two.isfinite())
    torch.testing.assert_close(ours.coupling[0, 3], wanted.coupling[0, 3])


@needs_triton
@pytest.mark.parametrize("sizes", [(0, 5, 4, 3, 6), (3, 0, 4, 3, 6), (3, 5, 4, 0, 6)], ids=str)
def test_nothing_to_route(sizes: tuple[int, ...]) -> None:
    n, n_in, n_out, d_in, d_out = sizes
    tensors: Inputs = {"u": torch.ones(n, n_in, d_in), "weight": torch.ones(n_in, n_out, d_in, d_out)}
    tensors |= {"bias": torch.ones(n_out, d_out), "initial_logits": torch.zeros(n_in, n_out)}
    assert_paired(dynamic.routing(return_coupling=True), tensors, "triton")


@needs_triton
def test_a_prior_may_forbid() -> None:
    tensors = dynamic.inputs((3, 6, 7, 2, 5), torch.float32, True, True)
    assert tensors["initial_logits"] is not None
    tensors["initial_logits"][:, 2] = -torch.inf
    assert_paired(dynamic.routing(return_coupling=True), tensors, "triton")


@needs_triton
@settings(max_examples=12, derandomize=True, deadline=None, database=None)
@given(
    sizes=st.tuples(*(st.integers(1, most) for most in (9, 9, 12, 4, 20))),
    scales=st.tuples(SCALES, SCALES),
    leaky=st.booleans(),
    seed=st.integers(0, 1 << 30),
)
def test_any_shape_and_any_values(sizes: tuple[int, ...], scales: tuple[float, ...], leaky: bool, seed: int) -> None:
    n, n_in, n_out, d_in, d_out = sizes
    torch.manual_seed(seed)
    shapes = {"u": (n, n_in, d_in), "weight": (n_in, n_out, d_in, d_out)}
    tensors: Inputs = {
        k: numbers(shape, scale, False) for (k, shape), scale in zip(shapes.items(), scales, strict=True)
    }
    assert_paired(dynamic.routing(leaky=leaky), tensors, "triton", neighbours=15)


@needs_triton
@pytest.mark.parametrize("options", em.SETTINGS, ids=lambda x: "-".join(map(str, x.values())))
@pytest.mark.parametrize("geometry", [DENSE, MAP], ids=str)
def test_em_geometries(geometry: tuple[Any, ...], options: dict[str, Any]) -> None:
    assert_paired(em.routing(stride=geometry[-1], **options), em.inputs(geometry), "triton")


@needs_triton
@pytest.mark.parametrize("compete", ["all", "positions"])
@pytest.mark.parametrize("n_iters", [1, 2])
@pytest.mark.parametrize("backprop", ["full", "last"])
def test_em_options(backprop: str, n_iters: int, compete: str) -> None:
    options = {"final_lambda": 0.3, "variance_floor": 0.1, "damping": 0.1, "compete": compete, "return_coupling": True}
    offset = torch.randn(2, 2, 2, 4, 4).to(DEVICES["triton"])

    def function(backend: str, tensors: Inputs) -> Any:
        routed = em.routing(
            stride=(1, 3), n_iters=n_iters, backprop=backprop, offset=offset.to(DEVICES[backend]), **options
        )
        return routed(backend, tensors)

    assert_paired(function, em.inputs(MAP), "triton")


@needs_triton
def test_em_bfloat16() -> None:
    assert_paired(em.routing(stride=(1, 3), **em.SETTINGS[0]), em.inputs(MAP, torch.bfloat16), "triton")


@needs_triton
@pytest.mark.parametrize("case", ["off", "huge and equal", "far"])
def test_em_extremes(case: str) -> None:
    """Votes whose variance is nothing beside their mean: it must not cancel."""
    tensors = em.inputs(MAP)
    pose, activation, weight = tensors["pose"], tensors["activation"], tensors["weight"]
    assert pose is not None and activation is not None and weight is not None
    if case == "off":
        activation.fill_(0.0)
    if case == "huge and equal":
        pose.fill_(1e4)
        weight.fill_(1.0)
    if case == "far":
        pose.mul_(0.01).add_(3.0)
    assert_paired(em.routing(stride=(1, 3), variance_floor=1e-4), tensors, "triton")


@needs_triton
@pytest.mark.parametrize("geometry", [(0, (3, 2, 2), (2, 2), 4, (1, 1)), (2, (0, 2, 2), (2, 2), 4, (1, 1))], ids=str)
def test_em_nothing_to_route(geometry: tuple[Any, ...]) -> None:
    assert_paired(em.routing(), em.inputs(geometry), "triton")


@needs_triton
@pytest.mark.parametrize("n_iters", [1, 3])
@pytest.mark.parametrize("geometry", [DENSE, MAP], ids=str)
def test_variational_bayes_geometries(geometry: tuple[Any, ...], n_iters: int) -> None:
    options = {"stride": geometry[-1], "n_iters": n_iters, "return_coupling": geometry is MAP}
    assert_paired(variational_bayes.routing(**options), em.inputs(geometry), "triton")


@needs_triton
def test_variational_bayes_with_an_offset() -> None:
    offset = torch.randn(2, 2, 2, 4, 4)

    def function(backend: str, tensors: Inputs) -> Any:
        there = offset.to(DEVICES[backend])
        return variational_bayes.routing(stride=(1, 3), n_iters=2, offset=there)(backend, tensors)

    assert_paired(function, em.inputs(MAP), "triton")


@needs_triton
@pytest.mark.parametrize(("scale", "shift"), [(1e4, 0.0), (0.01, 3.0)], ids=["large", "far"])
def test_variational_bayes_extremes(scale: float, shift: float) -> None:
    """Votes whose spread is nothing beside their mean: it must not cancel."""
    tensors = em.inputs(MAP)
    assert tensors["pose"] is not None
    tensors["pose"].mul_(scale).add_(shift)
    # In float64: beside large votes the reference of float32 counts the prior for more than it is.
    function, exact = variational_bayes.routing(stride=(1, 3), n_iters=2), double(tensors)
    ours, wanted = (outcome(function, exact, backend) for backend in ("triton", "reference"))
    for name, x in wanted.items():
        assert distance(ours[name], x) <= 1e-7 * (1 + largest(x)), name


@needs_triton
@pytest.mark.parametrize("geometry", [(0, (3, 2, 2), (2, 2), 4, (1, 1)), (2, (0, 2, 2), (2, 2), 4, (1, 1))], ids=str)
def test_variational_bayes_nothing_to_route(geometry: tuple[Any, ...]) -> None:
    assert_paired(variational_bayes.routing(), em.inputs(geometry), "triton")


@needs_triton
@pytest.mark.parametrize("shared", [False, True])
def test_heinsen_matrices(shared: bool) -> None:
    tensors = heinsen.inputs((2, 7, 3), shared=shared)
    assert_paired(heinsen.routing(n_iters=2, return_coupling=True), tensors, "triton")


@needs_triton
@pytest.mark.parametrize("n_iters", [2, 3])
def test_inverted_attention(n_iters: int) -> None:
    tensors = inverted_attention.inputs((2, 7, 3), all_of_them=True)
    assert_paired(inverted_attention.routing(n_iters=n_iters, return_coupling=True), tensors, "triton")


@needs_interpreter
@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf"
)  # opcheck's own, from torch 2.14
@pytest.mark.parametrize("full", [False, True])
def test_torch_accepts_the_operators(full: bool) -> None:
    from torchcaps.ops.dynamic.triton import forward_op

    shapes = ((2, 3, 2), (3, 4, 2, 6), (4, 6), (3, 4))
    tensors = [torch.randn(shape, requires_grad=True) for shape in shapes]
    torch.library.opcheck(forward_op, (*tensors, 2, full, full, full))


@needs_interpreter
@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf"
)  # opcheck's own, from torch 2.14
def test_torch_accepts_the_operators_of_em() -> None:
    from torchcaps.ops.em.triton import forward_op

    leaves = [x.requires_grad_() for x in em.inputs((1, (2, 2, 2), (2, 1), 2, (1, 1))).values() if x is not None]
    settings = False, True, False, [0.1, 0.01, 1e-7, 1.0, 1.0, 1.0, 1.0, 0.1, 0.2]
    torch.library.opcheck(forward_op, (*leaves, None, [1, 1], *settings, True))


@needs_interpreter
@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf"
)  # opcheck's own, from torch 2.14
@pytest.mark.parametrize(("first", "linear"), [(False, False), (True, False), (False, True)])
def test_torch_accepts_the_operators_of_moments(first: bool, linear: bool) -> None:
    from torchcaps.ops.variational_bayes.triton import forward_op

    pose, activation, weight = (torch.randn(1, 2, 2, 2, 4, 4), torch.rand(1, 2, 2, 2), torch.randn(2, 2, 1, 2, 4, 4))
    shapes = ((0,),) * 3 if first else ((1, 2, 16, 2), (1, 2, 16, 2), (1, 2, 2))
    leaves = [x.requires_grad_() for x in (pose, activation, weight)]
    torch.library.opcheck(forward_op, (*leaves, None, *map(torch.rand, shapes), [1, 1], 1.0, linear, not first))


@needs_interpreter
def test_one_graph() -> None:
    tensors = dynamic.inputs((2, 3, 4, 2, 5), torch.float32, True, True)

    def function(backend: str, given: Inputs) -> Any:
        return torch.compile(dynamic.routing(), fullgraph=True, backend="aot_eager")(backend, given)

    eager = outcome(dynamic.routing(), tensors, "triton")
    for name, x in outcome(function, tensors, "triton").items():
        torch.testing.assert_close(x, eager[name], rtol=0, atol=0, msg=name)


@needs_interpreter
def test_no_second_derivative() -> None:
    u, weight = torch.randn(2, 3, 2, requires_grad=True), torch.randn(3, 4, 2, 5)
    (gradient,) = torch.autograd.grad(dynamic_routing(u, weight, backend="triton").pose.sum(), u, create_graph=True)
    with pytest.raises(
        NotImplementedError, match="backend='triton' has no second derivative: take backend='reference'"
    ):
        gradient.sum().backward()


@needs_interpreter
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # torch's own
def test_transforms() -> None:
    u, weight = torch.randn(2, 3, 2), torch.randn(3, 4, 2, 5)
    with pytest.raises(NotImplementedError, match="backend='triton' knows neither torch.func nor forward derivatives"):
        torch.func.grad(lambda x: dynamic_routing(x, weight, backend="triton").pose.sum())(u)


@needs_interpreter
def test_what_it_is_not_for() -> None:
    vectors = torch.randn(2, 5, 16), torch.rand(2, 5), torch.randn(5, 3, 16, 16), torch.zeros(3), torch.zeros(3)
    with pytest.raises(ValueError, match="backend='triton' wants matrices, got vectors"):
        em_routing(*vectors, backend="triton")
    map_of = em.inputs(MAP)
    with pytest.raises(ValueError, match="backend='triton' gives no gradient of offset"):
        conv_em_routing(**map_of, offset=torch.zeros(2, 2, 2, 4, 4, requires_grad=True), backend="triton")  # type: ignore[arg-type]


def cuda_tensor() -> torch.Tensor:
    with FakeTensorMode():
        return torch.empty(1, device="cuda:0")


class OnAnotherGPU(torch.Tensor):
    """Say that it is there, also where there is no second one."""

    device = property(lambda _: torch.device("cuda", 1))  # type: ignore[assignment]


def test_which_device(monkeypatch: pytest.MonkeyPatch) -> None:
    here, away = torch.zeros(1), torch.zeros(1, device="meta")
    monkeypatch.setattr(library, "_attempt", lambda name: "not today")
    with pytest.raises(ValueError, match="backend='triton' wants tensors on one CUDA device, got some on cpu"):
        which_backend("dynamic", "triton", here)
    with pytest.raises(ValueError, match="all tensors must be on one device, got some on cpu, meta"):
        which_backend("dynamic", "triton", here, away)
    with pytest.raises(ValueError, match="backend='cpu' wants tensors on the CPU, got some on meta"):
        which_backend("dynamic", "cpu", away)


def test_without_triton(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(library, "_attempt", lambda name: "triton cannot be imported: not today")
    monkeypatch.setattr(dispatch, "_NOTED", set())
    with caplog.at_level(logging.WARNING, "torchcaps"):
        for _ in range(2):
            assert which_backend("dynamic", "auto", cuda_tensor()) == "reference"
    (record,) = caplog.records
    assert record.getMessage() == "routing takes the slow reference: triton cannot be imported: not today"
    monkeypatch.setenv("TORCHCAPS_TRITON", "0")  # then nobody misses it
    monkeypatch.setattr(dispatch, "_NOTED", set())
    caplog.clear()
    assert which_backend("dynamic", "auto", cuda_tensor()) == "reference" and not caplog.records
    with pytest.raises(Unavailable, match="backend='triton' is not available: triton cannot be imported: not today"):
        which_backend("dynamic", "triton", cuda_tensor())


def test_what_there_are_no_kernels_for_is_named() -> None:
    assert library._attempt.__wrapped__("em_vectors") == "it has no kernels for em_vectors"


def test_an_old_triton_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", types.SimpleNamespace(__version__="3.3.1"))
    assert library._attempt.__wrapped__("dynamic") == "triton must be 3.4 or newer, got 3.3.1"


@needs_triton
def test_it_runs_on_one_cuda_device_where_it_is_named() -> None:
    other = torch.empty(1).as_subclass(OnAnotherGPU)
    for routing in ("dynamic", "em"):
        assert which_backend(routing, "triton", cuda_tensor(), cuda_tensor()) == "triton"
        with pytest.raises(ValueError, match="wants tensors on one CUDA device"):
            which_backend(routing, "triton", cuda_tensor(), other)
        assert which_backend(routing, "auto", cuda_tensor(), other) == "reference"
        assert which_backend(routing, "auto", torch.zeros(1)) != "triton"


@needs_triton
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, on which the kernels are checked")
def test_a_tensor_of_a_gpu_that_is_not_here(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """As where a network is exported for another machine."""
    monkeypatch.setattr(dispatch, "_NOTED", set())
    for routing in ("dynamic", "em"):
        assert which_backend(routing, "auto", cuda_tensor()) == "reference"
    (record,) = caplog.records
    assert "torch finds no GPU here on which the kernels could be checked" in record.getMessage()


@needs_triton
def test_every_kernel_compiles_for_a_gpu() -> None:
    """The interpreter is more tolerant than the compiler, which needs no GPU."""
    program = Path(__file__).with_name("compile_triton.py")
    done = subprocess.run([sys.executable, "-W", "ignore", str(program)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    compiled = set(done.stdout.split())
    assert compiled == DYNAMIC_KERNELS | EM_KERNELS


@needs_triton
@pytest.mark.parametrize("capability", [80, 90, 100])
def test_no_kernel_of_dynamic_routing_spills(capability: int) -> None:
    """As compiled for a GPU at the sizes of real networks: what a thread cannot hold goes through memory."""
    program = Path(__file__).parents[1] / "dynamic" / "spills_triton.py"
    command = [sys.executable, "-W", "ignore", str(program), str(capability)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    compiled = [line.split() for line in done.stdout.splitlines()]
    assert {name for name, _, _ in compiled} == DYNAMIC_KERNELS
    assert [line for line in compiled if int(line[2]) > spilled()] == []
