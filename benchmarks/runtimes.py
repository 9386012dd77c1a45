"""Test errors of exported weights in each runtime, on 1,000 test images of MNIST, beside eager's.

``python -m benchmarks.runtimes --data DIR --onnxruntime-web FOLDER --out study/results`` exports ``mnist-small`` and
runs the files in onnxruntime, in OpenVINO as it comes and with its hint for float32, and in Debian's Chromium by
onnxruntime-web. DIR has the folder mnist. It needs the extra ``export`` and playwright.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.playground import hosted, opened_page
from study import records
from torchcaps import export
from torchcaps.data.images import to_float
from torchcaps.data.mnist import read_idx
from torchcaps.playground.runtime import VERSION, copy_runtime
from torchcaps.training.checkpoint import load_model
from torchcaps.training.environment import commit, versions

NAME = "runtimes-mnist-small"
WEIGHTS = "pretrained:mnist-small"
N_IMAGES, N_BATCH = 1000, 100
#: Scores of all images, in batches, by the model and the images that lie beside the page.
_RUN = """async ([n, perBatch]) => {
  const runtime = await import("./onnxruntime.js");
  runtime.env.wasm.numThreads = 1;
  runtime.env.wasm.wasmPaths = { wasm: new URL("onnxruntime.wasm", location.href).href };
  const fetched = async (name) => (await fetch(name)).arrayBuffer();
  const session = await runtime.InferenceSession.create(new Uint8Array(await fetched("model.onnx")));
  const pixels = new Float32Array(await fetched("images.bin"));
  const scores = [];
  for (let k = 0; k < n; k += perBatch) {
    const images = new runtime.Tensor("float32", pixels.slice(k * 784, (k + perBatch) * 784), [perBatch, 1, 28, 28]);
    scores.push(...(await session.run({ images })).scores.data);
  }
  return scores;
}"""


def measure(data: Path, package: Path | None) -> dict[str, Any]:
    """Return of each runtime its test error and how far its scores are from eager's."""
    images = to_float(read_idx(data / "mnist" / "t10k-images-idx3-ubyte.gz")[:N_IMAGES, None])
    labels = read_idx(data / "mnist" / "t10k-labels-idx1-ubyte.gz")[:N_IMAGES].long()
    model = load_model(WEIGHTS).model
    with torch.no_grad():
        eager = torch.cat([model(batch).scores for batch in images.split(N_BATCH)])
    found = {"eager": _compared(eager, eager, labels)}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for file, form in (("model.onnx", "onnx"), ("model.xml", "openvino"), ("model.pt2", "pt2")):
            export(WEIGHTS, folder / file, format=form, images=images[:N_BATCH])
        for name, scores in _runtimes(folder, images, package):
            found[name] = _compared(scores, eager, labels)
    return found


def _runtimes(folder: Path, images: Tensor, package: Path | None) -> Iterator[tuple[str, Tensor]]:
    """Run the files of a folder, and name what ran them."""
    import onnxruntime  # pyright: ignore[reportMissingImports]
    import openvino  # pyright: ignore[reportMissingImports]

    program = torch.export.load(folder / "model.pt2").module()
    with torch.no_grad():
        yield f"torch {torch.__version__}, pt2", torch.cat([program(batch) for batch in images.split(N_BATCH)])
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
    scores = [np.asarray(session.run(None, {"images": batch.numpy()})[0]) for batch in images.split(N_BATCH)]
    yield f"onnxruntime {onnxruntime.__version__}", torch.from_numpy(np.concatenate(scores))
    core = openvino.Core()
    number = openvino.__version__.split("-")[0]
    for name, options in (("as it comes", {}), ("INFERENCE_PRECISION_HINT f32", {"INFERENCE_PRECISION_HINT": "f32"})):
        compiled = core.compile_model(core.read_model(str(folder / "model.xml")), "CPU", options)
        scores = [compiled(batch.numpy())[0].copy() for batch in images.split(N_BATCH)]
        yield f"openvino {number}, {name}", torch.from_numpy(np.concatenate(scores))
    copy_runtime(package, folder)
    (folder / "index.html").write_text("<!doctype html><title>runtimes</title>", encoding="utf-8")
    (folder / "images.bin").write_bytes(images.numpy().tobytes())
    with hosted(str(folder)) as address, opened_page(address) as page:
        given = page.evaluate(_RUN, [len(images), N_BATCH])
        yield f"onnxruntime-web {VERSION}, Chromium {page.context.browser.version}", torch.tensor(given).view(-1, 10)


def _compared(scores: Tensor, eager: Tensor, labels: Tensor) -> dict[str, float]:
    said = scores.argmax(dim=1)
    return {
        "error": (said != labels).double().mean().item(),
        "other_predictions": int((said != eager.argmax(dim=1)).sum()),
        "largest_difference": (scores - eager).abs().max().item(),
    }


def main() -> None:
    """Measure and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder that has mnist")
    parser.add_argument("--onnxruntime-web", type=Path, help="folder of that npm package")
    parser.add_argument("--out", type=Path, help="folder of checks.jsonl, such as study/results")
    parsed = parser.parse_args()
    found = measure(parsed.data, parsed.onnxruntime_web)
    record = {"what": __doc__, "weights": WEIGHTS, "n_images": N_IMAGES, "batch": N_BATCH, "runtimes": found}
    for name, values in found.items():
        print(name, values)
    if parsed.out is not None:
        record |= {"versions": versions(), "commit": commit()}
        print(records.write("checks", NAME, record, parsed.out, replace=True))


if __name__ == "__main__":
    main()
