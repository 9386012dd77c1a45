#!/usr/bin/env bash
# torch 2.11.0 and 2.13.0: TF32 has two sets of switches, and reading the old one may raise.
#
# Guess: cudnn.allow_tf32 and cudnn.conv.fp32_precision are two names of one switch.
# Seen: after conv.fp32_precision = "ieee" reading allow_tf32 raises RuntimeError, as it stands for recurrent networks
# too; setting conv back mends it. After matmul.allow_tf32 = False upon "high" it is get_float32_matmul_precision that
# raises. Switched off by allow_tf32, conv reads "none", not "ieee". So: leave alone what is off, and switch what is on
# by the interface that can still be read (benchmarks/tf32.py).
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cat > "$place/try.py" <<'PY'
import sys, warnings
import torch

warnings.simplefilter("ignore")
cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul

def read(function):
    try:
        return function()
    except RuntimeError:
        return "raises"

cudnn.conv.fp32_precision = "ieee"
got = [read(lambda: cudnn.allow_tf32)]
cudnn.conv.fp32_precision = "tf32"
got.append(read(lambda: cudnn.allow_tf32))
cudnn.allow_tf32 = False
got.append(cudnn.conv.fp32_precision)
torch.set_float32_matmul_precision("high")
matmul.fp32_precision = "tf32"
matmul.allow_tf32 = False
got.append(read(torch.get_float32_matmul_precision))
print("torch", torch.__version__, got)
sys.exit(0 if got == ["raises", True, "none", "raises"] else "the behaviour has changed")
PY
for torch in 2.11.0 2.13.0; do
  python3 -m venv "$place/$torch"
  "$place/$torch/bin/pip" install --quiet "torch==$torch" numpy
  "$place/$torch/bin/python" "$place/try.py"
done
