"""The folder of one run: configuration, metrics, checkpoint, model, result, report."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from torchcaps.checks import check_choice
from torchcaps.models import cards
from torchcaps.training.config import NO_FACTORS, Data, Device, Experiment, Model, Optim
from torchcaps.training.files import read_json, write_json
from torchcaps.training.recipes import recipe
from torchcaps.typed import typed

#: Fields that may differ when a run is resumed: they say where it runs, not what is run.
WHERE = ("threads", "device", "devices", "nodes", "data.root")

#: Begins what names the library's own weights where a run is asked for.
PRETRAINED = "pretrained:"

_ABSENT = object()
_SPLITS = ("val", "test")


class Run:
    """Paths and files of one run.

    Attributes:
        path: the folder; or ``pretrained:NAME``, weights that come with the library, which have an experiment and a
            model, and no files of their own.
        pretrained: that NAME, else None.
        config: ``config.json``, the experiment.
        metrics: ``metrics.csv``, one row an epoch.
        checkpoint: ``checkpoints/last.ckpt``, from which training resumes.
        previous: ``checkpoints/previous.ckpt``, the one before it, which takes its place should it be damaged.
        model: ``model.pt``, the trained model: name, options and ``state_dict``.
        result: ``result.json``, written once, when all is done.
        report: ``report.html``.
    """

    @typed
    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).expanduser()
        text = str(self.path)
        self.pretrained = text.removeprefix(PRETRAINED) if text.startswith(PRETRAINED) else None
        self.config = self.path / "config.json"
        self.metrics = self.path / "metrics.csv"
        self.checkpoint = self.path / "checkpoints" / "last.ckpt"
        self.previous = self.path / "checkpoints" / "previous.ckpt"
        self.model = self.path / "model.pt"
        self.result = self.path / "result.json"
        self.report = self.path / "report.html"

    def finished(self) -> dict[str, Any]:
        """Read what ``result.json`` holds.

        Raises:
            ValueError: the run is not finished, or was a trial, of which nothing but its validation may be asked.
        """
        if not self.result.is_file():
            what = "has no result.json" if self.path.is_dir() else "is no folder"
            raise ValueError(f"{self.path} must hold a finished run, but it {what}")
        config = self.experiment()
        if config.trial:
            raise ValueError(f"{self.path} must hold a full run, got a trial, which has seen no test image")
        return self.read_result(*(f"{split}_{'error' if config.data.task.classifies else 'loss'}" for split in _SPLITS))

    def classifier(self) -> Experiment:
        """Return the experiment, once it is known to be a classifier's.

        Raises:
            ValueError: it is an auto-encoder's, or segments.
        """
        config = self.experiment()
        if not config.data.task.classifies:
            why = "" if config.data.task.segments else ", which knows no classes"
            raise ValueError(f"{self.path} must hold a classifier, got {config.data.task.kind}{why}")
        return config

    def scorer(self) -> Experiment:
        """Return the experiment, once its network is known to give scores, of images or of their pixels.

        Raises:
            ValueError: it is an auto-encoder's.
        """
        config = self.experiment()
        return config if config.data.task.segments else self.classifier()

    def read_result(self, *further: str) -> dict[str, Any]:
        """Read what ``result.json`` holds, of a trial too; it must have the ``further`` keys besides.

        Raises:
            ValueError: it is missing, broken, or something else.
        """
        keys = ("recipe", "seed", "epochs", "seconds", "n_parameters", "device", "versions", "config")
        found = read_json(self.result, *keys, *further)
        try:
            experiment_from(found["config"])
        except ValueError as error:
            raise ValueError(f"{self.result}: {error}") from error
        return found

    def check(self, config: Experiment) -> None:
        """See that the folder is free for this experiment, or belongs to it already. Writes nothing.

        Raises:
            ValueError: the folder holds a run of another experiment, or files that are no run.
        """
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"{self.path} is a file: name a folder by out")
        if not (self.config.is_file() and self.started()):
            self._require_free()
            return
        what = [f"{k} = {theirs} there, {mine} here" for k, (theirs, mine) in self.differences(config).items()]
        if what:
            more = f", and {len(what) - 5} more" if len(what) > 5 else ""
            raise ValueError(
                f"{self.path} holds a run of another experiment ({', '.join(what[:5])}{more}): name another folder by "
                f"out (of tune by runs){self._may_go_on(config)}"
            )

    def differences(self, config: Experiment) -> dict[str, tuple[str, str]]:
        """Fields in which the run here differs from an experiment, except for where it runs: its value, and theirs."""
        found = differing(self.experiment().to_dict(), config.to_dict())
        free = {*WHERE, *unnamed_factors(found)}
        return {name: both for name, both in found.items() if name not in free}

    def _may_go_on(self, config: Experiment) -> str:
        """Say that a run can be given more epochs, where these alone differ and it is not finished."""
        only = list(self.differences(config)) == ["epochs"] and config.epochs > self.experiment().epochs
        return "; once it is finished it can be given more epochs" if only and not self.result.is_file() else ""

    def before(self, epochs: int) -> Run:
        """Return the run as it was when it had so many epochs, before it was given more."""
        return Run(self.path / f"{epochs}-epochs")

    def befores(self) -> list[int]:
        """Return how many epochs it had each time that it was given more."""
        names = (path.parent.name.removesuffix("-epochs") for path in self.path.glob("*-epochs/result.json"))
        return sorted(int(name) for name in names if name.isdecimal())

    def _require_free(self) -> None:
        """Allow only what a run that was killed before its first checkpoint leaves behind."""
        files = (path for path in self.path.rglob("*") if path.is_file())
        other = next((path for path in files if path.name not in (".lock", "config.json") and not _partial(path)), None)
        if other is not None:
            raise ValueError(f"{self.path} is not empty and holds no run, but {other}: name another folder by out")
        if self.config.is_file():
            try:
                self.experiment()
            except ValueError as error:
                raise ValueError(f"{error}: name another folder by out") from error

    def started(self) -> bool:
        """Return whether there is anything here that another experiment must not touch."""
        return any(path.exists() for path in (self.metrics, self.checkpoint, self.previous, self.model, self.result))

    def open(self, config: Experiment) -> None:
        """Claim the folder for this experiment, as :meth:`check` allows."""
        self.check(config)
        for left in filter(_partial, self.path.rglob("*")):
            left.unlink()
        if self.started():  # the data may have been moved since, and are looked for where they were last
            before = self.experiment()
            config = replace(before, data=replace(before.data, root=config.data.root))
        write_json(self.config, config.to_dict())

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes out of the folder; the lock ends with this process, however it ends.

        Raises:
            ValueError: another process is at work here.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.path / ".lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise ValueError(
                f"another process trains in {self.path}: wait for it, or name another folder by out"
            ) from None
        try:
            yield
        finally:
            lock.release()

    def experiment(self) -> Experiment:
        """Read the experiment, from ``config.json``; of the library's own weights it is their recipe.

        Raises:
            ValueError: the folder holds no run, or there are no such weights.
        """
        if self.pretrained is not None:
            check_choice("pretrained", self.pretrained, cards())
            return recipe(cards()[self.pretrained].recipe)
        if not self.config.is_file():
            raise ValueError(f"{self.path} must be a run folder, but it has no config.json")
        try:
            return experiment_from(read_json(self.config))
        except ValueError as error:
            raise ValueError(f"{self.config}: {error}") from error


def experiment_from(content: dict[str, Any]) -> Experiment:
    """Read the experiment that was written as ``config.json``.

    What was not a field then has its default, which is how things were done then.

    Raises:
        ValueError: fields are missing, unknown or out of range.
    """
    try:
        parts = {
            "data": Data(**content["data"]),
            "model": Model(**content["model"]),
            "optim": Optim(**content["optim"]),
        }
        return Experiment(**content | parts)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"not the configuration of a run of this version: {error!r}") from error


def placed(config: Experiment, root: str | Path | None, threads: int, device: Device) -> Experiment:
    """Return the experiment with what says where it runs.

    Args:
        config: the experiment.
        root: folder of the data files, or the folder of the data sets' folders; None for the experiment's own.
        threads: threads on a CPU; 0 leaves torch's number, which is all cores unless it was set.
        device: where to train.
    """
    return replace(with_data_in(config, root), threads=threads, device=device)


def with_fields(config: Experiment, settings: Mapping[str, Any]) -> Experiment:
    """Return the experiment with other values of fields, by their dotted names, such as ``optim.lr``."""
    content = config.to_dict()
    for name, value in settings.items():
        *path, last = name.split(".")
        place = content
        for part in path:
            place = place[part]
        place[last] = value
    return experiment_from(content)


def with_data_in(config: Experiment, root: str | Path | None) -> Experiment:
    """Return the experiment on the files in ``root``, or in the data sets' folders there; None leaves its own."""
    if root is None:
        return config
    root = Path(root).expanduser()
    own = root / config.data.name
    found = own if not config.data.name.endswith("folder") and own.is_dir() else root  # a class may be called so
    return replace(config, data=replace(config.data, root=str(found)))


