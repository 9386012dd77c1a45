"""Train an experiment in its run folder, resuming what was broken off."""

from __future__ import annotations

import logging
import os
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import lightning as L
import torch
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.pytorch.loggers import Logger
from lightning.pytorch.strategies import DDPStrategy
from torch import nn

from torchcaps.checks import check_choice
from torchcaps.data import SAME_EVERYWHERE, Dataset, load
from torchcaps.models import MODELS
from torchcaps.models.baselines import count_parameters
from torchcaps.training import cuda_graph, launch, own_code
from torchcaps.training.batch_norm import over_processes
from torchcaps.training.batches import Batches, split
from torchcaps.training.build import (
    check_model,
    compile_capsules,
    refuse_what_does_nothing,
    require_compiler,
    warn_of_size,
)
from torchcaps.training.callbacks import (
    Bar,
    Best,
    Checkpoints,
    FirstLine,
    Lines,
    Metrics,
    OutOfTime,
    Rate,
    Stop,
    Straight,
    ToLoggers,
)
from torchcaps.training.checkpoint import HANDED_OVER, load_model, save_model
from torchcaps.training.config import PROGRESS, Experiment, Model, Progress
from torchcaps.training.environment import (
    choose_device,
    device_in_words,
    flushed,
    splits_in_words,
    undisturbed,
    versions,
)
from torchcaps.training.files import require_place, write_json
from torchcaps.training.loggers import as_loggers
from torchcaps.training.module import TrainingModule
from torchcaps.training.more_epochs import as_in_one_go, epochs_before, put_aside, require_same_data
from torchcaps.training.objective import Loss, evaluate
from torchcaps.training.per_class import count_classes
from torchcaps.training.processes import ALONE, World, as_launched, connected, world_here
from torchcaps.training.run import Run
from torchcaps.training.stuck import Stuck

#: What training goes on from.
_HELD = {"epoch", "global_step", "loops", "callbacks", "optimizer_states", "lr_schedulers"}

