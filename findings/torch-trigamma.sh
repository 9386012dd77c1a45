#!/usr/bin/env bash
# torch 2.13.0 and 2.14.1: polygamma(1, x) of float64 is right to 9 digits only, and so is the gradient of digamma.
#
# Guess: special functions of float64 are right to 15 digits, as digamma, polygamma(2, x) and zeta(2, x) are.
# Seen: for x = 1 it is off by 4.8e-10 of itself, for x = 8 by 1.2e-11. gradcheck passes, since its tolerance is wider.
# zeta(2, x), which is the same function, is right. Two formulas for one loss agree to 1e-14, and their gradients only to
# 1e-10. So: digamma by its recurrence, further up, where the gradient is right (ops/variational_bayes/digamma.py).
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cat > "$place/try.py" <<'PY'
import sys

import torch

x = torch.tensor([1.0, 8.0], dtype=torch.float64, requires_grad=True)
true = torch.tensor([1.6449340668482264, 0.1331370146940314], dtype=torch.float64)  # pi^2 / 6, and that less 1 ... 1/49
(slope,) = torch.autograd.grad(torch.digamma(x).sum(), x)
two = torch.tensor(2.0, dtype=torch.float64)
found = {"gradient of digamma": slope, "polygamma(1, x)": torch.polygamma(1, x), "zeta(2, x)": torch.special.zeta(two, x)}
off = {name: ((value.detach() - true) / true).abs().tolist() for name, value in found.items()}
print("torch", torch.__version__, {name: [f"{number:.1e}" for number in each] for name, each in off.items()})
as_seen = off["zeta(2, x)"][0] < 1e-15 and all(
    4e-10 < off[name][0] < 6e-10 and 1e-11 < off[name][1] < 2e-11 for name in ("gradient of digamma", "polygamma(1, x)")
)
sys.exit(0 if as_seen else "the behaviour has changed")
PY
for torch in 2.13.0 2.14.1; do
  python3 -m venv "$place/$torch"
  "$place/$torch/bin/pip" install --quiet "torch==$torch" numpy
  "$place/$torch/bin/python" "$place/try.py"
done
