"""Two processes train as one does: its gradients, its metrics, its files; and they end together."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchcaps.cli import main
from torchcaps.data import load
from torchcaps.training import launch
from torchcaps.training.batch_norm import over_processes
from torchcaps.training.batches import split
from torchcaps.training.callbacks import OutOfTime
from torchcaps.training.config import Data, Experiment, Model, Optim
from torchcaps.training.environment import choose_device
from torchcaps.training.module import TrainingModule
from torchcaps.training.processes import ALONE, Share, World, as_launched, slice_of, world_here
from torchcaps.training.run import Run
from torchcaps.training.train import train

#: A batch that two processes cannot halve; validation and test have an incomplete last one.
TINY = Experiment(
    data=Data("digits", n_train=36, n_eval=25),
    model=Model("capsnet_small"),
    batch_size=9,
    epochs=1,
    device="cpu",
    threads=1,
)
NORMALIZED = {"A": 4, "B": 2, "C": 2, "D": 2, "n_iters": 2, "normalize": True}
#: What is trained by two processes and by one, and compared.
CASES: dict[str, Experiment] = {
    "adam": TINY,
    "muon": replace(TINY, optim=Optim(name="muon", clip=0.1, weight_decay=1e-4)),
    "no decoder in the loss": replace(TINY, reconstruction=0.0),
    "normalized": replace(TINY, model=Model("matrix_capsnet_small", NORMALIZED), loss="spread"),
    "pairs": replace(TINY, data=Data("digits", pairs=True, n_pairs=(18, 10)), batch_size=9),
    "consistency": replace(
        TINY,
        data=Data("digits", transformed=True, n_train=36, n_eval=25, shift=1, degrees=5.0),
        model=Model("affine_autoencoder", {"n_capsules": 3}),
        loss="squared_error",
        consistency=3.0,
    ),
}


class Gradients:
    """The gradients of the first steps, as the optimizer gets them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: list[dict[str, Tensor]] = []
        before = TrainingModule.on_before_optimizer_step

        def keep(task: TrainingModule, optimizer: torch.optim.Optimizer) -> None:
            before(task, optimizer)
            found = {name: p.grad.clone() for name, p in task.model.named_parameters() if p.grad is not None}
            self.steps.append(found)

        monkeypatch.setattr(TrainingModule, "on_before_optimizer_step", keep)

    def of(self, config: Experiment, out: Path) -> list[dict[str, Tensor]]:
        """Train, and return the gradients of the steps."""
        self.steps = []
        train(config, out, progress="none")
        return self.steps


#: Shown to a batch normalization: far from zero, where the variance's digits could cancel.
FEATURES = torch.randn(7, 3, 4, 4, generator=torch.Generator().manual_seed(0)) + 100
DIRECTION = torch.randn(7, 3, 4, 4, generator=torch.Generator().manual_seed(1))


def normalized_by(layer: nn.BatchNorm2d, part: slice) -> dict[str, Tensor]:
    """Return what the layer makes of some of the features, and its gradients and statistics."""
    x = FEATURES[part].clone().requires_grad_()
    made = layer(x)
    (made.square() * DIRECTION[part]).sum().backward()
    assert x.grad is not None and layer.weight.grad is not None
    return {
        "made": made.detach(),
        "x": x.grad,
        "weight": layer.weight.grad,
        **{name: value.clone() for name, value in layer.named_buffers()},
    }


class Stopped(Exception):
    """Training ended in the midst of the second epoch."""


def stopped(config: Experiment, out: Path) -> None:
    """Train until a checkpoint in the second epoch, and no further."""
    with pytest.MonkeyPatch.context() as patch:
        step = TrainingModule.training_step

        def work(task: TrainingModule, batch: Any, k: int) -> Any:
            if task.global_step == 6:
                raise Stopped
            return step(task, batch, k)

        patch.setattr(TrainingModule, "training_step", work)
        with pytest.raises(Stopped):
            train(config, out, progress="none", checkpoint_seconds=0)


TWICE = replace(TINY, epochs=2)


