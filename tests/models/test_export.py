"""Models as programs that are saved and read elsewhere: of torch.export, and ONNX in onnxruntime."""

from __future__ import annotations

import io
import itertools
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from torchcaps.layers import DynamicRouting
from torchcaps.models import Scores, build

NETWORKS: dict[str, tuple[tuple[int, int, int], dict[str, Any]]] = {
    "capsnet_small": ((1, 20, 20), {"channels": 4}),
    "capsnet_stacked": ((1, 24, 24), {"channels": 4, "backprop": "last"}),
    # Not smaller: sums over repeated indices were wrong on several threads from about this size on.
    "matrix_capsnet_small": ((2, 32, 32), {"n_iters": 2}),
    "matched_cnn": ((1, 28, 28), {"n_parameters": 3000}),
    "translation_autoencoder": ((1, 20, 20), {}),
    "template_autoencoder": ((1, 20, 20), {}),
}
EXPORTED, FREE = 4, 32  # images that a program is exported with; and that one with a free batch is given
#: Reads what others saved, and says how far it is from what they found.
READER = """
import json, sys, torch, torchcaps.models
from torch.utils._pytree import tree_leaves
errors = {}
for name in sys.argv[1:]:
    given, wanted = torch.load(f"{name}.pt")
    found = torch.export.load(f"{name}.pt2").module()(*given)
    assert type(found) is type(wanted), type(found)
    assert [type(x) for x in tree_leaves(found)] == [type(x) for x in tree_leaves(wanted)]
    pairs = zip(tree_leaves(found), tree_leaves(wanted))
    errors[name] = max((x - y).abs().max().item() for x, y in pairs if y is not None)
json.dump(errors, sys.stdout)
"""


def network(name: str, **options: Any) -> nn.Module:
    shape, given = NETWORKS[name]
    return build(name, shape, 3, **given, **options).eval()


def inputs(name: str, n: int) -> tuple[Tensor, ...]:
    images = torch.rand(n, *NETWORKS[name][0])
    shift = torch.eye(3).repeat(n, 1, 1)
    shift[:, :2, 2] = torch.rand(n, 2)
    return (images, shift) if name.endswith("autoencoder") else (images,)


def batch_of(given: tuple[Tensor, ...], free: bool) -> tuple[dict[int, Any], ...] | None:
    batch = torch.export.Dim("batch", min=1, max=1024)
    return tuple({0: batch} for _ in given) if free else None


def test_programs_are_loaded_in_another_process(tmp_path: Path) -> None:
    """In which only ``torchcaps.models`` is imported, as the guide says: it makes operators and results known."""
    names = []
    for name, backend, free in itertools.product(NETWORKS, ("reference", "auto"), (False, True)):
        routed = not name.endswith(("cnn", "autoencoder"))
        if not routed and backend == "auto":
            continue
        model, given = network(name, **({"backend": backend} if routed else {})), inputs(name, EXPORTED)
        program = torch.export.export(model, given, dynamic_shapes=batch_of(given, free))
        names.append(f"{name}-{backend}-{'free' if free else 'static'}")
        torch.export.save(program, tmp_path / f"{names[-1]}.pt2")
        given = inputs(name, FREE if free else EXPORTED)
        torch.save((given, model(*given)), tmp_path / f"{names[-1]}.pt")
    command = [sys.executable, "-c", READER, *names]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    errors = json.loads(done.stdout)
    assert list(errors) == names
    assert max(errors.values()) < 1e-5, errors


@pytest.mark.filterwarnings("ignore:The given buffer is not writable:UserWarning")  # torch 2.11's loader
@pytest.mark.parametrize("name", ["capsnet_small", "matrix_capsnet_small"])
@pytest.mark.parametrize("backend", ["reference", "auto"])
def test_programs_exported_under_autocast_are_right_there(name: str, backend: str) -> None:
    model, given, file = network(name, backend=backend), inputs(name, EXPORTED), io.BytesIO()
    with torch.autocast("cpu", torch.bfloat16):
        torch.export.save(torch.export.export(model, given), file)
        file.seek(0)
        found, wanted = torch.export.load(file).module()(*given), model(*given)
    torch.testing.assert_close(found.scores, wanted.scores, rtol=0, atol=1e-5)


