"""The logarithm of the logistic function: the library's numbers, here and in exported programs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchcaps import Capsules, DenseCaps
from torchcaps.layers import EMRouting, HeinsenMatrixRouting, HeinsenVectorRouting, Routing
from torchcaps.ops import log_sigmoid as module
from torchcaps.ops.log_sigmoid import log_sigmoid

EXTREMES = [-1e30, -300.0, -88.0, -39.9, -20.0, -1e-9, 0.0, 1.0, 20.0, 40.1, 300.0, 1e30]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("elsewhere", [False, True])
def test_is_that_of_torch(elsewhere: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "is_read_elsewhere", lambda: elsewhere)
    x = torch.cat([torch.linspace(-60, 60, 2000, dtype=dtype), torch.tensor(EXTREMES, dtype=dtype)]).requires_grad_()
    ours, theirs = log_sigmoid(x), F.logsigmoid(x)
    torch.testing.assert_close(ours, theirs, rtol=4 * torch.finfo(dtype).eps, atol=1e-17)
    (slope,), (wanted,) = (torch.autograd.grad(y.sum(), x) for y in (ours, theirs))
    torch.testing.assert_close(slope, wanted, rtol=1e-5 if dtype == torch.float32 else 1e-12, atol=1e-17)


#: Routings that take it, and the parameter that makes all capsules very unlikely.
UNLIKELY = {
    "em": (EMRouting(backend="reference"), "beta_a", 3e3),
    "heinsen_matrix": (HeinsenMatrixRouting(backend="reference"), "beta_ign", 3e2),
    "heinsen_vector": (HeinsenVectorRouting(), "similarity_bias", -3e2),
}


@pytest.mark.parametrize(("routing", "name", "value"), UNLIKELY.values(), ids=UNLIKELY)
def test_onnx_has_unlikely_capsules(routing: Routing, name: str, value: float, tmp_path: Path) -> None:
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    import onnxruntime  # pyright: ignore[reportMissingImports]

    class Routed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = DenseCaps(6, 4, 16, 16, routing=routing)

        def forward(self, pose: Tensor, activation: Tensor) -> Tensor:
            return self.layer(Capsules(pose, activation)).pose

    model, given = Routed().eval(), (torch.randn(3, 6, 16), torch.rand(3, 6))
    with torch.no_grad():
        model.layer.get_parameter(name).fill_(value)
        wanted = model(*given)
    torch.onnx.export(model, given, tmp_path / "routed.onnx", dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(tmp_path / "routed.onnx", providers=["CPUExecutionProvider"])
    names = [x.name for x in session.get_inputs()]
    (found,) = session.run(None, dict(zip(names, (x.numpy() for x in given), strict=True)))
    torch.testing.assert_close(torch.from_numpy(found), wanted, rtol=0, atol=1e-4)