#: What warnings say that is of no use here.
_UNASKED = (
    "does not have many workers",
    "isinstance.treespec, LeafSpec",
    "in eval mode at the start",
    "sync_dist=True",
    "find_unused_parameters=True was specified",
    "Grad strides do not match bucket view strides",
)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence what Lightning and torch say of matters that are settled here.

    These are Lightning's advertisements, its advice on loader workers (batches are made on the device), on parts in
    evaluation mode (as a frozen backbone is) and on sums over processes (which are taken), and its own use of what
    torch is about to drop; and torch's advice on parameters that are all used, and on layouts that cost no time.
    """
    names = ("lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero")
    levels = {logger: logger.level for logger in map(logging.getLogger, names)}
    for logger in levels:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            for message in _UNASKED:
                warnings.filterwarnings("ignore", message=f"(?s).*{message}.*")
            yield
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)


def train(
    config: Experiment,
    out: str | Path | None = None,
    *,
    dataset: Dataset | None = None,
    model: nn.Module | None = None,
    loss: Loss | None = None,
    progress: Progress = "bar",
    checkpoint_seconds: float = 120.0,
    until: float | None = None,
    more_epochs: bool = False,
    logger: Logger | Sequence[Logger] | str | None = None,
) -> dict[str, Any]:
    """Train, evaluate and record one experiment.

    A run that was broken off resumes from its last checkpoint and ends as it would have ended; one
    that is finished is not touched, and its result returned.

    On an NVIDIA GPU a training step is recorded as a CUDA graph and replayed, which does the same in less time. The
    first replays are checked; a step that cannot be recorded is launched kernel by kernel, and a warning says why.
    The environment variable ``TORCHCAPS_CUDA_GRAPH=0`` asks for that from the start.

    With ``config.devices`` above 1, or under torchrun, several processes train together: each has a part of every
    batch, and gradients, batch normalization and metrics are those of all (``docs/do/several-processes.md``). A program
    that is not started by torchrun then needs ``if __name__ == "__main__":``, as for any process that Python starts.

    Args:
        config: the experiment.
        out: the run's folder; by default ``runs/<recipe>``, with ``-seed<n>`` for seeds other than 0.
        dataset: images of your own, in place of ``config.data``'s; augmentation is still as ``config.data`` says.
        model: a network of your own, in place of ``config.model``'s, trained in place. It takes images
            ``[B, C, H, W]`` and returns scores ``[B, J]``, capsules, or a :class:`~torchcaps.models.ModelOutput`. Hand
            it over again to resume, and to :func:`load_model`.
        loss: of your own, in place of ``config.loss``: a function of the model's output and the
            :class:`~torchcaps.training.examples.Batch`. Hand it over again to resume.
        progress: a "bar", "lines" (one an epoch), or "none".
        checkpoint_seconds: how often a long epoch is saved in its midst.
        until: when to stop, on the clock of ``time.monotonic``; None for never.
        more_epochs: let a finished run that differs in having fewer epochs alone go on to these, from its checkpoint.
            What it was is kept as ``<out>/<n>-epochs``. The learning rate goes on as that of all epochs: unless it is
            "constant" or "exponential" by steps, without warm-up, the outcome is not that of training in one go.
        logger: one or several of Lightning's loggers, which get each epoch's row of ``metrics.csv``; "tensorboard" for
            one that writes into the run's folder, with ``pip install tensorboard``.

    Returns:
        The content of ``result.json``.

    Raises:
        ValueError: data, model or folder do not fit (before any work is done), or the loss became
            NaN (the last good checkpoint is kept).
        OutOfTime: ``until`` was reached; the same call goes on from the checkpoint.
        ChildProcessError, ConnectionError: one of several processes was ended, and so all were; the same call goes on
            from the checkpoint, with as many processes or others.
    """
    if not isinstance(config, Experiment):
        raise ValueError(f"config must be an Experiment, such as that of a recipe, got {config!r}")
    check_choice("progress", progress, PROGRESS)
    given, world = Given(dataset, model, loss), world_here()
    config, threads = as_launched(given.named_in(config), world), torch.get_num_threads()
    run = Run(out or default_folder(config))
    how = How(progress, checkpoint_seconds, until, more_epochs, as_loggers(logger, run.path))
    if world.size < config.devices:
        return _train_together(config, run, given, how, logger)
    try:
        with undisturbed(), flushed(), _heard(world):
            device = choose_device(config.device, config.devices, world.local_rank)
            if world.size > 1 and device.type == "cuda":
                torch.cuda.set_device(device)
            with connected(world, device):
                return _train(config, run, given, how, world)
    finally:
        torch.set_num_threads(threads)


def _train_together(
    config: Experiment, run: Run, given: Given, how: How, logger: Logger | Sequence[Logger] | str | None
) -> dict[str, Any]:
    """Start the processes of this machine, and return what they wrote."""
    _, result = _looked(config, run, given, how)
    if result is not None:
        return result
    choose_device(config.device, config.devices)  # before they are started
    handed = given._replace(model=deepcopy(given.model))  # what is handed over goes into memory that all share
    launch.start(config.devices, _train_as_one, (config, run.path, handed, how._replace(loggers=()), logger), _OBJECTS)
    result = run.read_result()
    if given.model is not None:
        load_model(run, given.model)
    return result


#: What may be handed over.
_OBJECTS = "dataset, model, loss and logger"


def _train_as_one(
    config: Experiment, out: Path, given: Given, how: How, logger: Logger | Sequence[Logger] | str | None
) -> None:
    """Train as one of several processes that were started for it, which must not step the same memory."""
    given = given._replace(model=deepcopy(given.model))
    train(
        config,
        out,
        **given._asdict(),
        progress=how.progress,
        checkpoint_seconds=how.checkpoint_seconds,
        until=how.until,
        more_epochs=how.more_epochs,
        logger=logger,
    )


@contextmanager
def _heard(world: World) -> Iterator[None]:
    """Let warnings be those of the first process alone."""
    if world.first:
        yield
        return
    log = logging.getLogger("torchcaps")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


class Given(NamedTuple):
    """Hold what was handed over to :func:`train` as objects; None where the experiment names it."""

    dataset: Dataset | None
    model: nn.Module | None
    loss: Loss | None

    def named_in(self, config: Experiment) -> Experiment:
        """Return the experiment with the names of what was handed over, as its files say it.

        Raises:
            ValueError: something else than a data set, a network or a function was handed over.
        """
        for name, value, kind in (("dataset", self.dataset, Dataset), ("model", self.model, nn.Module)):
            if value is not None and not isinstance(value, kind):
                raise ValueError(f"{name} must be a {kind.__name__}, got a {type(value).__name__}")
        if self.loss is not None and not callable(self.loss):
            raise ValueError(f"loss must be a function of output and batch, got {self.loss!r}")
        if self.loss is None and config.loss == "own":
            raise ValueError("loss must be handed over, as the experiment has one of your own; got None")
        if self.loss is not None:
            config = replace(config, loss="own")
        if self.dataset is not None:
            several = config.data.multi_label or self.dataset.several_labels
            name = f"{self.dataset.name}{HANDED_OVER}"
            config = replace(config, data=replace(config.data, name=name, options={}, multi_label=several))
        if self.model is not None:
            config = replace(config, model=Model(f"{type(self.model).__name__}{HANDED_OVER}"))
        return config

    def in_words(self) -> dict[str, list[str]]:
        """Return which parts were handed over, for the result."""
        names = [name for name, value in self._asdict().items() if value is not None]
        return {"handed_over": names} if names else {}


class How(NamedTuple):
    """Hold how a run is trained, which changes nothing of its outcome; see :func:`train`."""

    progress: Progress
    checkpoint_seconds: float
    until: float | None
    more_epochs: bool
    loggers: tuple[Logger, ...] = ()


class Session(NamedTuple):
    """Hold what a run trains: the experiment with its data and model, on a device."""

    config: Experiment
    device: torch.device
    dataset: Dataset
    batches: dict[str, Batches]
    model: nn.Module
    given: Given
    world: World = ALONE

    def place(self) -> str:
        """Say where it trains, and by how many processes."""
        n, device = self.world.size, device_in_words(self.device)
        return device if n == 1 else f"{n} processes, each on {device}"


class Fitted(NamedTuple):
    """Hold what training came to."""

    metrics: Metrics
    best: Best | None
    steps: int


def _train(config: Experiment, run: Run, given: Given, how: How, world: World) -> dict[str, Any]:
    before, result = world.decided(lambda: _looked(config, run, given, how))
    if result is not None:
        return result
    session = world.in_turn(lambda: prepare(config, given, world))
    with ExitStack() as held:
        result = world.decided(lambda: _claimed(session, run, before, held))
        if result is not None:
            return result
        return record(session, run, fit(session, run, how), progress=how.progress != "none")


def _looked(config: Experiment, run: Run, given: Given, how: How) -> tuple[int | None, dict[str, Any] | None]:
    """Look into the folder before any work: return the epochs that a finished run had, or its result if it is this."""
    before = epochs_before(run, config) if how.more_epochs else None
    if before is None:
        run.check(config)
        if run.result.is_file():
            _require_same_data(config, run, given.dataset)
            return None, run.read_result()
    require_place("out", run.path)
    if how.until is not None and time.monotonic() >= how.until:
        raise OutOfTime
    return before, None


def _claimed(session: Session, run: Run, before: int | None, held: ExitStack) -> dict[str, Any] | None:
    """Take the folder until ``held`` is left; return the result, if another process has written it meanwhile."""
    if not run.started():
        refuse_what_does_nothing(session.config, session.model)
        warn_of_size(session.config, session.dataset, session.model)
    held.enter_context(run.locked())
    # Unless another process did so while this one loaded.
    if before is not None and epochs_before(run, session.config) == before:
        require_same_data(run, session.dataset)
        _resumable(run, session.model)
        put_aside(run, session.config)
    run.check(session.config)
    if run.result.is_file():  # by another process, while this one loaded
        return run.read_result()
    run.open(session.config)
    own_code.keep_in(run.path)
    return None


def prepare(config: Experiment, given: Given, world: World = ALONE) -> Session:
    """Load the data and make the model, and see that all fits; writes nothing.

    Raises:
        ValueError: data, model and experiment do not fit, or this machine cannot train as asked.
    """
    if config.data.root is not None:  # so that the run is found again from another folder
        config = replace(config, data=replace(config.data, root=str(Path(config.data.root).expanduser().resolve())))
    device = choose_device(config.device, config.devices, world.local_rank)
    cuda_graph.wanted()  # or refuses what the environment says, before data are loaded
    if config.threads:
        torch.set_num_threads(config.threads)
    if world.size > 1:  # or Lightning takes all cores for each
        os.environ.setdefault("OMP_NUM_THREADS", str(torch.get_num_threads()))
    if config.compile:
        require_compiler()
    if given.model is None:
        check_choice("model.name", config.model.name, MODELS)  # before data are downloaded
    torch.manual_seed(config.seed)
    dataset = given.dataset
    if dataset is None:
        dataset = load(config.data.name, config.data.root, config.data.image_size, **config.data.options)
    for name, images in dataset.splits.items():
        if not len(images):
            raise ValueError(f"data must have {name} images, got none of {config.data.name}")
    if (config.trial or config.stop_at is not None or config.keep_best) and not dataset.held_out:
        raise ValueError(
            "data must hold validation images out where settings or weights are chosen, or training ended, by them; of "
            f"{config.recipe} {dataset.note}: take a recipe or data.options that hold them out"
        )
    batches = {name: split(config, dataset, name, device, world) for name in dataset.splits}
    model = check_model(config, dataset, given.model)
    return Session(config, device, dataset, batches, model, given, world)


def fit(session: Session, run: Run, how: How) -> Fitted:
    """Train in the run's folder, from its checkpoint if there is one, and write ``metrics.csv`` and ``model.pt``."""
    config, dataset, model, world = session.config, session.dataset, session.model, session.world
    if config.compile:
        compile_capsules(model)
    metrics = Metrics(run, dataset, session.place())
    task = TrainingModule(config, model, session.batches["train"], session.batches["val"], session.given.loss)
    first = FirstLine(_in_words(session), run)
    shown = {"bar": [first, Bar()], "lines": [first, Lines(metrics)]}.get(how.progress if world.first else "none", [])
    stop = [] if config.stop_at is None else [Stop(metrics, config.stop_at)]
    best = [Best(metrics)] if config.keep_best else []
    rate = [Rate()] if metrics.befores else []
    saved = Checkpoints(run, how.checkpoint_seconds, how.until)
    loggers = [ToLoggers(metrics, how.loggers)] if how.loggers and world.first else []
    callbacks = [metrics, *rate, *best, *stop, *shown, *loggers, Stuck(dataset.classes), saved]
    with over_processes(model, world):
        steps = _fit(run, task, session.device, how.progress, callbacks)
    for kept in best:  # the last ones stay in the checkpoint
        model.load_state_dict(kept.weights)
    if world.first:
        metrics.write()
        save_model(run, model, config, dataset)
    return Fitted(metrics, best[0] if best else None, steps)


