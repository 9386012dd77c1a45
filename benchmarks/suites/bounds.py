"""How near the compiled kernels are to what the processor can do: multiplications counted, and its rates measured.

A kernel that stores no votes makes each of them anew in every pass. What that takes was counted from
``ops/dynamic/csrc`` and ``ops/em/csrc``: multiplications alone, with or without a sum, as additions, comparisons and
loads may run beside them. No kernel of this kind can be faster than its bound.
"""

from __future__ import annotations

import torch

from benchmarks.clock import interleaved, stopwatch
from benchmarks.conditions import Conditions
from benchmarks.result import Found, Row
from benchmarks.textbook import FORMULATIONS
from benchmarks.work import Call, Maps, Vectors

#: Multiplications of a share: an exponential, and its part in a sum.
_SHARE = 13
#: The convolutional layers of both matrix networks, at batch 8.
NETS = {
    "A=B=C=D=32": (Maps(), Maps(size=6, stride=1)),
    "A64 B8 C16 D16": (Maps(n_types=8, n_out=16), Maps(n_types=16, n_out=16, size=6, stride=1)),
}
_DYNAMIC, _EM = "dynamic routing", "EM routing"


def multiplications(work: Vectors | Maps) -> int:
    """Count what a routing multiplies, forward and, where it is asked for, backward."""
    if isinstance(work, Vectors):
        pose, vote = work.d_out, work.d_in * work.d_out
        pairs = work.batch * work.n_in * work.n_out
        first, later = vote, vote + 2 * pose + _SHARE  # a vote; its agreement, its part in the sum
        first_back = vote + pose + 2 * vote  # dV, from which du and dW
        later_back = (
            vote + 3 * pose + _SHARE + 2 + 4 * pose + _SHARE + 2
        )  # agreements with V and ds, dV; again for du, dW
    else:
        pose, vote, places = 16, 64, ((work.size - work.kernel_size) // work.stride + 1) ** 2
        pairs = work.batch * places * work.n_types * work.kernel_size**2 * work.n_out
        first, later = vote + 2 * pose, vote + 4 * pose + _SHARE + 1  # a vote; its moments, and its distance
        first_back = vote + 4 * pose + 2 * vote  # dr and dV, from which dM and dW
        later_back = (
            vote + 8 * pose + _SHARE + 5 + 2 * vote + 2 * pose
        )  # with the distance, and the sums of its gradient
    forward, backward = first + (work.n_iters - 1) * later, first_back + (work.n_iters - 1) * later_back
    return pairs * (forward + backward * work.backward)


def bounds(conditions: Conditions) -> Found:
    """Compiled kernels beside the processor's rate of multiplications."""
    found = Found("Kernels, and what the processor can do")
    if conditions.device.type != "cpu":
        found.notes.append("Bounds of a GPU's kernels: python -m benchmarks.gpu.")
        return found
    vectors = Vectors(batch=6, n_in=24) if conditions.smoke else Vectors()
    nets = {"small": (Maps(batch=1, n_types=2, n_out=2, size=5),)} if conditions.smoke else NETS
    size = 64 if conditions.smoke else 1024
    works = {_DYNAMIC: (vectors,), **{f"{_EM} {name}": layers for name, layers in nets.items()}}
    calls: dict[str, Call] = {}
    for name, each in works.items():
        calls |= {f"{name}, layer {k}": work.prepare(conditions.device) for k, work in enumerate(each)}
    eager = () if conditions.smoke else tuple(FORMULATIONS)
    calls |= {name: Vectors(contender=name).prepare(conditions.device) for name in eager}
    products = _products(size)
    found.seconds = interleaved(calls | products, conditions.repeats, stopwatch(conditions.device))
    taken = {name: time.median for name, time in found.seconds.items()}
    rates = {kind: size**3 / min(taken[name] for name in products if kind in name) for kind in ("float32", "bfloat16")}
    rate = rates["float32"]
    found.rows += [
        Row("multiplications of products of matrices in float32", rate / 1e9, None, unit=" billion a second"),
        Row("products in bfloat16, over those in float32", rates["bfloat16"] / rate, None, at_least=True),
    ]
    for name, each in works.items():
        ours, bound = sum(taken[f"{name}, layer {k}"] for k in range(len(each))), sum(map(multiplications, each)) / rate
        found.rows.append(Row(f"{name}, forward + backward, over its bound", ours / bound, None, least=0.95))
        if name == _DYNAMIC and eager:
            best = min(eager, key=lambda each: taken[each])
            found.rows.append(
                Row(f"{name}: the best eager formulation ({best}) over the bound", taken[best] / bound, None)
            )
    return found


def _products(size: int) -> dict[str, Call]:
    a, b = torch.rand(size, size), torch.rand(size, size)
    of_bf16 = a.bfloat16(), b.bfloat16()
    made: dict[str, Call] = {
        "product in float32": lambda: {"y": a @ b},
        "product in bfloat16": lambda: {"y": of_bf16[0] @ of_bf16[1]},
    }
    by_onednn = getattr(torch.ops.mkldnn, "_linear_pointwise", None)  # a Bᵀ, and as fast as convolutions
    if by_onednn is not None:
        made["product in float32 by oneDNN"] = lambda: {"y": by_onednn(a, b, None, "none", [], "")}
    return made
