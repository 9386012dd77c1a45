"""A step in one piece, as a GPU takes it: here it is recorded by one that only calls it again."""

from __future__ import annotations

import contextlib
import csv
import logging
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchcaps.data import load
from torchcaps.models import MODELS, matched_cnn
from torchcaps.training import Data, Experiment, Model, Optim, cuda_graph, tasks
from torchcaps.training.batches import Batches, split
from torchcaps.training.build import make_model
from torchcaps.training.callbacks import Checkpoints
from torchcaps.training.environment import seed
from torchcaps.training.module import NonFiniteLoss, TrainingModule
from torchcaps.training.recipes import recipe
from torchcaps.training.run import Run
from torchcaps.training.train import train
from torchcaps.training.whole_step import Unrecordable, WholeStep

CAPSNET = Experiment(
    recipe="whole",
    data=Data("digits", n_train=96),
    model=Model("capsnet", {"channels": 4, "n_types": 2, "d_primary": 4, "d_class": 4, "decoder": [8]}),
    optim=Optim(lr=1e-2, schedule="cosine", warmup=0.2),
    epochs=2,
    batch_size=16,
    threads=1,
    device="cpu",
)
EM = replace(
    CAPSNET,
    model=Model("matrix_capsnet", dict.fromkeys("ABCD", 2) | {"n_iters": 2}),
    optim=Optim(lr=1e-2, clip=0.5, weight_decay=1e-4),
    loss="spread",
    margin="sigmoid",
)
CASES = {
    "capsnet": CAPSNET,
    "bf16": replace(CAPSNET, precision="bf16"),
    "muon": replace(CAPSNET, optim=replace(CAPSNET.optim, name="muon")),
    "em": EM,
    "pairs": replace(CAPSNET, data=Data("digits", pairs=True, n_pairs=(96, 20))),
    "dropout": replace(CAPSNET, model=Model("matched_cnn", {"n_parameters": 3000}), loss="cross_entropy"),
}


class Again:
    """Records by calling again, so that a replay is what the step is now."""

    def __init__(self, spoil: Callable[[int], None] = lambda n: None) -> None:
        self.spoil, self.replays, self.ran = spoil, 0, 0

    def run(self, work: Callable[[], Tensor]) -> Tensor:
        self.ran += 1
        return work()

    def record(self, work: Callable[[], Tensor]) -> Callable[[], Tensor]:
        def replay() -> Tensor:
            self.replays += 1
            loss = work()
            self.spoil(self.replays)
            return loss

        return replay


class Never(Again):
    def record(self, work: Callable[[], Tensor]) -> Callable[[], Tensor]:
        raise Unrecordable("it looks at a number")


def in_one_piece(patch: pytest.MonkeyPatch, recorder: Any) -> None:
    """Let training take steps as on a GPU."""
    patch.setattr(
        TrainingModule, "whole_step", lambda task, optimizer: WholeStep(task.config, task.model, optimizer, recorder)
    )


def outcome(config: Experiment, out: Path, **options: Any) -> tuple[dict[str, Tensor], list[dict[str, str]]]:
    train(config, out, progress="none", **options)
    rows = [row | {"seconds": ""} for row in csv.DictReader((out / "metrics.csv").read_text().splitlines())]
    return torch.load(out / "model.pt", weights_only=True)["state_dict"], rows


def require_same(one: tuple[dict[str, Tensor], Any], two: tuple[dict[str, Tensor], Any]) -> None:
    assert one[1] == two[1]
    for name, value in one[0].items():
        assert torch.equal(value, two[0][name]), name


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Tensor], Any]:
    """What Lightning makes of the capsule network, which takes its steps apart."""
    return outcome(CAPSNET, tmp_path_factory.mktemp("runs") / "apart")


@pytest.mark.parametrize("name", CASES)
def test_whole_and_replayed_steps_end_as_steps_taken_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    wanted = outcome(CASES[name], tmp_path / "apart")
    recorder = Again()
    in_one_piece(monkeypatch, recorder)
    require_same(outcome(CASES[name], tmp_path / "whole"), wanted)
    # Of 12 steps three come before, and two are taken twice.
    assert (recorder.ran, recorder.replays) == (5, 9) or name == "muon"
    groups = torch.load(Run(tmp_path / "whole").checkpoint, weights_only=True)["optimizer_states"][0]["param_groups"]
    assert all(isinstance(group["lr"], float) and not group.get("capturable") for group in groups)


