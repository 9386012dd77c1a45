"""Other runtimes are held to float64 before they are timed; what is not installed is named."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import by_jax, by_runtimes, in_use
from benchmarks.__main__ import main
from benchmarks.by_runtimes import RUNTIMES, why_not
from benchmarks.check import Disagreement
from benchmarks.conditions import Conditions
from benchmarks.work import _loss
from study.peers_page import by_work
from torchcaps.layers.routings import EMRouting
from torchcaps.models import build


def test_all_that_are_there_are_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Conditions, "bytes", lambda _, work: 10**6)  # else each starts a process
    assert main(["peers", "--smoke", "--repeats=1", "--out", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "bench.json").read_text(encoding="utf-8"))["suites"]["peers"]
    times = by_work(found["seconds"])
    there = {"ours", "plain PyTorch", *(name for name in (*RUNTIMES, "JAX") if why_not(name) is None)}
    assert set(times["small CapsNet, 1 image"]) == set(times["small CapsNet, 4 images"]) == there
    assert max(found["errors"].values()) < 1e-5
    assert len(found["notes"]) == len({*RUNTIMES, "JAX"} - there)


def test_one_that_gives_other_scores_is_not_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suite = import_module("benchmarks.suites.peers")
    wrong = {"twin": lambda model, images, threads: lambda: torch.full((len(images), 10), 0.5)}
    monkeypatch.setattr(suite, "RUNTIMES", wrong)
    monkeypatch.setattr(in_use, "RUNTIMES", wrong)
    monkeypatch.setattr(suite, "why_not", lambda name: None if name == "twin" else f"{name} is not installed")
    assert main(["peers", "--smoke", "--repeats=1", "--out", str(tmp_path)]) == 2
    with pytest.raises(Disagreement, match="small CapsNet, 1 image, twin: scores must be within"):
        suite.peers(suite.Conditions(smoke=True, repeats=1))


def test_what_is_not_installed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_runtimes.importlib.util, "find_spec", lambda _: None)
    assert why_not("JAX") == "JAX is left out: jax not installed"
    assert why_not("OpenVINO") == "OpenVINO is left out: onnx and onnxscript and openvino not installed"


@pytest.mark.parametrize(
    ("model", "shape", "options"),
    [
        ("capsnet_small", (1, 28, 28), {}),
        ("matrix_capsnet", (2, 32, 32), dict.fromkeys("ABCD", 3)),
        ("matrix_capsnet", (2, 32, 32), {**dict.fromkeys("ABCD", 2), "routing": EMRouting(settings="paper")}),
    ],
)
def test_jax_trains_the_same_network(model: str, shape: tuple[int, int, int], options: dict[str, Any]) -> None:
    pytest.importorskip("jax", reason="jax is not installed")
    network = build(model, shape, 5, **options)
    images, labels = torch.rand(3, *shape), torch.tensor([1, 4, 4])
    torch.testing.assert_close(by_jax.scorer(network, images)(), network(images).scores.detach(), rtol=1e-4, atol=1e-6)
    step, adam = by_jax.step(network, images, labels), torch.optim.Adam(network.parameters())
    for _ in range(3):
        loss = _loss(network, network(images), images, labels)
        assert step() == pytest.approx(loss.item(), rel=1e-4)
        adam.zero_grad()
        loss.backward()
        adam.step()


def test_times_are_sorted_by_work() -> None:
    assert by_work({"A, 1 image: ours": 1.0, "A, 1 image: JAX": 2.0}) == {"A, 1 image": {"ours": 1.0, "JAX": 2.0}}
