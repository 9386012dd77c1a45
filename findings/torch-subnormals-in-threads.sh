#!/usr/bin/env bash
# torch 2.13.0: set_flush_denormal(False) does not reach worker threads that were started while it was True.
#
# Guess: the switch holds for all of torch's threads, or for the calling one alone.
# Seen: it depends on when the threads were started. Those that start while it is True keep it for good: after False,
# 1e-40 · 1 is 0 in the part of a tensor that a worker computes, and 1e-40 in the caller's part. Threads that ran
# before follow it both ways. So: after training, set it in each thread (training/environment.py).
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cat > "$place/try.py" <<'PY'
import sys
import torch

torch.set_num_threads(2)

def kept():
    """The share of subnormal numbers that each half of a tensor keeps when it is multiplied by 1."""
    x = torch.full((1 << 22,), 1e-40) * 1.0
    return [round(half.count_nonzero().item() / len(half), 2) for half in x.chunk(2)]

if sys.argv[1] == "before":
    kept()
torch.set_flush_denormal(True)
on = kept()
torch.set_flush_denormal(False)
off = kept()
print("torch", torch.__version__, "threads started", sys.argv[1], "the switch: on", on, "off", off)
wanted = off == [1, 1] if sys.argv[1] == "before" else off[1] < 1
sys.exit(0 if on == [0, 0] and wanted else "the behaviour has changed")
PY
python3 -m venv "$place/torch"
"$place/torch/bin/pip" install --quiet torch==2.13.0 numpy
for started in before after; do "$place/torch/bin/python" "$place/try.py" "$started"; done
