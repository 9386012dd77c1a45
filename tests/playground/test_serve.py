from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
import torch

pytest.importorskip("starlette", reason="the extra playground is not installed")
pytest.importorskip("uvicorn", reason="the extra playground is not installed")

from torchcaps.cli import main
from torchcaps.playground.network import load_network
from torchcaps.playground.samples import find_samples
from torchcaps.playground.serve import OURS, listen, serve_playground
from torchcaps.training.config import Data, Experiment, Model
from torchcaps.training.run import Run

OPTIONS = {"channels": 4, "n_types": 2, "decoder": (8,)}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that was never trained, as the page asks for no more."""
    from torchcaps import build, load
    from torchcaps.training.checkpoint import save_model

    config = Experiment(data=Data(name="digits"), model=Model(name="capsnet_small", options=OPTIONS))
    made = Run(tmp_path / "run")
    made.path.mkdir()
    made.open(config)
    save_model(made, build("capsnet_small", (1, 28, 28), 10, **OPTIONS), config, load("digits"))
    return made.path


def test_it_prints_its_address_serves_offline_and_stops_without_a_trace(run: Path) -> None:
    arguments = [sys.executable, "-W", "error", "-m", "torchcaps", "playground", str(run), "--no-browser"]
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    ) as process:
        assert process.stdout is not None
        try:
            first = process.stdout.readline()
            found = re.fullmatch(r"playground: (http://127\.0\.0\.1:\d+/) \(Ctrl-C stops it\)\n", first)
            assert found, first + (process.stderr.read() if process.stderr and process.poll() is not None else "")
            with urllib.request.urlopen(found[1], timeout=60) as answer:
                assert b"<h1>Capsule playground</h1>" in answer.read()
            process.send_signal(signal.SIGINT)
            said, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, said, errors) == (0, "stopped\n", "")


def test_a_port_that_is_taken_and_an_address_that_is_none_are_refused() -> None:
    message = r"host and port must be free to listen on, got 127\.0\.0\.1"
    with listen("127.0.0.1", 0) as taken, pytest.raises(ValueError, match=message):
        listen("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(ValueError, match="port must be 0 … 65535, got 70000"):
        listen("127.0.0.1", 70000)
    with pytest.raises(ValueError, match="host and port must be free"):
        listen("no.such.host.invalid", 0)


def test_what_is_no_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="runs must name at least one"):
        serve_playground([])
    assert main(["playground", str(tmp_path / "nothing"), "--no-browser"]) == 2
    assert "must hold a finished run" in capsys.readouterr().err


def test_it_computes_on_one_thread_and_opens_the_browser(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import uvicorn

    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr(uvicorn.Server, "run", lambda self, sockets: None)
    torch.set_num_threads(2)
    serve_playground([run])
    assert torch.get_num_threads() == 1
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", opened[0])


@pytest.mark.parametrize("run", OURS)
def test_networks_that_come_trained_are_shown(run: str) -> None:
    pytest.importorskip("safetensors", reason="safetensors is not installed; it is of the extra train")
    network = load_network(run)
    assert network.has_capsules and network.pairs == ("multi" in run)
    samples = find_samples(run, network.classes)
    assert samples is not None and len(samples) > 100


def test_an_answer_does_not_wait_for_its_head_to_be_acknowledged() -> None:
    with listen("127.0.0.1", 0) as listening:
        listening.settimeout(20)
        with socket.create_connection(listening.getsockname(), timeout=20):
            accepted, _ = listening.accept()
            with accepted:
                assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