def _in_words(session: Session) -> str:
    """Say what is trained on what and where, in one line."""
    n, config = len(session.batches["train"].source), session.config
    return (
        f"{config.model.name} with {count_parameters(session.model):,} parameters, {n:,} training images of "
        f"{config.data.name}, {config.epochs} epochs on {session.place()}"
    )


def record(session: Session, run: Run, fitted: Fitted, *, progress: bool) -> dict[str, Any]:
    """Evaluate the trained model on its splits, and write ``result.json``; returns its content."""
    config, dataset, batches, model = session.config, session.dataset, session.batches, session.model
    metrics = fitted.metrics
    model.to(session.device)
    tested = ["val"] if config.trial else [name for name in dataset.splits if name != "train"]
    world = session.world
    asked = {"classes": dataset.classes, "progress": progress and world.first, "loss": session.given.loss}
    scores = {name: evaluate(config, model, batches[name], **asked, world=world) for name in tested}
    for name in tested:
        scores[name] |= config.data.task.metrics(model.eval(), batches[name], world)
    result = {
        "recipe": config.recipe,
        "seed": config.seed,
        **{f"{split}_{name}": value for split in tested for name, value in scores[split].items()},
        "epochs": metrics.rows[-1]["epoch"],  # fewer than config's where stop_at ended it
        "kept_epoch": fitted.best.epoch if fitted.best else metrics.rows[-1]["epoch"],  # whose weights model.pt has
        "steps": fitted.steps,
        **({"went_on_from": metrics.befores, "as_in_one_go": as_in_one_go(config)} if metrics.befores else {}),
        "seconds": round(metrics.elapsed(), 1),
        "data": dataset.note,
        "held_out": dataset.held_out,
        "images": {name: len(each.source) for name, each in batches.items()},
        **_of_each_class(config, dataset, batches),
        **session.given.in_words(),
        "n_parameters": count_parameters(model),
        # Of every process that took part: a run may be resumed elsewhere, by other code than it was begun with.
        "device": "; ".join(metrics.devices),
        **({"processes": world.size} if world.size > 1 else {}),
        "versions": versions(),
        "commit": " ".join(metrics.commits),
        # Where the files lay says nothing about the result.
        "config": replace(config, data=replace(config.data, root=None)).to_dict(),
    }
    return world.decided(lambda: _written(run, result))


