"""The same network in other runtimes: what a user would pick instead. A runtime that is not installed is left out."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from torchcaps.training.export import export

Scorer = Callable[[], Tensor]


def why_not(runtime: str) -> str | None:
    """Say which package is not installed; None where the runtime can be measured."""
    missing = [name for name in _NEEDS[runtime] if importlib.util.find_spec(name) is None]
    return f"{runtime} is left out: {' and '.join(missing)} not installed" if missing else None


def onnxruntime(model: nn.Module, images: Tensor, threads: int) -> Scorer:
    """Return a call that gives the scores by onnxruntime."""
    import onnxruntime as runtime  # pyright: ignore[reportMissingImports]

    options: Any = runtime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    with tempfile.TemporaryDirectory() as folder:
        file = _exported(model, images, Path(folder))
        session = runtime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    given = {"images": images.numpy()}
    return lambda: torch.from_numpy(session.run(None, given)[0])


def openvino(model: nn.Module, images: Tensor, threads: int) -> Scorer:
    """Return a call that gives the scores by OpenVINO, in float32."""
    import openvino as runtime  # pyright: ignore[reportMissingImports]

    core = runtime.Core()
    with tempfile.TemporaryDirectory() as folder:
        read = core.read_model(str(_exported(model, images, Path(folder))))
        hints = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads}
        request = core.compile_model(read, "CPU", hints).create_infer_request()
    given = images.numpy()
    return lambda: torch.from_numpy(request.infer({0: given})[0])


def _exported(model: nn.Module, images: Tensor, folder: Path) -> Path:
    return export(model, folder / "model.onnx", format="onnx", images=images).path


#: Every runtime, by name.
RUNTIMES: dict[str, Callable[[nn.Module, Tensor, int], Scorer]] = {"onnxruntime": onnxruntime, "OpenVINO": openvino}
_NEEDS = {
    "onnxruntime": ("onnx", "onnxscript", "onnxruntime"),
    "OpenVINO": ("onnx", "onnxscript", "openvino"),
    "JAX": ("jax",),
}
