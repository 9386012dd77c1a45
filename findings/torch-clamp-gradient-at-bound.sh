#!/usr/bin/env bash
# torch 2.13.0 and 2.14.1: clamp gives no gradient any more to what lies exactly at its bound.
#
# Guess: a value that clamp leaves as it is gets its gradient, at the bound too; so it was from 2018 to 2.13
# (pytorch/pytorch#7049).
# Seen: from 2.14 the gradient there is 0 where the bound is a number (asked for in pytorch/pytorch#184572), and a half
# where it is a tensor. Nothing warns. A softmax that is shifted by its own maximum and clamped at 0 loses the gradient
# of its largest share. So: masked_fill where what is at the bound counts (ops/self_routing/routing.py).
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cat > "$place/try.py" <<'PY'
import sys

import torch

bound = torch.tensor(0.0)
ways = {
    "clamp_max(0)": lambda x: x.clamp_max(0),
    "clamp_min(0)": lambda x: x.clamp_min(0),
    "clamp(-1, 0)": lambda x: x.clamp(-1, 0),
    "clamp(max=tensor)": lambda x: x.clamp(max=bound),
    "masked_fill": lambda x: x.masked_fill(x > 0, 0),
}
got = {}
for name, clamp in ways.items():
    x = torch.tensor(0.0, requires_grad=True)
    clamp(x).backward()
    got[name] = x.grad.item()
print("torch", torch.__version__, got)
wanted = {"2.13.0": [1.0, 1.0, 1.0, 1.0, 1.0], "2.14.1": [0.0, 0.0, 0.0, 0.5, 1.0]}[torch.__version__.partition("+")[0]]
sys.exit(0 if list(got.values()) == wanted else "the behaviour has changed")
PY
for torch in 2.13.0 2.14.1; do
  python3 -m venv "$place/$torch"
  "$place/$torch/bin/pip" install --quiet "torch==$torch" numpy
  "$place/$torch/bin/python" "$place/try.py"
done