def _written(run: Run, result: dict[str, Any]) -> dict[str, Any]:
    write_json(run.result, result)
    return result


def _of_each_class(config: Experiment, dataset: Dataset, batches: dict[str, Batches]) -> dict[str, Any]:
    """Count the images of each class that a classifier was trained, validated and tested on."""
    if not (config.data.task.one_class or config.data.multi_label):
        return {}
    return {
        "images_per_class": {
            name: count_classes(each.source.labels, dataset.classes)
            for name, each in batches.items()
            if name == "train" or not config.trial or name == "val"
        }
    }


def _require_same_data(config: Experiment, run: Run, given: Dataset | None) -> None:
    """Do not return the result of one folder's data for another's, where it matters which it is and one is named."""
    if given is not None:
        content = torch.load(run.model, weights_only=True, map_location="cpu")
        if (given.note, tuple(given.classes), splits_in_words(given)) != (
            content["data"],
            tuple(content["classes"]),
            content["splits"],
        ):
            raise ValueError(f"{run.path} holds the run of other images: name another folder by out")
        return
    there = run.experiment().data.root
    if config.data.name in SAME_EVERYWHERE or config.data.root is None:
        return
    here = Path(config.data.root).expanduser().resolve()
    if there is not None and here == Path(there).expanduser().resolve():
        return
    trained = load_model(run)  # perhaps it was moved
    dataset = load(config.data.name, here, config.data.image_size, **config.data.options)
    now = dataset.note, dataset.classes, splits_in_words(dataset)
    if now != (trained.data, trained.classes, trained.splits or now[2]):  # older models lack them
        raise ValueError(f"{run.path} holds the run of other images, {there}: name another folder by out, got {here}")