@pytest.mark.parametrize("recorder", [None, Never(), Again(lambda n: None)])
def test_the_margin_grows_where_it_lies_in_memory(monkeypatch: pytest.MonkeyPatch, recorder: Any) -> None:
    margins, data = list[float](), load("digits")
    spread_loss = tasks.spread_loss

    def noted(scores: Tensor, labels: Tensor, margin: Tensor) -> Tensor:
        margins.append(float(margin))
        return spread_loss(scores, labels, margin)

    config = replace(EM, margin="linear")
    model = make_model(config, data)
    monkeypatch.setattr(tasks, "spread_loss", noted)
    step = WholeStep(config, model, torch.optim.Adam(model.parameters(), fused=True), recorder)
    batch = next(iter(split(config, data, "train", torch.device("cpu"))))
    for k in range(7):
        step(batch, k, k / 7)
    wanted = [0.2 + 0.7 * k / 7 for k in range(7)]
    assert sorted(set(margins)) == pytest.approx(wanted)


def test_auto_encoders_step_in_one_piece_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = replace(recipe("digits-translation"), epochs=1, batch_size=16, threads=1, device="cpu", consistency=0.1)
    config = replace(
        config,
        data=replace(config.data, n_train=128, n_eval=30),
        model=Model(config.model.name, {"n_capsules": 4, "n_recognition": 5, "n_generation": 6}),
    )
    wanted = outcome(config, tmp_path / "apart")
    recorder = Again()
    in_one_piece(monkeypatch, recorder)
    require_same(outcome(config, tmp_path / "whole"), wanted)
    assert recorder.replays == 5


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "torchcaps"]


