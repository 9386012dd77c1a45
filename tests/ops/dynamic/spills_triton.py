"""Compile dynamic routing's kernels for one kind of GPU at real sizes; print registers and spilled bytes of each.

A program of its own, as compile_triton.py is. Usage: ``spills_triton.py CAPABILITY``, such as 90.
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

from torchcaps.ops.dynamic import triton as dynamic

NAMES = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float64: "*fp64"}
OPTIONS = ("num_warps", "num_stages", "enable_fp_fusion", "maxnreg")
#: B, I, J, d_in, d_out: CapsNet, one image, a thousand classes, a layer between capsules.
SIZES = ((128, 1152, 10, 8, 16), (1, 1152, 10, 8, 16), (4, 1152, 1000, 8, 16), (1024, 72, 16, 8, 8))
CAPABILITY = int(sys.argv[1])
SEEN: set[str] = set()


def source_of(kernel: Any, bound: dict[str, Any]) -> ASTSource:
    """What triton would compile for these arguments: it knows which integers are 1, or multiples of 16."""
    signature, constants, attributes = {}, {}, {}
    for k, parameter in enumerate(kernel.params):
        value, fixed = bound[parameter.name], not parameter.do_not_specialize
        if parameter.is_constexpr or value is None or (isinstance(value, int) and value == 1 and fixed):
            signature[parameter.name], constants[(k,)] = "constexpr", value
            continue
        is_tensor = isinstance(value, torch.Tensor)
        signature[parameter.name] = NAMES[value.dtype] if is_tensor else "i32"
        if is_tensor or (fixed and value % 16 == 0):
            attributes[(k,)] = [["tt.divisibility", 16]]
    return ASTSource(kernel, signature, constants, attributes)


def assembled(ptx: str) -> str:
    """What the assembler says of a kernel; triton asks it the same, but not for its words."""
    target = re.findall(r"\.target (\w+)", ptx)[0]
    names = ("ptxas-blackwell", "ptxas") if CAPABILITY >= 100 else ("ptxas",)  # not every triton has the former
    programs = [Path(nvidia.__file__).with_name("bin") / name for name in names]
    program = next(str(x) for x in programs if x.exists())
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        command = [program, "-v", f"--gpu-name={target}", file.name, "-o", os.devnull]
        return subprocess.run(command, capture_output=True, text=True, check=True).stderr


def start(kernel: Any, *values: Any, grid: Any, warmup: bool, **named: Any) -> None:
    """In the place of ``JITFunction.run``."""
    options = {name: named.pop(name) for name in OPTIONS if name in named}
    source = source_of(kernel, inspect.signature(kernel.fn).bind(*values, **named).arguments)
    key = f"{source.hash()} {options}"
    if key in SEEN:
        return
    SEEN.add(key)
    words = assembled(triton.compile(source, target=GPUTarget("cuda", CAPABILITY, 32), options=options).asm["ptx"])
    registers, stores = (re.findall(x, words)[0] for x in (r"Used (\d+) registers", r"(\d+) bytes spill stores"))
    print(kernel.fn.__name__, registers, stores, flush=True)


triton.JITFunction.run = start

for sizes in SIZES:
    b, i, j, d, e = sizes
    for kind in (torch.float32, torch.bfloat16) if sizes == SIZES[0] else (torch.float32,):
        u, weight = torch.empty(b, i, d, dtype=kind), torch.empty(i, j, d, e, dtype=kind)
        pose, length, _, states = dynamic.forward_op(u, weight, None, None, 3, False, True, False)
        dynamic.backward_op(pose, length, None, u, weight, None, states, False, True)