def _partial(path: Path) -> bool:
    """Return whether a process was killed as it wrote this file."""
    return path.name.startswith(".") and path.suffix == ".partial"


def differing(theirs: dict[str, Any], mine: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Fields that differ, by their dotted names, as text. A number is the same with and without a point.

    An option that is None is not one that is left out: a model's default need not be None.
    """
    flats = flat(theirs), flat(mine)
    both = {k: [each.get(k, _ABSENT) for each in flats] for k in sorted(flats[0] | flats[1])}
    return {
        k: ("nothing" if old is _ABSENT else repr(old), "nothing" if new is _ABSENT else repr(new))
        for k, (old, new) in both.items()
        if old != new or isinstance(old, bool) != isinstance(new, bool)
    }


def unnamed_factors(found: dict[str, tuple[str, str]]) -> list[str]:
    """Return those of the differing fields that are factors an older run had and did not name, and has here too."""
    names = {f"model.options.{name}": repr(value) for name, value in NO_FACTORS.items()}
    return [name for name, both in found.items() if name in names and both == ("nothing", names[name])]


def flat(content: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested dicts as one with dotted names; tuples as JSON would give them back."""
    found: dict[str, Any] = {}
    for name, value in content.items():
        if isinstance(value, dict):
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = json.loads(json.dumps(value))
    return found