def both(folder: Path) -> None:
    """Be one of two processes that train all there is to compare; the first one keeps what was found."""
    world = world_here()
    with pytest.MonkeyPatch.context() as patch:
        gradients = Gradients(patch)
        found = {name: gradients.of(config, folder / name) for name, config in CASES.items()}
    stopped(TWICE, folder / "2 to 1")
    train(TWICE, folder / "1 to 2", progress="none")
    layer, part = nn.BatchNorm2d(3), slice_of(world, len(FEATURES))
    with over_processes(layer, world):
        normalized = normalized_by(layer, part)
    errors = [_error(world), _error_of(lambda: world.in_turn(lambda: 1 // (1 - world.rank)), ZeroDivisionError)]
    with pytest.raises(OutOfTime):
        train(TINY, folder / "no time", progress="none", until=time.monotonic() if world.first else None)
    torch.save([found, normalized, errors], folder / f"{world.rank}.pt")


def _error(world: World) -> str:
    """What only the first process finds wrong."""

    def refuse() -> None:
        assert world.first
        raise ValueError("data must be there")

    return _error_of(lambda: world.decided(refuse), ValueError)


def _error_of(work: Any, kind: type[Exception]) -> str:
    with pytest.raises(kind) as caught:
        work()
    return str(caught.value)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which two processes trained everything."""
    folder = tmp_path_factory.mktemp("together")
    stopped(TWICE, folder / "1 to 2")
    launch.start(2, both, [folder], "nothing")
    return folder


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which one process trained everything, with its gradients."""
    folder = tmp_path_factory.mktemp("alone")
    with pytest.MonkeyPatch.context() as patch:
        gradients = Gradients(patch)
        torch.save({name: gradients.of(config, folder / name) for name, config in CASES.items()}, folder / "0.pt")
    return folder


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_one_process(trained: Path, alone: Path, name: str) -> None:
    by_one = torch.load(alone / "0.pt")[name]
    first, second = (torch.load(trained / f"{rank}.pt")[0][name] for rank in (0, 1))
    assert len(by_one) == len(first) == (2 if name == "pairs" else 4)
    # Later steps are taken at other weights: those that were rounded otherwise before.
    for one, two, other in zip(by_one[:2], first[:2], second[:2], strict=True):
        assert one.keys() == two.keys() == other.keys()  # none where one process has none
        whole = torch.cat([x.flatten() for x in one.values()])
        apart = torch.cat([(two[key] - x).flatten() for key, x in one.items()])
        assert apart.norm() <= 1e-5 * whole.norm()
        assert all(torch.equal(two[key], other[key]) for key in two)


@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_one_process(trained: Path, alone: Path, name: str) -> None:
    by_one, together = (train(CASES[name], folder / name) for folder in (alone, trained))  # both finished, and read
    assert together["processes"] == 2 and "processes" not in by_one
    for key in ("images", "steps", "val_recall", "test_recall"):
        assert together.get(key) == by_one.get(key)
    for key in {"val_loss", "test_loss", "val_error", "test_error"} & by_one.keys():
        assert together[key] == pytest.approx(by_one[key], rel=1e-4)
    rows = [
        list(csv.DictReader((folder / name / "metrics.csv").read_text().splitlines())) for folder in (alone, trained)
    ]
    for one, two in zip(*rows, strict=True):
        assert float(two["train_loss"]) == pytest.approx(float(one["train_loss"]), rel=1e-5)
        assert float(two["val_loss"]) == pytest.approx(float(one["val_loss"]), rel=1e-4)


def test_a_checkpoint_is_gone_on_from_by_one_and_by_two(trained: Path, alone: Path) -> None:
    there = train(TWICE, alone / "twice", progress="none")
    assert not (trained / "2 to 1" / "result.json").exists()
    train(TWICE, trained / "2 to 1", progress="none")
    for name in ("2 to 1", "1 to 2"):
        result = train(TWICE, trained / name)
        assert result["steps"] == there["steps"] == 8
        assert result["val_loss"] == pytest.approx(there["val_loss"], rel=1e-4)
        assert "2 processes" in result["device"] and ";" in result["device"]  # both that took part
    assert train(TWICE, trained / "1 to 2")["processes"] == 2


def test_batch_normalization_is_over_all_images(trained: Path) -> None:
    wanted = normalized_by(nn.BatchNorm2d(3), slice(None))
    first, second = (torch.load(trained / f"{rank}.pt")[1] for rank in (0, 1))
    parts = {name: torch.cat((first[name], second[name])) for name in ("made", "x")}
    assert len(first["x"]) == 3 and len(second["x"]) == 4
    found = first | parts | {"weight": first["weight"] + second["weight"]}
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-4)
        assert name in ("made", "x", "weight") or torch.equal(first[name], second[name])


def test_what_one_process_meets_all_raise(trained: Path) -> None:
    for rank in (0, 1):
        assert torch.load(trained / f"{rank}.pt")[2] == ["data must be there", "integer division or modulo by zero"]
    assert not (trained / "no time" / "result.json").exists()


class Counting(nn.Module):
    """A network of one's own, which all processes import."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def own_loss(output: Any, batch: Any) -> Tensor:
    return nn.functional.cross_entropy(output.scores, batch.labels[:, 0])


def test_what_is_handed_over_is_trained_in_place_by_two_processes(tmp_path: Path) -> None:
    config, digits = replace(TINY, epochs=1, devices=2), load("digits")
    torch.manual_seed(0)
    models = [Counting(), Counting()]
    models[1].load_state_dict(models[0].state_dict())
    results = [
        train(
            replace(config, devices=n), tmp_path / str(n), dataset=digits, model=model, loss=own_loss, progress="none"
        )
        for n, model in enumerate(models, 1)
    ]
    assert results[1]["processes"] == results[1]["config"]["devices"] == 2
    assert results[1]["test_loss"] == pytest.approx(results[0]["test_loss"], rel=1e-4)
    for one, two in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(two, one, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="dataset, model, loss and logger must be of classes and functions that a mod"):
        train(config, tmp_path / "lambda", loss=lambda output, _: output.scores.sum())
    assert not (tmp_path / "lambda").exists()


#: Trains until it is ended.
COMMAND = [
    *("train", "digits", "--data.n_train", "32", "--data.n_eval", "16", "--batch_size", "16", "--epochs", "100000"),
    *("--device", "cpu", "--threads", "1", "--devices", "2", "--out"),
]


def children(parent: int) -> list[int]:
    """The processes that one started, and which still run; but not Python's own, which tracks what they share."""
    found = list[int]()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, above, *_ = stat.read_text().rpartition(")")[2].split()
            command = (stat.parent / "cmdline").read_text()
        except OSError:
            continue
        if int(above) == parent and state != "Z" and "spawn_main" in command:
            found.append(int(stat.parent.name))
    return sorted(found)


def wait_for(what: Any, seconds: float = 120.0) -> Any:
    """Wait until something is true, and return it."""
    until = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.05)
    return found


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="processes are looked up in /proc")
def test_a_kill_of_one_ends_all_and_leaves_a_checkpoint(tmp_path: Path) -> None:
    checkpoint = tmp_path / "a" / "checkpoints" / "last.ckpt"
    command = [sys.executable, "-m", "torchcaps", *COMMAND, str(tmp_path / "a")]
    started = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        wait_for(checkpoint.is_file)
        workers = children(started.pid)
        assert len(workers) == 2
        os.kill(workers[1], signal.SIGKILL)
        _, said = started.communicate(timeout=30)
    finally:
        started.kill()
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)
    assert started.returncode == 2 and "Traceback" not in said
    assert said.splitlines()[-1].startswith(
        "torchcaps: of 2 processes process 1 was ended by SIGKILL; the same command"
    )
    before = torch.load(checkpoint, weights_only=True)["global_step"]
    with pytest.raises(OutOfTime):
        train(recipe_of(tmp_path / "a"), tmp_path / "a", progress="none", until=time.monotonic() + 1.0)
    assert torch.load(checkpoint, weights_only=True)["global_step"] > before > 0


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="processes are looked up in /proc")
def test_processes_end_with_the_one_that_started_them() -> None:
    code = "import time; from torchcaps.training import launch; launch.start(2, time.sleep, [600], '')"
    started = subprocess.Popen([sys.executable, "-c", code])
    try:
        workers = wait_for(lambda: found if len(found := children(started.pid)) == 2 else None)
        wait_for(lambda: all("libtorch" in Path(f"/proc/{worker}/maps").read_text() for worker in workers))
        time.sleep(1)
    finally:
        started.kill()
        started.wait()
    wait_for(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers), 30)


