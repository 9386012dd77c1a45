#!/usr/bin/env bash
# torch 2.11.0: torch.compile refuses two lines that plain Python runs; torch 2.13.0 takes both.
#
# Guess: a list or tuple may be indexed by a bool, as bool is an int; and torch.amp.is_autocast_available, a public
# function of a string, is a constant to the compiler.
# Seen on 2.11: fullgraph=True raises Unsupported for each ("indices must be integers or slices, not bool"; "does not
# know how to trace the builtin torch._C._is_autocast_available"). Without fullgraph each breaks the graph in two.
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cat > "$place/try.py" <<'PY'
import sys, warnings
import torch

warnings.simplefilter("ignore")

def by_bool(x, dense):
    return x * (1.0, 2.0)[dense]

def by_int(x, dense):
    return x * (1.0, 2.0)[int(dense)]

def asks_autocast(x, _):
    return 2 * x if torch.amp.is_autocast_available("cpu") else x

def outcome(function):
    try:
        torch.compile(function, fullgraph=True, backend="eager")(torch.ones(2), True)
        return "compiled"
    except torch._dynamo.exc.Unsupported:
        return "refused"

got = {f.__name__: outcome(f) for f in (by_bool, by_int, asks_autocast)}
print("torch", torch.__version__, got)
old = torch.__version__.startswith("2.11")
want = {"by_bool": "refused" if old else "compiled", "by_int": "compiled", "asks_autocast": "refused" if old else "compiled"}
sys.exit(0 if got == want else "the behaviour has changed")
PY
for torch in 2.11.0 2.13.0; do
  python3 -m venv "$place/$torch"
  "$place/$torch/bin/pip" install --quiet "torch==$torch" numpy==2.3.5
  "$place/$torch/bin/python" "$place/try.py"
done
