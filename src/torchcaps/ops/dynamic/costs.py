"""What a kernel must move and compute at the least, counted from its code: a bound to hold measured times against."""

from __future__ import annotations

from typing import NamedTuple

from torchcaps.ops.dynamic.tiles import Sizes


class Cost(NamedTuple):
    """Bytes and operations of one pass, over all its calls.

    Attributes:
        calls: launches of the kernel.
        bytes: read or written, each tensor once a call.
        products: operations of matrix products; a multiplication and an addition are two.
        rest: other operations on numbers.
    """

    calls: int
    bytes: int
    products: int
    rest: int

    def seconds(self, bandwidth: float, product_rate: float, rate: float) -> float:
        """Bound the time from below, given bytes a second and operations a second of products and of the rest."""
        return max(self.bytes / bandwidth, self.products / product_rate + self.rest / rate)


def dynamic_costs(sizes: Sizes, n_iters: int, input_bytes: int = 4) -> dict[str, Cost]:
    """Count a forward and a backward pass of dynamic routing, without b0, by backprop "full".

    Parts of sums, which depend on the cuts, are counted once.

    Args:
        sizes: of the problem.
        n_iters: iterations, at least 1.
        input_bytes: of one number of u and weight.

    Returns:
        the cost of each kernel by its name.
    """
    size, later = sizes.itemsize, n_iters - 1
    pairs = sizes.images * sizes.lower * sizes.upper
    states = sizes.images * sizes.upper * sizes.d_out
    couplings, softmax = pairs * size, 3 * sizes.images * sizes.lower * size
    poses = sizes.images * sizes.lower * sizes.d_in * input_bytes
    matrices = sizes.lower * sizes.upper * sizes.d_in * sizes.d_out * input_bytes
    inputs, state = poses + matrices, states * size
    one, spread = 2 * pairs * sizes.d_in * sizes.d_out, pairs * sizes.d_in
    return {
        # Forward: b from V. Backward: b and dc, from V and ds. A logit's softmax takes about 6 operations.
        "logits_pass": Cost(
            2 * later,
            later * (2 * inputs + 3 * state + 3 * couplings + 2 * softmax),
            later * 3 * one,
            later * (3 * 2 * spread + 2 * 6 * pairs),
        ),
        # Forward: equal couplings, then b. Backward: b and dc are read, c and db written.
        "sums_pass": Cost(
            1 + 2 * later,
            (1 + 2 * later) * (inputs + state) + later * (5 * couplings + 2 * softmax),
            (1 + 2 * later) * one,
            later * (2 * spread + 8 * pairs),
        ),
        # s from parts and bias, and V: 4 tensors. About 10 operations a number.
        "squash_pass": Cost(n_iters, n_iters * 4 * state, 0, n_iters * 10 * states),
        "squash_backward_pass": Cost(n_iters, n_iters * 5 * state, 0, n_iters * 15 * states),
        "pose_gradient_pass": Cost(
            1,
            poses + matrices + (1 + 2 * later) * state + 2 * later * couplings,
            (1 + 2 * later) * one,
            2 * later * 2 * spread,
        ),
        "weight_gradient_pass": Cost(
            1,
            poses + matrices + (1 + 2 * later) * state + 2 * later * couplings,
            (1 + 2 * later) * one,
            2 * later * spread,
        ),
    }