def recipe_of(run: Path) -> Experiment:
    return replace(Run(run).experiment(), devices=1)


def test_torchrun_trains_by_the_same_command(tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*torchrun, "-m", "torchcaps", "train", "digits", "--smoke", "--device", "cpu", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("test error") == done.stdout.count("epoch 1/1") == 1  # one process speaks
    result = Run(tmp_path).read_result()
    assert result["processes"] == result["config"]["devices"] == 2 and result["images"]["test"] == 8


def test_what_is_wrong_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    waited = list[float]()
    monkeypatch.setattr("torchcaps.cli.time.sleep", waited.append)
    for rank in ("0", "1"):
        for name, value in {"RANK": rank, "WORLD_SIZE": "2"}.items():
            monkeypatch.setenv(name, value)
        assert main(["train", "digits", "--batch_size", "0"]) == 2
        assert len(waited) == int(rank)  # for the end that torchrun brings
    assert "batch_size" in capsys.readouterr().err


@pytest.mark.parametrize(("n", "size"), [(9, 2), (2, 2), (7, 3), (8, 4)])
def test_the_parts_of_a_batch_are_all_of_it_and_weigh_as_much(n: int, size: int) -> None:
    parts = [slice_of(World(rank, size), n) for rank in range(size)]
    assert [k for part in parts for k in range(n)[part]] == list(range(n))
    values = torch.arange(float(n)) ** 2
    shares = [Share(World(rank, size), part.start, n) for rank, part in enumerate(parts)]
    means = [values[part].mean() * share.weight(len(values[part])) for part, share in zip(parts, shares, strict=True)]
    torch.testing.assert_close(torch.stack(means).mean(), values.mean())
    assert all(len(values[part]) for part in parts)


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("change", [{}, {"transformed": True, "degrees": 5.0}, {"pairs": True, "n_pairs": (20, 25)}])
def test_images_of_an_evaluation_are_counted_once(size: int, change: dict[str, Any]) -> None:
    data = Data("digits", n_eval=25, **{"shift": 2, **change})
    loss: Any = "squared_error" if data.transformed else "margin"
    config, digits = replace(TINY, data=data, batch_size=10, loss=loss), load("digits")
    alone = list(split(config, digits, "val", torch.device("cpu")))
    parts = [split(config, digits, "val", torch.device("cpu"), World(rank, size)) for rank in range(size)]
    assert len({len(part) for part in parts}) == 1 and all(len(list(part)) == len(part) for part in parts)
    seen = [batch for turn in zip(*parts, strict=True) for batch in turn if len(batch.images)]
    assert len(seen) == len(alone) == 3
    for one, two in zip(alone, seen, strict=True):
        assert torch.equal(one.images, two.images) and torch.equal(one.labels, two.labels)


def test_what_cannot_work_is_refused_before_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"batch_size must be at least the 10 processes \(devices · nodes\), got 9"):
        replace(TINY, devices=5, nodes=2)
    with pytest.raises(ValueError, match="devices must be an integer of at least 1, got 0"):
        replace(TINY, devices=0)
    with pytest.raises(ValueError, match="nodes must be 1 without torchrun, which starts .* several machines; got 2"):
        train(replace(TINY, nodes=2), tmp_path / "a")
    with pytest.raises(ValueError, match="devices must be 2, as torchrun started so many, or be left; got 3"):
        as_launched(replace(TINY, devices=3), World(0, 4, 0, 2))
    there = as_launched(TINY, World(0, 4, 0, 2))
    assert (there.devices, there.nodes) == (2, 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ValueError, match=r"devices must be at most 1, the GPUs here \(cuda\), got 2; device cpu takes"):
        choose_device("auto", 2)
    assert choose_device("cpu", 2) == torch.device("cpu")
    assert list(tmp_path.iterdir()) == []


def test_a_launcher_says_all_that_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert world_here() == ALONE
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(
        ValueError, match="WORLD_SIZE=2 must come with RANK, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, M"
    ):
        world_here()
    for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "one")
    with pytest.raises(ValueError, match="RANK, LOCAL_RANK and LOCAL_WORLD_SIZE must be numbers, got one, one, one"):
        world_here()
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert world_here() == ALONE
