"""Files of trained networks: whole, right, and read where torchcaps is not installed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.tiny import TINY
from torchcaps.cli import main
from torchcaps.data import load
from torchcaps.models import build, cards
from torchcaps.training import export as module
from torchcaps.training.checkpoint import load_model
from torchcaps.training.export import FORMATS, export
from torchcaps.training.int8 import export_int8
from torchcaps.training.train import train
from torchcaps.types import ModelOutput

NAMES = {"onnx": "model.onnx", "pt2": "model.pt2", "openvino": "model.xml", "safetensors": "model.safetensors"}
NETWORKS: dict[str, tuple[tuple[int, int, int], dict[str, Any]]] = {
    "capsnet_small": ((1, 20, 20), {"channels": 4}),
    "matrix_capsnet_small": ((2, 28, 28), {"n_iters": 2, "A": 4, "B": 3, "C": 3, "D": 3}),
    "variational_bayes_capsnet": ((2, 20, 20), {"A": 4, "B": 3, "C": 3, "D": 3}),
}
#: Gives the scores of 0, 1 and 5 images by a file, where nothing of torchcaps can be imported.
READER = """
import json, sys
sys.modules["torchcaps"] = None
import numpy as np
file, images = sys.argv[1], np.load(sys.argv[2])
if file.endswith(".onnx"):
    import onnxruntime
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    run = lambda x: session.run(["scores"], {"images": x})[0]
    metadata = session.get_modelmeta().custom_metadata_map["torchcaps"]
elif file.endswith(".pt2"):
    import torch
    extra = {"torchcaps": ""}
    program = torch.export.load(file, extra_files=extra).module()
    run, metadata = lambda x: program(torch.from_numpy(x)).numpy(), extra["torchcaps"]
else:
    import openvino
    model = openvino.Core().read_model(file)
    compiled = openvino.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    run, metadata = lambda x: compiled(x)[0], model.get_rt_info("torchcaps").value
scores = [np.asarray(run(images[:n])).tolist() for n in (0, 1, 5)]
print(json.dumps([scores, json.loads(metadata)]))
"""


def require(format: str) -> None:  # noqa: A002
    for package in FORMATS[format].packages:
        pytest.importorskip(package, reason=f"{package} is not installed")


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("format", ["onnx", "pt2", "openvino"])
def test_programs_run_without_torchcaps(name: str, format: str, tmp_path: Path) -> None:  # noqa: A002
    """Of none, one and several images; the file says how images are to be prepared."""
    require(format)
    shape, options = NETWORKS[name]
    model, images = build(name, shape, 3, **options).eval(), torch.rand(5, *shape)
    file = tmp_path / NAMES[format]
    done = export(model, file, format=format, images=images, classes=("a", "b", "c"))
    assert done.path == file and done.n_images == 5 and done.error <= 1e-5
    np.save(tmp_path / "images.npy", images.numpy())
    command = [sys.executable, "-c", READER, str(file), str(tmp_path / "images.npy")]
    read = subprocess.run(command, capture_output=True, text=True, check=False)
    assert read.returncode == 0, read.stderr
    (none, one, several), metadata = json.loads(read.stdout.splitlines()[-1])
    with torch.no_grad():
        wanted = model(images).scores
    assert none == []
    torch.testing.assert_close(torch.tensor(one), wanted[:1], rtol=0, atol=1e-5)
    torch.testing.assert_close(torch.tensor(several), wanted, rtol=0, atol=1e-5)
    assert metadata["classes"] == ["a", "b", "c"] and metadata["image_shape"] == list(shape)
    assert metadata["scale"] == "0 to 1: 8 bits divided by 255"
    assert metadata["standardisation"].startswith("none" if name.startswith("capsnet") else "each image")
    assert {path.suffix for path in tmp_path.iterdir()} == {*FORMATS[format].suffixes, ".npy"}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of a second."""
    train(TINY, tmp_path / "run", progress="none")
    return tmp_path / "run"