def _fit(run: Run, task: TrainingModule, device: torch.device, progress: Progress, callbacks: list[L.Callback]) -> int:
    """Train to the end, from the last checkpoint if there is one; returns the steps taken in all."""
    world = task.world
    resume = world.decided(lambda: _resumable(run, task.model))
    if resume is not None:
        world.in_turn(lambda: _require_seen(Path(resume)))
    with _quiet():
        trainer = L.Trainer(
            accelerator={"cuda": "gpu"}.get(device.type, device.type),
            devices=_devices(device, world),
            num_nodes=task.config.nodes if world.size > 1 else 1,
            strategy=DDPStrategy(find_unused_parameters=True) if world.size > 1 else "auto",
            use_distributed_sampler=False,  # batches are shared out as they are made
            max_epochs=task.config.epochs,
            precision={"32": "32-true", "bf16": "bf16-mixed"}[task.config.precision],  # type: ignore[arg-type]
            callbacks=callbacks,
            logger=False,
            enable_checkpointing=False,
            enable_model_summary=False,
            enable_progress_bar=progress == "bar" and world.first,
            # Not a cluster's: there Lightning has the job queued again, and keeps a checkpoint of its own.
            plugins=[LightningEnvironment() if world.size == 1 else TorchElasticEnvironment(), Straight()],
            num_sanity_val_steps=0,
            default_root_dir=run.path,
        )
        try:
            trainer.fit(task, ckpt_path=resume)
        except SystemExit:
            if trainer.interrupted:  # Lightning's answer to Ctrl-C, which leaves the caller no say
                raise KeyboardInterrupt from None
            raise
    return trainer.global_step


