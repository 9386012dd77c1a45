#!/usr/bin/env bash
# jax 0.10.2 (XLA on a CPU): the gradient of a strided convolution's input takes some thirty times as long as the
# convolution, where without a stride it takes less.
#
# Guess: about as long as the convolution, as it is one of as many multiplications.
# Seen: with stride 2 it takes 4.8 s where the convolution takes 0.15 s (16 maps of 20x20, 256 channels, 9x9 kernel, one
# core). The gradient of the weight is quick. So a training step of CapsNet takes 21 s: benchmarks/by_jax.py.
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cat > "$place/try.py" <<'PY'
import sys
import time
import jax
import jax.numpy as jnp

x, w = jnp.ones((8, 20, 20, 128)), jnp.ones((9, 9, 128, 128))

def conv(x, w, stride):
    layout = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, w, (stride, stride), "VALID", dimension_numbers=layout)

def seconds(function):
    jax.block_until_ready(function(x, w))
    start = time.perf_counter()
    jax.block_until_ready(function(x, w))
    return time.perf_counter() - start

over = {}
for stride in (1, 2):
    forward = jax.jit(lambda x, w: conv(x, w, stride))
    gradient = jax.jit(jax.grad(lambda x, w: conv(x, w, stride).sum()))
    over[stride] = seconds(gradient) / seconds(forward)
print("jax", jax.__version__, {f"stride {k}": f"gradient over convolution {v:.1f}" for k, v in over.items()})
sys.exit(0 if over[1] < 3 and over[2] > 8 else "the behaviour has changed")
PY
python3 -m venv "$place/jax"
"$place/jax/bin/pip" install --quiet jax==0.10.2
"$place/jax/bin/python" "$place/try.py"
