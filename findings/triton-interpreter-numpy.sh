#!/usr/bin/env bash
# triton 3.6.0: its interpreter (TRITON_INTERPRET=1) cannot run `for i in range(lo, hi)` of run-time bounds with numpy 2.4.
#
# Guess: the interpreter runs whatever the compiler takes, with any numpy that triton's metadata allow.
# Seen: bounds are arrays of one element; numpy 2.4 no longer turns these into an index, numpy 2.3 does with a warning.
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cat > "$place/kernel.py" <<'PY'
import sys, warnings
import numpy, torch, triton, triton.language as tl

@triton.jit
def add_up(x, out, lo, hi):
    total = 0.0
    for i in range(lo, hi):
        total += tl.load(x + i)
    tl.store(out, total)

warnings.simplefilter("ignore")
out = torch.zeros(1)
print("triton", triton.__version__, "numpy", numpy.__version__, end=": ")
try:
    add_up[(1,)](torch.arange(8.0), out, 2, 6)
    print("ran, sum", out.item())
except Exception as error:
    print("failed:", str(error).strip().splitlines()[-1][:160])
    sys.exit(1)
PY
for numpy in 2.3.5 2.4.0; do
  python3 -m venv "$place/$numpy"
  "$place/$numpy/bin/pip" install --quiet torch==2.13.0 triton==3.6.0 "numpy==$numpy"
done
TRITON_INTERPRET=1 "$place/2.3.5/bin/python" "$place/kernel.py"
if TRITON_INTERPRET=1 "$place/2.4.0/bin/python" "$place/kernel.py"; then
  echo "the behaviour has changed"
  exit 1
fi
