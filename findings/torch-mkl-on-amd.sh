#!/usr/bin/env bash
# torch 2.13.0 (MKL 2024.2, oneDNN 3.12), AMD EPYC of Zen 5: a float32 product by `a @ b` takes twice as long as by the
# other library that torch brings.
#
# Guess: both run near the processor's peak; which library multiplies hardly matters.
# Seen: MKL, which `a @ b`, torch.bmm and F.linear take, reaches 105 GFLOP/s on one core, oneDNN 235; as oneDNN multiplies
# in convolutions, those run at full speed. The same with torch 2.6 and 2.14. So: ops/product.py.
# MKL uses no AVX-512 on AMD. On Zen 4 (family 25), which halves each such instruction, it does not matter: 88 beside 104.
# Elsewhere than on Zen 5 (family 26) there is nothing to see, and the script says so.
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cat > "$place/try.py" <<'PY'
import statistics
import sys
import time
import torch

cpu = open("/proc/cpuinfo").read()
name = next(line.split(":")[1].strip() for line in cpu.splitlines() if line.startswith("model name"))
print("torch", torch.__version__, "on", name, torch.backends.cpu.get_cpu_capability())
torch.set_num_threads(1)
a, b = torch.rand(1024, 1024), torch.rand(1024, 1024)
by_onednn = torch.ops.mkldnn._linear_pointwise  # what torch.compile makes of a linear layer
ways = {"a @ b": lambda: a @ b, "oneDNN": lambda: by_onednn(a, b.T, None, "none", [], "")}
assert torch.allclose(ways["a @ b"](), ways["oneDNN"]())
times = {way: [] for way in ways}
for _ in range(20):
    for way, multiply in ways.items():
        start = time.perf_counter()
        multiply()
        times[way].append(time.perf_counter() - start)
rate = {way: 2 * 1024**3 / statistics.median(found) / 1e9 for way, found in times.items()}
print({way: f"{found:.0f} GFLOP/s" for way, found in rate.items()})
family = next(int(line.split(":")[1]) for line in cpu.splitlines() if line.startswith("cpu family"))
if "AuthenticAMD" not in cpu or family < 25 or torch.backends.cpu.get_cpu_capability() != "AVX512":
    sys.exit(print("nothing to see here"))
twice = rate["oneDNN"] > 1.5 * rate["a @ b"]
sys.exit(0 if twice == (family > 25) else "the behaviour has changed")
PY
python3 -m venv "$place/torch"
"$place/torch/bin/pip" install --quiet torch==2.13.0 numpy
"$place/torch/bin/python" "$place/try.py"
