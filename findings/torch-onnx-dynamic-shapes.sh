#!/usr/bin/env bash
# torch 2.13.0: torch.onnx.export fixes a size that dynamic_shapes calls dynamic, and says nothing.
#
# Guess: where torch.export.export refuses dynamic_shapes, as a model that calls len() fixes the size,
# torch.onnx.export(dynamo=True) refuses too.
# Seen: torch.export.export raises "Constraints violated". torch.onnx.export writes a program of the example's size,
# without a warning, with verbose=True too. So: compare exported programs on an example of another size
# (playground/programs.py), and use x.shape[0] for len(x).
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cat > "$place/try.py" <<'PY'
import sys
import warnings

import torch

warnings.filterwarnings("error", message=".*dynamic.*")


class Model(torch.nn.Module):
    def forward(self, x):
        return x * torch.ones(len(x), 1)


model, images = Model().eval(), torch.rand(3, 2)
shapes = {"x": {0: torch.export.Dim("n", min=1)}}
try:
    torch.export.export(model, (images,), dynamic_shapes=shapes)
    refused = "nothing"
except Exception as error:
    refused = str(error).splitlines()[0]
program = torch.onnx.export(model, (images,), dynamo=True, verbose=False, dynamic_shapes=shapes)
shape = [str(size) for size in program.model.graph.inputs[0].shape]
print("torch", torch.__version__, "torch.export:", refused, "torch.onnx: input of shape", shape)
sys.exit(0 if refused.startswith("Constraints violated") and shape == ["3", "2"] else "the behaviour has changed")
PY
python3 -m venv "$place/torch"
"$place/torch/bin/pip" install --quiet torch==2.13.0 numpy onnx==1.23.2 onnxscript==0.7.2
"$place/torch/bin/python" -W ignore::FutureWarning "$place/try.py"
