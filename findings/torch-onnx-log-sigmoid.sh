#!/usr/bin/env bash
# torch 2.13.0, onnxruntime 1.32.0: functions that torch computes for any number are infinite in an exported program.
#
# Guess: an exporter writes logsigmoid, binary_cross_entropy_with_logits and logaddexp so that they are as exact as in
# torch, by ONNX's Softplus and Max; who takes these functions does so because the formulas in full overflow.
# Seen: torch.onnx.export(dynamo=True) writes log(sigmoid(x)) for the first two and log(exp(a) + exp(b)) for the third.
# logsigmoid(-95) becomes -inf, the loss of a right answer inf instead of 0, and logaddexp(0, 100) inf instead of 100.
# log_softmax, logsumexp and softplus are right. Shares of capsules that are all unlikely became NaN by it: so write
# -softplus(-x, threshold=40) for logsigmoid(x) in what is exported (ops/log_sigmoid.py).
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cat > "$place/try.py" <<'PY'
import sys

import onnxruntime
import torch
import torch.nn.functional as F


def two(x):
    return torch.stack([torch.zeros_like(x), x])


class Model(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


cases = {
    "logsigmoid": (F.logsigmoid, -95.0, True),
    "binary_cross_entropy_with_logits": (
        lambda x: F.binary_cross_entropy_with_logits(x, torch.zeros_like(x), reduction="none"),
        -95.0,
        True,
    ),
    "logaddexp": (lambda x: torch.logaddexp(torch.zeros_like(x), x), 100.0, True),
    "-softplus(-x)": (lambda x: -F.softplus(-x, threshold=40.0), -95.0, False),
    "log_softmax": (lambda x: two(x).log_softmax(0)[1], -95.0, False),
    "logsumexp": (lambda x: two(x).logsumexp(0), 100.0, False),
}
print("torch", torch.__version__, "onnxruntime", onnxruntime.__version__)
same = True
for name, (function, number, infinite) in cases.items():
    x = torch.tensor([number])
    program = torch.onnx.export(Model(function).eval(), (x,), dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString(), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": x.numpy()})
    operators = [node.op_type for node in program.model.graph]
    print(f"{name} of {number}: torch {function(x).item():.6g}, onnxruntime {found.item():.6g}, by {operators}")
    same &= bool(torch.isfinite(function(x)).all()) and (abs(found.item()) == float("inf")) == infinite
sys.exit(0 if same else "the behaviour has changed")
PY
python3 -m venv "$place/torch"
"$place/torch/bin/pip" install --quiet torch==2.13.0 numpy onnx==1.23.2 onnxscript==0.7.2 onnxruntime==1.32.0
"$place/torch/bin/python" -W ignore::FutureWarning "$place/try.py"
