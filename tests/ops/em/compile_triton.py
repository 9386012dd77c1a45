"""Compile EM routing's kernels at the sizes they are meant for, and print what ptxas says of each.

A program of its own.

A line has sizes, kernel, capability, registers of a thread, and bytes it spills. As in ``compile_triton.py`` nothing
is run, and no GPU is needed.
"""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.pop("TRITON_INTERPRET", None)

import torch
import triton
from triton.backends import nvidia
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from torchcaps.ops.em import triton as em

#: B, (T, H, W), kernel, J, stride, iterations: the paper's network A=B=C=D=32, the small one, and the classes' layer.
SIZES = {
    "conv1": (64, (32, 14, 14), 3, 32, 2, 3),
    "conv2": (64, (32, 6, 6), 3, 32, 1, 3),
    "small conv1": (64, (8, 14, 14), 3, 16, 2, 2),
    "small conv2": (8, (16, 6, 6), 3, 16, 1, 2),
    "classes": (8, (512, 1, 1), 1, 5, 1, 3),
}
NAMES = {torch.float32: "*fp32", torch.float64: "*fp64", torch.int32: "*i32"}
DONE: set[str] = set()
NOW: list[str] = []


def start(kernel: Any, *values: Any, grid: Any, warmup: bool, **named: Any) -> None:
    """In the place of ``JITFunction.run``: every kernel once for each of its signatures."""
    options = {name: named.pop(name) for name in ("num_warps", "enable_fp_fusion", "maxnreg") if name in named}
    bound = inspect.signature(kernel.fn).bind(*values, **named).arguments
    signature, constants, aligned = {}, {}, {}
    for k, parameter in enumerate(kernel.params):
        value = bound[parameter.name]
        if parameter.is_constexpr or value is None:
            signature[parameter.name], constants[(k,)] = "constexpr", value
        elif isinstance(value, torch.Tensor):
            signature[parameter.name], aligned[(k,)] = NAMES[value.dtype], [["tt.divisibility", 16]]
        else:
            signature[parameter.name] = "i32" if -(2**31) <= value < 2**31 else "i64"
    key = f"{kernel.fn.__name__} {signature} {constants} {options}"
    if key in DONE:
        return
    DONE.add(key)
    source = ASTSource(kernel, signature, constants, aligned)
    for capability in CAPABILITIES:
        ptx = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options).asm["ptx"]
        print(f"{NOW[-1]}: {kernel.fn.__name__} sm_{capability} {' '.join(map(str, used(ptx, capability)))}")


def used(ptx: str, capability: int) -> tuple[int, int]:
    """Registers of a thread, and bytes that are stored because there are no more."""
    folder = Path(nvidia.__file__).parent / "bin"
    blackwell = folder / "ptxas-blackwell"
    program = blackwell if capability >= 100 and blackwell.exists() else folder / "ptxas"
    target = f"sm_{capability}{'a' if capability >= 90 else ''}"
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "kernel.ptx"
        path.write_text(ptx)
        command = [program, "-v", "--fmad=false", f"--gpu-name={target}", path, "-o", Path(name) / "kernel.cubin"]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    return tuple(int(re.search(what, said)[1]) for what in (r"Used (\d+) registers", r"(\d+) bytes spill stores"))  # type: ignore[index,return-value]


triton.JITFunction.run = start
CAPABILITIES = [int(x) for x in sys.argv[1].split(",")]
for name, (n, shape, kernel, n_out, stride, n_iters) in SIZES.items():
    NOW.append(name)
    pose, activation = torch.zeros(n, *shape, 4, 4), torch.zeros(n, *shape)
    weight, beta = torch.zeros(shape[0], kernel, kernel, n_out, 4, 4), torch.zeros(n_out)
    offset = torch.zeros(shape[0], kernel, kernel, 4, 4) if kernel == 1 else None
    given = pose, activation, weight, beta, beta, offset
    rest = [stride, stride], False, False, False, [0.1, 0.01, 1e-7, 1.0, 1.0, 1.0, 1.0, *[0.1] * n_iters]
    mu, a, _, states, masses = em.forward_op(*given, *rest, False)
    em.backward_op(mu, a, None, *given, states, masses, *rest)