def test_weights_of_a_run_by_the_command_line(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    require("safetensors")
    from safetensors import safe_open

    command = ["export", str(run), "--format", "safetensors"]
    assert main(command) == 0
    assert "model.safetensors; its scores of 16 images of digits differ by at most 0.0e+00" in capsys.readouterr().out
    with safe_open(run / "model.safetensors", "pt") as file:
        saved = torch.load(run / "model.pt", weights_only=True)["state_dict"]
        assert all(torch.equal(file.get_tensor(name), value) for name, value in saved.items())
        metadata = json.loads(file.metadata()["torchcaps"])
    assert metadata["classes"] == [str(n) for n in range(10)] and metadata["recipe"] == "digits"
    assert main(command) == 2
    assert "path must not exist" in (said := capsys.readouterr().err) and "--force replaces a file" in said
    assert main([*command, "--force"]) == 0


@pytest.mark.parametrize("name", ["mnist-small", "multimnist-small"])
def test_weights_of_digits_are_compared_on_those_at_hand(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["export", f"pretrained:{name}", "--format", "pt2"]) == 0
    assert f"wrote {name}.pt2; its scores of 64 images of digits differ" in capsys.readouterr().out
    extra, images = {"torchcaps": ""}, torch.rand(3, *cards()[name].image_shape)
    program = torch.export.load(f"{name}.pt2", extra_files=extra).module()
    with torch.no_grad():
        wanted = load_model(f"pretrained:{name}").model(images).scores
    torch.testing.assert_close(program(images), wanted, rtol=0, atol=1e-5)
    metadata = json.loads(extra["torchcaps"])
    assert metadata["recipe"] == name and metadata["classes"] == [str(n) for n in range(10)]


def test_other_weights_are_compared_on_their_own_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is downloaded for that unasked."""
    monkeypatch.chdir(tmp_path)
    again = ["export", "pretrained:multimnist-small", "--format", "pt2"]
    assert main([*again, "--data.root", str(tmp_path)]) == 2
    assert "train-images-idx3-ubyte.gz" in capsys.readouterr().err
    assert main(["export", "pretrained:mnist-templates-small", "--format", "pt2"]) == 2
    assert "must hold a classifier, got an auto-encoder" in capsys.readouterr().err
    assert main(["export", "pretrained:smallnorb-small", "--format", "pt2"]) == 2
    assert "root must name the folder of smallnorb, whose images the file's scores" in capsys.readouterr().err


def test_nothing_is_written_that_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, images = build("capsnet_small", (1, 20, 20), 3, channels=4), torch.rand(2, 1, 20, 20)
    wrong = FORMATS["pt2"]._replace(read=lambda content, path: content.model(content.images) + 2e-5)
    monkeypatch.setitem(module.FORMATS, "pt2", wrong)
    said = (
        r"format pt2 must give the network's scores to 1.0e-05, got a difference of 2.0e-05: a tolerance above 2.0e-05"
    )
    with pytest.raises(ValueError, match=said):
        export(model, tmp_path / "model.pt2", format="pt2", images=images)
    assert not list(tmp_path.iterdir())
    done = export(model, tmp_path / "model.pt2", format="pt2", images=images, tolerance=1e-4)
    assert 1e-5 < done.error < 3e-5 and done.path.is_file()
    with pytest.raises(ValueError, match="tolerance must be positive, got nan"):
        export(model, tmp_path / "other.pt2", format="pt2", images=images, tolerance=float("nan"))


def test_large_scores_differ_by_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits of 100 have a hundred times the rounding of lengths."""

    class Logits(nn.Module):
        def forward(self, images: Tensor) -> ModelOutput:
            return ModelOutput(100 * images.flatten(1)[:, :3])

    images = torch.linspace(0, 1, 200).view(2, 1, 10, 10)
    largest = float(Logits()(images).scores.max())
    for times, is_written in ((0.9, True), (1.1, False)):
        off = times * 1e-5 * largest
        wrong = FORMATS["pt2"]._replace(read=lambda content, path, off=off: content.model(content.images) + off)
        monkeypatch.setitem(module.FORMATS, "pt2", wrong)
        file = tmp_path / f"{times}.pt2"
        if is_written:
            export(Logits(), file, format="pt2", images=images)
        else:
            with pytest.raises(ValueError, match="writes the file"):
                export(Logits(), file, format="pt2", images=images)
        assert file.exists() == is_written


def test_a_run_is_exported_to_a_tolerance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = FORMATS["pt2"]._replace(read=lambda content, path: content.model(content.images) + 2e-5)
    monkeypatch.setitem(module.FORMATS, "pt2", wrong)
    command = ["export", "pretrained:mnist-small", "--format", "pt2", "--out", str(tmp_path / "model.pt2")]
    assert main(command) == 2
    assert "--tolerance above 2.0e-05 writes the file" in capsys.readouterr().err
    assert main([*command, "--tolerance", "1e-4"]) == 0


def test_what_cannot_be_written_is_said_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, images = nn.Flatten(), torch.rand(2, 1, 2, 2)
    with pytest.raises(ValueError, match="format must be one of onnx, pt2, openvino, safetensors; got 'tflite'"):
        export(model, tmp_path / "model.pt2", format="tflite", images=images)
    with pytest.raises(ValueError, match=r"path must end in \.pt2 for pt2, got"):
        export(model, tmp_path / "model.onnx", format="pt2", images=images)
    with pytest.raises(ValueError, match="images must be given with a network"):
        export(model, tmp_path / "model.pt2", format="pt2")
    with pytest.raises(ValueError, match="images must hold at least one image"):
        export(model, tmp_path / "model.pt2", format="pt2", images=images[:0])
    with pytest.raises(ValueError, match="must be a run folder"):
        export(tmp_path, tmp_path / "model.pt2", format="pt2")
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ValueError, match=r"format onnx needs onnx: pip install 'torchcaps\[export\]'"):
        export(model, tmp_path / "model.onnx", format="onnx", images=images)
    assert not list(tmp_path.iterdir())


