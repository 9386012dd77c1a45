"""Nothing is lost: kills at any moment, a full disk, damaged checkpoints; nothing is executed, and nothing is sent."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import pickle
import random
import signal
import socket
import sys
import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.endings import SIGNALS, ended_at, in_fork
from tests.tiny import TINY
from torchcaps.cli import main
from torchcaps.data.files import require
from torchcaps.training import Data, Experiment
from torchcaps.training.checkpoint import load_model
from torchcaps.training.module import TrainingModule
from torchcaps.training.run import Run
from torchcaps.training.train import train
from torchcaps.training.tuning import tune

SHORT = replace(TINY, epochs=1)


def weights(run: Path) -> dict[str, torch.Tensor]:
    return torch.load(run / "model.pt", weights_only=True)["state_dict"]


def assert_same(run: Path, whole: Path) -> None:
    for name, value in weights(whole).items():
        assert torch.equal(weights(run)[name], value), name
    read = [json.loads((path / "result.json").read_text()) for path in (run, whole)]
    for name in ("steps", "val_loss", "test_error"):
        assert read[0][name] == read[1][name], name


def assert_all_whole(run: Path) -> None:
    """Read every file that has its final name."""
    for path in (run / "checkpoints").glob("[!.]*.ckpt"):
        torch.load(path, weights_only=True)
    for path in run.glob("[!.]*.json"):
        json.loads(path.read_text())
    if (run / "model.pt").exists():
        weights(run)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_ended_twenty_times_at_any_moment_it_ends_as_never_ended(tmp_path: Path) -> None:
    whole, out, steps, draw = tmp_path / "whole", tmp_path / "killed", tmp_path / "steps", random.Random(0)
    train(TINY, whole, progress="none")
    ends: list[int] = []
    furthest = 0
    while not (out / "result.json").exists():
        moment, by = draw.randint(1, 45), draw.choice(SIGNALS)
        steps.write_text("")

        def life(moment: int = moment, by: signal.Signals = by, out: Path = out) -> None:
            with ended_at(moment if len(ends) < 24 else 10**9, by, out, steps):
                train(TINY, out, progress="none", checkpoint_seconds=0)

        ends.append(in_fork(life))
        assert ends[-1] in (0, 130, -signal.SIGKILL, -signal.SIGTERM), ends
        assert_all_whole(out)
        done = [int(line) for line in steps.read_text().split()]
        assert not done or done[0] >= furthest, "more than the step at hand was lost"
        furthest = max(done, default=furthest)
        if ends[-1] == 0 and len(ends) < 21:  # it came through: once more, from the start
            assert_same(out, whole)
            out, furthest = tmp_path / f"killed-{len(ends)}", 0
    assert sum(end != 0 for end in ends) >= 20
    assert_same(out, whole)
    assert not list(out.rglob("*.partial"))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_tuning_ended_at_any_moment_goes_on(tmp_path: Path) -> None:
    whole, runs, steps, draw = tmp_path / "whole", tmp_path / "killed", tmp_path / "steps", random.Random(1)
    options: dict[str, Any] = {"epochs": 1, "progress": "none", "say": lambda _: None}
    wanted = tune("digits", SHORT, runs=whole, **options)
    written = runs / "tuning" / "digits.json"
    ends: list[int] = []
    while not written.exists():
        moment, by = draw.randint(1, 60), draw.choice(SIGNALS)

        def life(moment: int = moment, by: signal.Signals = by) -> None:
            with ended_at(moment if len(ends) < 8 else 10**9, by, runs, steps):
                tune("digits", SHORT, runs=runs, **options)

        ends.append(in_fork(life))
        assert ends[-1] in (0, 130, -signal.SIGKILL, -signal.SIGTERM), ends
        for trial in (runs / "tuning").glob("digits/*"):
            assert_all_whole(trial)
    assert sum(end != 0 for end in ends) >= 5
    found = json.loads(written.read_text())
    assert found["best"] == wanted["best"]
    errors = [[each["val_error"] for each in outcome["trials"]] for outcome in (found, wanted)]
    assert errors[0] == errors[1]


@pytest.mark.skipif(
    os.name == "nt" or not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere"
)
def test_a_folder_that_is_read_only_is_refused_before_work(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(ValueError, match="out must be"):
            train(SHORT, tmp_path / "run", progress="none")
    finally:
        tmp_path.chmod(0o700)


def test_data_that_vanished_are_named_and_a_run_goes_on_where_they_are_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("cat", "dog"):
        (tmp_path / "mine" / name).mkdir(parents=True)
        for k in range(12):
            pixels = np.random.default_rng(k).integers(0, 255, (28, 28), np.uint8)
            Image.fromarray(pixels // (1 + (name == "dog"))).save(tmp_path / "mine" / name / f"{k}.png")
    run = Run(tmp_path / "run")
    mine = Data("folder", root=str(tmp_path / "mine"), image_size=(28, 28))
    config = replace(TINY, data=mine, batch_size=4)
    _stopped(run, monkeypatch, 5, config)
    (tmp_path / "mine").rename(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match=r"root must be .*mine"):
        train(config, run.path, progress="none")
    assert run.checkpoint.is_file() and not run.result.exists()
    moved = replace(config, data=replace(mine, root=str(tmp_path / "elsewhere")))
    train(moved, run.path, progress="none")
    (tmp_path / "elsewhere").rename(tmp_path / "mine")
    train(config, tmp_path / "whole", progress="none")
    assert_same(run.path, tmp_path / "whole")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.parametrize(("by", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_real_signal_ends_the_command_in_one_sentence(tmp_path: Path, by: signal.Signals, status: int) -> None:
    run, whole, said = tmp_path / "ended", tmp_path / "whole", tmp_path / "said"
    train(SHORT, whole, progress="none")

    def command() -> None:
        step = TrainingModule.training_step

        def signalled(self: TrainingModule, batch: Any, k: int) -> Any:
            if self.global_step == 2:
                os.kill(os.getpid(), by)
            return step(self, batch, k)

        TrainingModule.training_step = signalled  # type: ignore[method-assign]
        with said.open("w") as sys.stderr:
            ended = main(["train", "digits", "--config", str(whole / "config.json"), "--out", str(run)])
        os._exit(ended)

    assert in_fork(command) == status
    last = said.read_text().splitlines()[-1]
    assert last == "torchcaps: stopped; the same command goes on from what was last saved, if anything was"
    assert "Traceback" not in said.read_text()
    assert_all_whole(run)
    assert not (run / "result.json").exists()
    train(SHORT, run, progress="none")
    assert_same(run, whole)


def test_sigterm_is_the_callers_again_after_a_command() -> None:
    before = signal.getsignal(signal.SIGTERM)
    assert main(["report", "/nowhere"]) == 2
    assert signal.getsignal(signal.SIGTERM) == before


class _Slow(BaseHTTPRequestHandler):
    content = bytes(range(256)) * 512

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.content)))
        self.end_headers()
        try:
            for start in range(0, len(self.content), 8192):
                self.wfile.write(self.content[start : start + 8192])
                self.wfile.flush()
                time.sleep(0.01)
        except OSError:
            pass

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_killed_download_leaves_nothing_under_the_final_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHCAPS_DATA", str(tmp_path))
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Slow)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address, path = f"http://127.0.0.1:{server.server_port}/", tmp_path / "mine" / "file.bin"

    def fetch() -> Path:
        return require("file.bin", hashlib.sha256(_Slow.content).hexdigest(), root=None, folder="mine", address=address)

    try:
        for delay in (0.05, 0.1, 0.15):

            def life(delay: float = delay) -> None:
                threading.Timer(delay, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
                fetch()
                time.sleep(5)

            assert in_fork(life) == -signal.SIGKILL
            assert not path.exists() or path.read_bytes() == _Slow.content
        assert fetch().read_bytes() == _Slow.content
    finally:
        server.shutdown()
        server.server_close()


def test_a_disk_that_is_full_at_any_write_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, out = tmp_path / "whole", tmp_path / "full"
    train(SHORT, whole, progress="none")
    sync, left = os.fsync, [0]

    def fails(file: int) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(file)

    monkeypatch.setattr(os, "fsync", fails)
    n_full = 0
    while n_full < 40:
        left[0] = n_full + 1
        try:
            train(SHORT, out, progress="none", checkpoint_seconds=0)
            break
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
        n_full += 1
        assert_all_whole(out)
        assert not list(out.rglob("*.partial"))
    assert n_full > 5
    assert_same(out, whole)
    left[0] = 1
    assert main(["train", "digits", "--smoke", "--out", str(tmp_path / "cli")]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert said[-1] == "torchcaps: [Errno 28] No space left on device" and "Traceback" not in "".join(said)


@pytest.mark.parametrize("damage", [b"half a checkpoi", None])
def test_the_checkpoint_before_a_damaged_one_is_used_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, damage: bytes | None
) -> None:
    whole, run = tmp_path / "whole", Run(tmp_path / "damaged")
    train(TINY, whole, progress="none")
    _stopped(run, monkeypatch, 10)
    content = run.checkpoint.read_bytes()
    run.checkpoint.write_bytes(content[: len(content) // 2] if damage is None else damage)
    with caplog.at_level(logging.WARNING, "torchcaps"):
        train(TINY, run.path, progress="none")
    assert "last.ckpt is not a whole checkpoint" in caplog.text
    assert f"going on from the one before it, {run.previous}" in caplog.text
    assert run.checkpoint.with_name("damaged.ckpt").exists()
    assert_same(run.path, whole)


def test_where_the_checkpoint_before_is_alone_it_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tmp_path / "run")
    _stopped(run, monkeypatch, 10)
    run.checkpoint.unlink()
    run.metrics.unlink()
    assert run.started()
    assert train(TINY, run.path, progress="none")["steps"] == 12


def _stopped(run: Run, monkeypatch: pytest.MonkeyPatch, at: int, config: Experiment = TINY) -> None:
    """Train with a checkpoint a step, and stop before one."""
    step = TrainingModule.training_step

    def stopping(self: TrainingModule, batch: Any, k: int) -> Any:
        if self.global_step == at:
            raise RuntimeError("stopped")
        return step(self, batch, k)

    with monkeypatch.context() as patch:
        patch.setattr(TrainingModule, "training_step", stopping)
        with pytest.raises(RuntimeError, match="stopped"):
            train(config, run.path, progress="none", checkpoint_seconds=0)


class _Payload:
    """Makes a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_nothing_in_a_checkpoint_or_model_is_executed(tmp_path: Path) -> None:
    flag, run = tmp_path / "executed", Run(tmp_path / "run")
    pickle.loads(pickle.dumps(_Payload(flag)))
    assert flag.exists()  # the payload works
    flag.unlink()
    run.open(SHORT)
    run.checkpoint.parent.mkdir()
    torch.save({"state_dict": _Payload(flag)}, run.checkpoint)
    with pytest.raises(ValueError, match=r"last.ckpt is not a whole checkpoint: .*"):
        train(SHORT, run.path, progress="none")
    torch.save({"model": _Payload(flag)}, run.model)
    with pytest.raises(ValueError, match=r"model.pt is not a whole model.pt"):
        load_model(run)
    assert not flag.exists()


def test_nothing_leaves_the_machine_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket.socket, "connect", refused)
    monkeypatch.setattr(socket.socket, "bind", refused)
    monkeypatch.setattr(socket, "getaddrinfo", refused)
    train(SHORT, tmp_path / "run", progress="none")
    with pytest.raises(AssertionError, match="a socket was opened"):
        socket.create_connection(("127.0.0.1", 9))
