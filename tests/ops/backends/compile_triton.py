"""Compile each start of a kernel for three kinds of GPU instead of running it; prints the kernels' names.

A program of its own: triton decides when it is imported whether its kernels are interpreted.
"""

from __future__ import annotations

import inspect
import os
from typing import Any

os.environ.pop("TRITON_INTERPRET", None)

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from torchcaps.ops.dynamic import triton as dynamic
from torchcaps.ops.em import triton as em
from torchcaps.ops.variational_bayes import triton as moments

KINDS = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float64: "*fp64", torch.int32: "*i32"}


def start(kernel: Any, *values: Any, grid: Any, warmup: bool, **named: Any) -> None:
    """In the place of ``JITFunction.run``."""
    known = ("num_warps", "num_stages", "enable_fp_fusion", "maxnreg")
    options = {name: named.pop(name) for name in known if name in named}
    bound = inspect.signature(kernel.fn).bind(*values, **named).arguments
    signature, constants, aligned = {}, {}, {}
    for k, parameter in enumerate(kernel.params):
        value = bound[parameter.name]
        if (
            parameter.is_constexpr
            or value is None
            or (type(value) is int and value == 1 and not parameter.do_not_specialize)
        ):
            signature[parameter.name], constants[(k,)] = "constexpr", value
        elif isinstance(value, torch.Tensor):
            signature[parameter.name], aligned[(k,)] = KINDS[value.dtype], [["tt.divisibility", 16]]
        else:
            signature[parameter.name] = "i32" if -(2**31) <= value < 2**31 else "i64"
    source = ASTSource(kernel, signature, constants, aligned)
    for capability in (80, 90, 100):
        assert triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options).asm["cubin"]
    print(kernel.fn.__name__)


triton.JITFunction.run = start

for kind, extras in ((torch.bfloat16, False), (torch.float64, True)):
    wide = torch.float64 if extras else torch.float32
    u, weight = torch.zeros(3, 5, 2, dtype=kind), torch.zeros(5, 4, 2, 6, dtype=kind)
    bias, initial_logits = (torch.zeros(4, 6, dtype=wide), torch.zeros(5, 4, dtype=wide)) if extras else (None, None)
    pose, length, coupling, states = dynamic.forward_op(u, weight, bias, initial_logits, 2, extras, True, extras)
    asked = coupling if extras else None
    dynamic.backward_op(pose, length, asked, u, weight, initial_logits, states, extras, True)

    poses, matrices = torch.zeros(2, 3, 5, 5, 4, 4, dtype=kind), torch.zeros(3, 3, 3, 4, 4, 4, dtype=kind)
    activation, beta = torch.zeros(2, 3, 5, 5, dtype=wide), torch.zeros(4, dtype=wide)
    given = poses, activation, matrices, beta, beta, torch.zeros(3, 3, 3, 4, 4, dtype=wide) if extras else None
    rest = [2, 2], extras, False, False, [0.1, 0.01, 1e-7, 1.0, 1.0, 1.0, 1.0, 0.1, 0.2]
    mu, a, coupling, states, masses = em.forward_op(*given, *rest, extras)
    em.backward_op(mu, a, coupling if extras else None, *given, states, masses, *rest)

    state, mass, offset = torch.zeros(2, 4, 16, 4, dtype=wide), torch.zeros(2, 4, 4, dtype=wide), given[5]
    none = torch.zeros(0, dtype=wide)
    for shares, linear in (((none,) * 3, False), ((state, state, mass), False), ((state, state, mass), True)):
        given = poses.to(wide), activation, matrices.to(wide), offset, *shares, [2, 2], 1.0, linear
        *_, coupling = moments.forward_op(*given, extras)
        asked = coupling if extras else None
        torch.ops.torchcaps.vote_moments_triton_backward(*given, state, state, mass, asked, state, mass)