def test_int8_says_the_error_before_and_after(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime.quantization", reason="onnxruntime is not installed")
    assert main(["export", str(run), "--format", "onnx", "--int8"]) == 0
    said = capsys.readouterr().out
    found = re.search(
        r"model-int8.onnx, ([\d,]+) bytes instead of ([\d,]+); test error ([\d.]+)% instead of ([\d.]+)%", said
    )
    assert found, said
    after, before = (int(found[k].replace(",", "")) for k in (1, 2))
    assert after < before and "on 16 images" in said
    import onnx
    import onnxruntime

    proto = onnx.load(str(run / "model-int8.onnx"))
    told = json.loads(next(each.value for each in proto.metadata_props if each.key == "torchcaps"))
    assert told["classes"] == [str(n) for n in range(10)]
    assert round(100 * told["int8"]["test_error"], 2) == float(found[3])
    kinds = {each.name: each.data_type for each in proto.graph.initializer}
    assert onnx.TensorProto.INT8 in kinds.values()
    session = onnxruntime.InferenceSession(str(run / "model-int8.onnx"), providers=["CPUExecutionProvider"])
    images = load("digits").test.images[:8].float().div(255).numpy()
    together = np.asarray(session.run(None, {"images": images})[0])
    for k in range(8):  # none depends on the others
        alone = np.asarray(session.run(None, {"images": images[k : k + 1]})[0])
        np.testing.assert_allclose(alone, together[k : k + 1], atol=1e-6)
    wanted = load_model(run).model(torch.from_numpy(images)).scores.detach().numpy()
    assert abs(together - wanted).max() < 0.2


def test_int8_is_refused_where_it_cannot_be(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(run), "--format", "pt2", "--int8"]) == 2
    assert "--int8 must come with --format onnx, got pt2" in capsys.readouterr().err
    with pytest.raises(ValueError, match="root must name the folder of mnist for the weights mnist-small: 8-bit"):
        export_int8("pretrained:mnist-small", tmp_path / "a.onnx")
    with pytest.raises(ValueError, match=r"path must end in .onnx for onnx, got .*a.pt2"):
        export_int8(run, tmp_path / "a.pt2")
