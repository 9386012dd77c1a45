"""Any shape and any values: the pairing rule holds wherever the reference is finite."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.backends import needs_cpu
from tests.ops.dynamic.test_pairing import routing
from tests.pairing import assert_paired

pytestmark = needs_cpu

#: B, I, J, d_in, d_out.
SIZES = st.tuples(*(st.integers(1, most) for most in (35, 40, 12, 10, 20)))
#: Of normally distributed numbers; the last of them makes denormal numbers, and logits are about its square.
SCALES = st.sampled_from([0.0, 1.0, 0.01, 30.0, 1e4, 1e-12, 1e-40])
OPTIONS = st.fixed_dictionaries(
    {
        "n_iters": st.integers(1, 4),
        "leaky": st.booleans(),
        "backprop": st.sampled_from(["full", "last"]),
        "return_coupling": st.booleans(),
    }
)


def numbers(shape: tuple[int, ...], scale: float, holes: bool) -> Tensor:
    """Normally distributed, half of them 0 where there are holes."""
    x = (torch.randn(shape, dtype=torch.float64) * scale).float()
    return x * (torch.rand(shape) < 0.5) if holes else x


@settings(max_examples=150, derandomize=True, deadline=None, database=None)
@given(
    sizes=SIZES,
    scales=st.tuples(SCALES, SCALES, SCALES, SCALES),
    present=st.tuples(st.booleans(), st.booleans()),
    holes=st.booleans(),
    options=OPTIONS,
    seed=st.integers(0, 1 << 30),
)
def test_any_shape_and_any_values(
    sizes: tuple[int, ...],
    scales: tuple[float, ...],
    present: tuple[bool, bool],
    holes: bool,
    options: dict[str, Any],
    seed: int,
) -> None:
    n, n_in, n_out, d_in, d_out = sizes
    torch.manual_seed(seed)
    shapes = {
        "u": (n, n_in, d_in),
        "weight": (n_in, n_out, d_in, d_out),
        "bias": (n_out, d_out),
        "initial_logits": (n_in, n_out),
    }
    inputs = {name: numbers(shape, scale, holes) for (name, shape), scale in zip(shapes.items(), scales, strict=True)}
    given = dict(zip(("bias", "initial_logits"), present, strict=True))
    assert_paired(
        routing(**options), {k: x if given.get(k, True) else None for k, x in inputs.items()}, "cpu", neighbours=15
    )