def test_what_cannot_be_recorded_is_taken_step_by_step_and_said_once(
    apart: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    in_one_piece(monkeypatch, Never())
    require_same(outcome(CAPSNET, tmp_path / "a"), apart)
    assert told(caplog) == ["steps are taken one by one, not replayed as a CUDA graph: it looks at a number"]


@pytest.mark.parametrize("wrong", [1, 2])
def test_a_replay_that_does_something_else_is_not_believed(
    apart: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, wrong: int
) -> None:
    """From the first replay on, or from the second, as where a number of the first is in it for good."""
    models = list[nn.Module]()

    def spoil(n: int) -> None:
        if n >= wrong:
            with torch.no_grad():
                next(models[0].parameters()).add_(1e-2)

    recorder = Again(spoil)

    def whole(task: TrainingModule, optimizer: torch.optim.Optimizer) -> WholeStep:
        models.append(task.model)
        return WholeStep(task.config, task.model, optimizer, recorder)

    monkeypatch.setattr(TrainingModule, "whole_step", whole)
    require_same(outcome(CAPSNET, tmp_path / "a"), apart)
    assert recorder.replays == wrong
    (line,) = told(caplog)
    assert re.search(r"its weights are \S+ away from those of the step itself, which changed them by \S+$", line)


def test_kernels_that_add_in_any_order_are_recorded_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    """Twice the same step may then end further apart than a replay that is wrong."""
    data = load("digits")
    model = make_model(CAPSNET, data)

    class Noisy(Again):
        def run(self, work: Callable[[], Tensor]) -> Tensor:
            loss = super().run(work)
            with torch.no_grad():
                for weight in model.parameters():
                    weight.add_(torch.randn(weight.shape, generator=generator), alpha=1e-2)
            return loss

        def record(self, work: Callable[[], Tensor]) -> Callable[[], Tensor]:
            return super().record(lambda: self.run(work))

    generator, recorder = torch.Generator().manual_seed(0), Noisy()
    step = WholeStep(CAPSNET, model, torch.optim.Adam(model.parameters(), lr=1e-3, fused=True), recorder)
    batch = next(iter(split(CAPSNET, data, "train", torch.device("cpu"))))
    for k in range(7):
        step(batch, k, k / 7)
    assert recorder.replays == 4 and not told(caplog)


def test_an_optimizer_that_counts_on_the_host_is_not_recorded(caplog: pytest.LogCaptureFixture) -> None:
    class Counting(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            for group in self.param_groups:
                for weight in group["params"]:
                    self.state[weight]["n"] = self.state[weight].get("n", 0) + 1
            return super().step(closure)

    data = load("digits")
    model, recorder = make_model(CAPSNET, data), Again()
    step = WholeStep(CAPSNET, model, Counting(model.parameters(), lr=0.1), recorder)
    batch = next(iter(split(CAPSNET, data, "train", torch.device("cpu"))))
    for k in range(6):
        step(batch, k, k / 6)
    assert recorder.replays == 0 and told(caplog)[0].endswith("graph: Counting keeps its n as a int")


def test_a_batch_of_another_shape_is_not_replayed() -> None:
    data, recorder = load("digits"), Again()
    model = make_model(CAPSNET, data)
    step = WholeStep(CAPSNET, model, torch.optim.Adam(model.parameters(), fused=True), recorder)
    batch = next(iter(split(CAPSNET, data, "train", torch.device("cpu"))))
    for k in range(6):
        step(batch, k, k / 6)
    assert recorder.replays == 3
    smaller = batch._replace(images=batch.images[:5], labels=batch.labels[:5], parts=batch.parts[:5])
    assert step(smaller, 6, 1.0).isfinite() and recorder.replays == 3
    step(batch, 7, 1.0)
    assert recorder.replays == 4


@pytest.mark.parametrize("checkpoint_seconds", [0, 1e9])
@pytest.mark.parametrize("what", ["loss", "gradient"])
@pytest.mark.parametrize("at", [1, 7, 11])
def test_nan_is_found_later_named_rightly_and_in_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, at: int, checkpoint_seconds: float
) -> None:
    monkeypatch.setattr("torchcaps.training.module._SECONDS", 1e9)

    class Poisoned(WholeStep):
        def __call__(self, batch: Any, step: int, progress: float) -> Tensor:
            if step == at and what == "loss":
                batch = batch._replace(images=batch.images * float("nan"))
            if step == at and what == "gradient":
                next(self.model.parameters()).register_hook(lambda gradient: gradient * float("inf"))
            return super().__call__(batch, step, progress)

    monkeypatch.setattr(TrainingModule, "whole_step", lambda self, by: Poisoned(self.config, self.model, by, Again()))
    if what == "loss":
        wanted = rf"the loss became nan at step {at} \(epoch {at // 6 + 1}\); what was saved before is kept"
    else:
        wanted = rf"the gradient became (inf|nan) at step {at} \(epoch {at // 6 + 1}\); what was saved before is kept"
    with pytest.raises(NonFiniteLoss, match=wanted):
        train(CAPSNET, tmp_path / "a", progress="none", checkpoint_seconds=checkpoint_seconds)
    run = Run(tmp_path / "a")
    assert not run.result.exists() and not run.model.exists()
    kept = at if checkpoint_seconds == 0 else 6 * (at // 6)
    if not kept:
        assert not run.checkpoint.exists()
        return
    content = torch.load(run.checkpoint, weights_only=True)
    assert content["global_step"] == kept
    assert all(bool(value.isfinite().all()) for value in content["state_dict"].values())


def test_nan_is_looked_for_every_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_one_piece(monkeypatch, Again())
    monkeypatch.setattr("torchcaps.training.module._SECONDS", 0)
    config = replace(CAPSNET, optim=Optim(lr=1e30, schedule="constant"))
    with pytest.raises(NonFiniteLoss, match=r"became (nan|inf) at step [12] \(epoch 1\)"):
        train(config, tmp_path, progress="none")
    assert not Run(tmp_path).checkpoint.exists()


@pytest.mark.parametrize("broken_off", ["apart", "whole"])
@pytest.mark.parametrize("name", ["capsnet", "dropout", "em", "muon"])
def test_broken_off_and_resumed_in_one_piece_is_as_unbroken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, broken_off: str
) -> None:
    """Whether it was begun like this or, as on another device, was not."""
    wanted = outcome(CASES[name], tmp_path / "unbroken")
    save = Checkpoints.save

    def breaking(self: Checkpoints, trainer: Any) -> None:
        save(self, trainer)
        if trainer.global_step == 5:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if broken_off == "whole":
            in_one_piece(patch, Again())
        patch.setattr(Checkpoints, "save", breaking)
        with pytest.raises(KeyboardInterrupt):
            train(CASES[name], tmp_path / "a", progress="none", checkpoint_seconds=0)
    in_one_piece(monkeypatch, Again())
    require_same(outcome(CASES[name], tmp_path / "a"), wanted)


def test_the_bar_shows_the_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    in_one_piece(monkeypatch, Again())
    train(replace(CAPSNET, epochs=1), tmp_path, progress="bar")
    shown = capsys.readouterr()
    assert re.search(r"6/6 .*loss=\d", shown.out + shown.err)


def test_random_numbers_are_those_of_torchs_own_seed() -> None:
    before = torch.get_rng_state()
    try:
        torch.manual_seed(3)
        wanted = torch.rand(5)
        seed(3, torch.device("cpu"))
        assert torch.equal(torch.rand(5), wanted) and torch.initial_seed() == 3
        if torch.cuda.is_available():
            torch.manual_seed(3)
            wanted = torch.rand(5, device="cuda")
            seed(3, torch.device("cuda"))
            assert torch.equal(torch.rand(5, device="cuda"), wanted)
    finally:
        torch.set_rng_state(before)


@pytest.mark.parametrize(("value", "wanted"), [("0", False), ("1", True), (None, True)])
def test_an_environment_variable_turns_recording_off(
    monkeypatch: pytest.MonkeyPatch, value: str | None, wanted: bool
) -> None:
    monkeypatch.delenv("TORCHCAPS_CUDA_GRAPH", raising=False)
    if value is not None:
        monkeypatch.setenv("TORCHCAPS_CUDA_GRAPH", value)
    assert cuda_graph.wanted() == wanted


def test_an_environment_variable_of_another_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHCAPS_CUDA_GRAPH", "no")
    with pytest.raises(ValueError, match="TORCHCAPS_CUDA_GRAPH must be 0 or 1, got 'no'"):
        train(CAPSNET, tmp_path / "a", progress="none")
    assert not (tmp_path / "a").exists()


class Failing:
    """A recording whose end says no more than that something was wrong before."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        raise RuntimeError("operation failed due to a previous error")


def test_why_a_recording_failed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """As CUDA and torch would; tried without them."""
    for name in ("Stream", "CUDAGraph", "graph_pool_handle"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: None)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "graph", lambda *_, **options: Failing())
    recorder = cuda_graph.CudaGraph(torch.device("cuda", 0))

    def looking() -> Tensor:
        raise RuntimeError("operation not permitted when stream is capturing\nCompile with so and so")

    with pytest.raises(Unrecordable, match="^RuntimeError: operation not permitted when stream is capturing$"):
        recorder.record(looking)
    with pytest.raises(Unrecordable, match="^RuntimeError: operation failed due to a previous error$"):
        recorder.record(lambda: torch.zeros(()))


def test_on_a_cpu_steps_are_taken_apart() -> None:
    data = load("digits")
    batches = split(CAPSNET, data, "train", torch.device("cpu"))
    task = TrainingModule(CAPSNET, make_model(CAPSNET, data), batches, batches)
    assert task.whole_step(task.configure_optimizers()["optimizer"]) is None


WITHOUT = """
import sys
sys.modules["jsonargparse"] = sys.modules["pooch"] = None
from dataclasses import replace
from torchcaps.training.recipes import recipe
from torchcaps.training.train import train
config = recipe("digits")
config = replace(config, data=replace(config.data, n_train=64, n_eval=20), epochs=1, batch_size=32, device="cpu")
config = replace(config, model=replace(config.model, options={"channels": 4, "n_types": 2}), threads=1)
assert train(config, sys.argv[1], progress="none")["steps"] == 2
"""


def test_training_from_python_needs_neither_command_line_nor_downloads(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT, str(tmp_path)], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def steps_on_gpu(config: Experiment, recorder: Any, n: int = 12) -> tuple[list[float], list[Tensor]]:
    device, data = torch.device("cuda", torch.cuda.current_device()), load("digits")
    torch.manual_seed(0)
    model = make_model(config, data).to(device)
    batches: Batches = split(config, data, "train", device)
    step = WholeStep(config, model, torch.optim.Adam(model.parameters(), lr=1e-3, fused=True), recorder)
    losses = list[float]()
    while len(losses) < n:
        for batch in batches:
            torch.manual_seed(len(losses))
            losses.append(step(batch, len(losses), min(1.0, len(losses) / n)).item())
    assert step.fault() is None
    return losses, [p.detach().cpu() for p in model.parameters()]


@needs_gpu
@pytest.mark.parametrize("name", ["capsnet", "dropout", "em"])
def test_on_a_gpu_the_graph_does_what_its_kernels_do(name: str, caplog: pytest.LogCaptureFixture) -> None:
    graph = cuda_graph.CudaGraph(torch.device("cuda", torch.cuda.current_device()))
    ours, wanted = steps_on_gpu(CASES[name], graph), steps_on_gpu(CASES[name], None)
    assert not told(caplog)
    assert ours[0] == pytest.approx(wanted[0], rel=1e-3)
    for one, two in zip(ours[1], wanted[1], strict=True):
        torch.testing.assert_close(one, two, rtol=1e-2, atol=1e-3)


class Looking(nn.Module):
    """Waits for the device, which cannot be recorded, and drops units out."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.network = matched_cnn(**options)

    def forward(self, x: Tensor) -> Any:
        assert x.sum().item() > 0
        return self.network(x)


@needs_gpu
def test_on_a_gpu_what_cannot_be_recorded_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(MODELS, "looking", Looking)
    config = replace(CASES["dropout"], model=Model("looking", {"n_parameters": 3000}))
    graph = cuda_graph.CudaGraph(torch.device("cuda", torch.cuda.current_device()))
    with caplog.at_level(logging.WARNING):
        ours = steps_on_gpu(config, graph)
    assert len(told(caplog)) == 1
    wanted = steps_on_gpu(config, None)
    assert ours[0] == pytest.approx(wanted[0], rel=1e-3)
    assert torch.rand(3, device="cuda").isfinite().all()
