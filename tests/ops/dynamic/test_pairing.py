"""Fused dynamic routing against the reference, by the pairing rule."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.backends import needs_cpu, needs_interpreter
from tests.pairing import Inputs, assert_paired, outcome
from torchcaps.ops import dynamic_routing

pytestmark = needs_cpu

NAN = math.nan

#: B, I, J, d_in, d_out: CapsNet's own; few images, where lanes hold numbers of a vote; more votes than are kept;
#: odd ones; a batch beyond one block of lanes; single numbers; wide poses.
SIZES = [
    (1, 1152, 10, 8, 16),
    (2, 37, 7, 5, 21),
    (2, 1501, 9, 2, 40),
    (5, 1152, 10, 8, 16),
    (3, 63, 7, 5, 13),
    (67, 31, 3, 3, 1),
    (1, 1, 1, 1, 1),
    (17, 5, 2, 19, 37),
    (2, 200, 33, 4, 4),
]


def inputs(sizes: tuple[int, ...], dtype: torch.dtype, bias: bool, initial_logits: bool) -> Inputs:
    n, n_in, n_out, d_in, d_out = sizes
    return {
        "u": torch.randn(n, n_in, d_in).to(dtype),
        "weight": (torch.randn(n_in, n_out, d_in, d_out) / (d_in * n_in) ** 0.5 * 3).to(dtype),
        "bias": torch.randn(n_out, d_out).to(dtype) if bias else None,
        "initial_logits": torch.randn(n_in, n_out).to(dtype) if initial_logits else None,
    }


def routing(**options: Any) -> Any:
    def function(backend: str, tensors: Inputs) -> Sequence[Tensor]:
        routed = dynamic_routing(**tensors, **options, backend=backend)  # type: ignore[arg-type]
        return [x for x in routed if x is not None]

    return function


@pytest.mark.parametrize("backprop", ["full", "last"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_sizes(sizes: tuple[int, ...], dtype: torch.dtype, backprop: str) -> None:
    assert_paired(routing(backprop=backprop), inputs(sizes, dtype, False, False), "cpu")


@pytest.mark.parametrize("backprop", ["full", "last"])
@pytest.mark.parametrize("leaky", [False, True], ids=["plain", "leaky"])
@pytest.mark.parametrize(("bias", "initial_logits"), [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("n_iters", [1, 2, 3, 5])
@pytest.mark.parametrize("return_coupling", [False, True], ids=["", "coupling"])
@pytest.mark.parametrize("sizes", [(18, 37, 7, 5, 13), (1, 37, 7, 5, 19)], ids=["many", "few"])
def test_options(
    sizes: tuple[int, ...],
    n_iters: int,
    bias: bool,
    initial_logits: bool,
    leaky: bool,
    backprop: str,
    return_coupling: bool,
) -> None:
    options = {"n_iters": n_iters, "leaky": leaky, "backprop": backprop, "return_coupling": return_coupling}
    assert_paired(routing(**options), inputs(sizes, torch.float32, bias, initial_logits), "cpu")


@pytest.mark.parametrize("sizes", [(0, 5, 4, 3, 6), (3, 0, 4, 3, 6), (3, 5, 0, 3, 6), (3, 5, 4, 0, 6)], ids=str)
def test_nothing_to_route(sizes: tuple[int, ...]) -> None:
    n, n_in, n_out, d_in, d_out = sizes
    tensors = {"u": torch.ones(n, n_in, d_in), "weight": torch.ones(n_in, n_out, d_in, d_out)}
    tensors |= {"bias": torch.ones(n_out, d_out), "initial_logits": torch.zeros(n_in, n_out)}
    assert_paired(routing(return_coupling=True), tensors, "cpu")  # type: ignore[arg-type]


def test_strides_do_not_matter() -> None:
    tensors = inputs((3, 20, 7, 5, 13), torch.float32, True, True)
    strided = {k: x.transpose(0, -1).contiguous().transpose(0, -1) for k, x in tensors.items() if x is not None}
    assert not any(x.is_contiguous() for x in strided.values())
    plain = outcome(routing(), tensors, "cpu")
    for name, x in outcome(routing(), strided, "cpu").items():  # type: ignore[arg-type]
        torch.testing.assert_close(x, plain[name], rtol=0, atol=0, msg=name)


@pytest.mark.parametrize("sizes", [(70, 63, 7, 5, 13), (3, 400, 10, 8, 16), (1, 1152, 10, 8, 16)], ids=str)
def test_threads_change_nothing(sizes: tuple[int, ...]) -> None:
    tensors = inputs(sizes, torch.float32, True, True)
    one = outcome(routing(return_coupling=True), tensors, "cpu")
    for threads in (2, 5):
        torch.set_num_threads(threads)
        for name, x in outcome(routing(return_coupling=True), tensors, "cpu").items():
            torch.testing.assert_close(x, one[name], rtol=0, atol=0, msg=name)


def test_a_prior_may_forbid() -> None:
    """A logit of −∞: nothing goes there, and no gradient is NaN."""
    tensors = inputs((3, 20, 7, 5, 13), torch.float32, True, True)
    assert tensors["initial_logits"] is not None
    tensors["initial_logits"][:, 2] = -torch.inf
    assert_paired(routing(return_coupling=True), tensors, "cpu")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, in Triton's interpreter
@pytest.mark.parametrize("backend", ["cpu", pytest.param("triton", marks=needs_interpreter)])
@pytest.mark.parametrize("n_iters", [1, 3])
@pytest.mark.parametrize(
    "numbers", [(NAN, 0.0), (0.0, NAN), (NAN, 1.0), (NAN, NAN, NAN), (math.inf, 0.0, 0.0)], ids=str
)
def test_nan_comes_out_as_such(numbers: tuple[float, ...], n_iters: int, backend: str) -> None:
    """In the activation too, which a loss may look at alone."""
    routed = dynamic_routing(
        torch.ones(1, 1, 1), torch.tensor(numbers).view(1, 1, 1, -1), n_iters=n_iters, backend=backend
    )
    assert bool(routed.activation.isnan().all())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("first_in_the_child", [False, True])
def test_a_forked_process_does_not_wait_for_its_parents_threads(first_in_the_child: bool) -> None:
    code = f"""
import os, signal, torch
from torchcaps.ops import dynamic_routing, em_routing
torch.set_num_threads(2)
u, weight = torch.randn(64, 100, 8), torch.randn(100, 10, 8, 16)
poses, a, matrices, beta = torch.randn(64, 100, 4, 4), torch.rand(64, 100), torch.randn(100, 10, 4, 4), torch.zeros(10)
dynamic_routing(u, weight, backend="cpu")
if not {first_in_the_child}:
    em_routing(poses, a, matrices, beta, beta, backend="cpu")
child = os.fork()
if child == 0:
    signal.alarm(60)
    dynamic_routing(u, weight, backend="cpu")
    em_routing(poses, a, matrices, beta, beta, backend="cpu")
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "7"