def _devices(device: torch.device, world: World) -> list[int] | int:
    """Return which devices Lightning takes, of all the processes of this machine."""
    if world.size > 1:
        return world.local_size
    return [torch.cuda.current_device()] if device.type == "cuda" else 1


def _require_seen(checkpoint: Path) -> None:
    """Refuse a checkpoint that the first process sees and this one does not."""
    if not checkpoint.is_file():
        raise ValueError(f"out must be a folder that all machines see, got {checkpoint}, which is not on all")


def _resumable(run: Run, model: nn.Module) -> str | None:
    """Return the path of the last checkpoint, once it is known to be whole and this model's; None if there is none.

    A damaged one is put aside as ``damaged.ckpt``, and the one before it takes its place.

    Raises:
        ValueError: it is not, nor is the one before it; training from scratch instead would lose what it holds.
    """
    if run.checkpoint.is_file():
        try:
            shapes = _shapes_in(run.checkpoint)
        except ValueError as error:
            if not run.previous.is_file():
                raise ValueError(f"{error}. Remove it to start again.") from error
            shapes = _shapes_in(run.previous)
            logging.getLogger("torchcaps").warning("%s; going on from the one before it, %s", error, run.previous)
            run.checkpoint.replace(run.checkpoint.with_name("damaged.ckpt"))
            run.previous.replace(run.checkpoint)
    elif run.previous.is_file():  # a kill came between these two
        shapes = _shapes_in(run.previous)
        run.previous.replace(run.checkpoint)
    else:
        return None
    return _fitting(run.checkpoint, shapes, model)


def _shapes_in(checkpoint: Path) -> dict[str, torch.Size]:
    """Return the shapes of the weights, once the file is known to be readable; nothing in it is executed."""
    try:
        content = torch.load(checkpoint, weights_only=True, map_location="cpu")
        shapes = {name: value.shape for name, value in content["state_dict"].items()}
        missing = _HELD - content.keys()
        if missing:
            raise ValueError(f"it lacks {', '.join(sorted(missing))}")
        return shapes
    except Exception as error:  # torch raises whatever the broken bytes lead it to
        raise ValueError(f"{checkpoint} is not a whole checkpoint: {error}") from error


def _fitting(checkpoint: Path, shapes: dict[str, torch.Size], model: nn.Module) -> str:
    """Return the path, once the weights in it are known to be this model's.

    Raises:
        ValueError: they are not.
    """
    now = {f"model.{name}": value.shape for name, value in model.state_dict().items()}
    older = {name: shape for name, shape in now.items() if name.endswith(".scale")}  # which kept no factors
    if older | shapes != now:
        raise ValueError(f"{checkpoint} is the checkpoint of another model. Remove it to start again.")
    return str(checkpoint.absolute())  # Lightning takes what begins with "http" for an address


def default_folder(config: Experiment) -> Path:
    """``runs/<recipe>``, with ``-seed<n>`` for seeds other than 0, and ``-trial`` for a trial."""
    seed = f"-seed{config.seed}" if config.seed else ""
    return Path("runs") / f"{config.recipe}{seed}{'-trial' if config.trial else ''}"