# Two inputs with one batch share its name, of which torch says that it is used once.
@pytest.mark.filterwarnings("ignore:# The axis name. batch will not be used:UserWarning")
@pytest.mark.parametrize("free", [False, True], ids=["static", "free"])
@pytest.mark.parametrize("name", NETWORKS)
def test_onnx_is_right_in_onnxruntime(name: str, free: bool, tmp_path: Path) -> None:
    """By plain PyTorch whatever runs here, on one thread and on several, each time."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    import onnxruntime  # pyright: ignore[reportMissingImports]

    model, given, file = network(name), inputs(name, EXPORTED), tmp_path / "model.onnx"
    torch.onnx.export(model, given, file, dynamo=True, verbose=False, dynamic_shapes=batch_of(given, free))
    given = inputs(name, FREE if free else EXPORTED)
    with torch.no_grad():
        wanted = [x.numpy() for x in tree_leaves(model(*given)) if x is not None]
    for n_threads in (1, max(2, os.cpu_count() or 1)):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = n_threads
        session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        arrays = {each.name: x.numpy() for each, x in zip(session.get_inputs(), given, strict=True)}
        for _ in range(20):
            for found, right in zip(session.run(None, arrays), wanted, strict=True):
                np.testing.assert_allclose(found, right, rtol=0, atol=1e-5)


def test_what_a_model_found_can_be_saved() -> None:
    """And loaded by torch.load as it comes, which takes no class that it was not told of."""
    found, file = build("capsnet_small", (1, 20, 20), 3, channels=4)(torch.rand(2, 1, 20, 20)), io.BytesIO()
    torch.save(found, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    assert type(loaded) is type(found) and type(loaded.capsules[-1]) is type(found.capsules[-1])
    assert loaded.capsules[-1].pose.equal(found.capsules[-1].pose) and loaded.scores.equal(found.scores)


def test_scores_load_where_this_library_is_not(tmp_path: Path) -> None:
    """As docs/do/export.md says: a trained network's routing by the reference, and one tensor as its result."""
    model = build("capsnet_small", (1, 28, 28), 10, channels=8, n_types=2).eval()
    for layer in model.modules():
        if isinstance(routing := getattr(layer, "routing", None), DynamicRouting):
            layer.routing = replace(routing, backend="reference")
    x = torch.rand(3, 1, 28, 28)
    program = torch.export.export(Scores(model), (x,), dynamic_shapes=({0: torch.export.Dim("batch", max=64)},))
    torch.export.save(program, tmp_path / "scores.pt2")
    torch.save((x, model(x).scores.detach()), tmp_path / "expected.pt")
    code = """
import sys, torch
sys.modules["torchcaps"] = None  # no import of it succeeds
x, expected = torch.load("expected.pt")
scores = torch.export.load("scores.pt2").module()
torch.testing.assert_close(scores(x).detach(), expected)
assert scores(x[:1]).shape == (1, 10)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["capsnet_small", "capsnet_stacked", "matrix_capsnet_small"])
def test_programs_have_what_other_runtimes_read(name: str) -> None:
    """No more than six axes, and no scattered sums: ExecuTorch and OpenVINO refuse them."""
    model, given = network(name, backend="reference"), inputs(name, EXPORTED)
    nodes = torch.export.export(model, given, dynamic_shapes=batch_of(given, free=True)).graph.nodes
    values = [node.meta["val"] for node in nodes if isinstance(node.meta.get("val"), Tensor)]
    assert max(value.dim() for value in values) <= 6
    assert not [node for node in nodes if "scatter" in str(node.target) or "index_add" in str(node.target)]
