#!/usr/bin/env bash
# onnxruntime 1.30.0: ScatterND with reduction="add" loses terms where indices repeat, on more than one thread.
#
# Guess: a reduction adds every update, whatever the number of threads; the ONNX operator promises it for "add".
# Seen: the CPU kernel adds from several threads without a lock. Sums differ from call to call; one thread is right.
# torch's index_add is exported to this operator. scatter_add, as ScatterElements, is right on any number of threads.
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install --quiet onnxruntime==1.30.0 onnx==1.23.1 numpy==2.3.5
"$place/venv/bin/python" - <<'PY'
import os, sys
import numpy as np, onnx, onnxruntime as ort
from onnx import TensorProto, helper

print("onnxruntime", ort.__version__, "on", os.cpu_count(), "cores")
if (os.cpu_count() or 1) < 2:
    sys.exit("needs two cores")
n, rows, width = 1 << 20, 2, 16
nodes = {
    "ScatterND": helper.make_node("ScatterND", ["data", "indices", "updates"], ["out"], reduction="add"),
    "ScatterElements": helper.make_node("ScatterElements", ["data", "indices", "updates"], ["out"], reduction="add"),
}
row = (np.arange(n) % rows)[:, None].astype(np.int64)
indices = {"ScatterND": row, "ScatterElements": np.tile(row, width)}
updates, data = np.ones((n, width), np.float32), np.zeros((rows, width), np.float32)

def wrong(kind, threads):
    inputs = {"data": data, "indices": indices[kind], "updates": updates}
    kinds = {"data": TensorProto.FLOAT, "indices": TensorProto.INT64, "updates": TensorProto.FLOAT}
    types = [helper.make_tensor_value_info(name, kinds[name], x.shape) for name, x in inputs.items()]
    out = helper.make_tensor_value_info("out", TensorProto.FLOAT, data.shape)
    graph = helper.make_graph([nodes[kind]], "g", types, [out])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    model.ir_version = 10
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    results = [session.run(None, inputs)[0] for _ in range(20)]
    return sum(not (r == n / rows).all() for r in results), min(float(r.min()) for r in results)

bad = {}
for kind in nodes:
    for threads in (1, 8):
        bad[kind, threads], least = wrong(kind, threads)
        print(f"{kind}, {threads} thread(s): {bad[kind, threads]} of 20 calls wrong; wanted {n // rows}, least {least:.0f}")
seen = bad["ScatterND", 8] > 0 and bad["ScatterND", 1] == bad["ScatterElements", 1] == bad["ScatterElements", 8] == 0
sys.exit(0 if seen else "the behaviour has changed")
PY
