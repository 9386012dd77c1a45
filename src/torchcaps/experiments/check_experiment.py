"""The checks of an experiment's fields, before any work is done."""

from __future__ import annotations

import math
from numbers import Real
from typing import TYPE_CHECKING, Any

from torchcaps.checks import check_at_least, check_choice, check_flag, check_two, single
from torchcaps.experiments.choices import (
    BLENDS,
    DEVICES,
    LOSSES,
    MARGINS,
    OPTIMIZERS,
    PRECISIONS,
    SCHEDULES,
    TEST_CROPS,
)

if TYPE_CHECKING:
    from torchcaps.experiments.experiment import Data, Experiment, Model, Optim

#: Fields of :class:`Data` that change the light, and leave all in its place.
_LIGHT = ("gamma", "shading", "brightness", "contrast")


def check_experiment(config: Experiment) -> None:
    """Refuse values out of range, and what does not go together.

    Raises:
        ValueError: naming the field.
    """
    data, optim = config.data, config.optim
    if not isinstance(config.recipe, str):
        raise ValueError(f"recipe must be a text, got {config.recipe!r}")
    if not config.recipe or set(config.recipe) & {"/", "\\"}:  # it names folders and files
        raise ValueError(f"recipe must be a name without slashes, got {config.recipe!r}")
    check_choice("loss", config.loss, LOSSES)
    check_choice("margin", config.margin, MARGINS)
    check_choice("precision", config.precision, PRECISIONS)
    check_choice("device", config.device, DEVICES)
    check_choice("data.blend", data.blend, BLENDS)
    check_choice("optim.name", optim.name, OPTIMIZERS)
    check_choice("optim.schedule", optim.schedule, SCHEDULES)
    for name, least in {"epochs": 1, "batch_size": 1, "threads": 0, "seed": 0}.items():
        check_at_least(name, getattr(config, name), least)
    _within("threads", config.threads, 0, 1024)
    _within("seed", config.seed, 0, 2**32 - 1)
    for name in ("compile", "trial", "keep_best"):
        check_flag(name, getattr(config, name))
    for name in ("pairs", "transformed", "flip"):
        check_flag(f"data.{name}", getattr(data, name))
    if data.root == "":  # of an empty shell variable, which is not the folder one stands in
        raise ValueError("data.root must name a folder, got an empty text")
    check_at_least("data.shift", data.shift, 0)
    for name in ("image_size", "n_pairs", "crop"):
        if getattr(data, name) is not None:
            check_two(f"data.{name}", getattr(data, name), 1)
    check_two("data.contrast", data.contrast)
    for name in ("n_train", "n_shown", "n_eval"):
        if getattr(data, name) is not None:
            check_at_least(f"data.{name}", getattr(data, name), 1)
    _within("reconstruction", config.reconstruction, 0)
    _within("consistency", config.consistency, 0)
    if config.stop_at is not None:
        _within("stop_at", config.stop_at, 0, 1)
    _within("data.degrees", data.degrees, 0, 180)
    _within("data.scale", data.scale, 0, 0.99)
    _within("data.shear", data.shear, 0)
    _within("data.gamma", data.gamma, 0, 3)
    _within("data.shading", data.shading, 0, 3)
    _within("data.brightness", data.brightness, 0)
    _within("data.contrast[1]", data.contrast[1], 0)
    _within("data.contrast[0]", data.contrast[0], 0, data.contrast[1])
    check_choice("data.test_crops", data.test_crops, TEST_CROPS)
    if data.test_crops > 1 and data.crop is None:
        raise ValueError(f"data.crop must be given for data.test_crops = {data.test_crops}, got None")
    _require_plain("data.options", data.options)
    _require_plain("model.options", config.model.options)
    for name in ("name", "root", "image_size"):
        if name in data.options:
            raise ValueError(f"data.options must not hold {name}, which is data.{name}; got {data.options}")
    for name in ("name", "image_shape", "n_classes"):
        if name in config.model.options:
            raise ValueError(f"model.options must not hold {name}, which follows from model.name and the data")
    if config.consistency and not data.transformed:
        raise ValueError(f"consistency must be 0 without data.transformed, as nothing moves; got {config.consistency}")
    _within("optim.lr", optim.lr, 1e-12)
    _within("optim.warmup", optim.warmup, 0, 0.99)
    _within("optim.decay", optim.decay, 1e-12, 1)
    _within("optim.decay_steps", optim.decay_steps, 1e-12)
    _within("optim.floor", optim.floor, 0)
    if optim.lr < optim.floor:
        raise ValueError(f"optim.lr must be at least optim.floor, {optim.floor}, got {optim.lr}")
    _within("optim.eps", optim.eps, 1e-30)  # a weight without a gradient steps by 0 / eps
    _within("optim.clip", optim.clip, 0)
    _within("optim.weight_decay", optim.weight_decay, 0)
    if data.transformed != (config.loss == "squared_error"):
        wanted = "squared_error" if data.transformed else "another than squared_error"
        raise ValueError(f"loss must be {wanted} with data.transformed = {data.transformed}, got {config.loss}")
    if data.transformed:
        _plain(data, "data.transformed", "pairs", "flip", *_LIGHT, "test_crops")
        if config.stop_at is not None:
            raise ValueError(f"stop_at must be None with data.transformed, which knows no error; got {config.stop_at}")
    if data.pairs and config.loss == "spread":
        raise ValueError("loss must be margin or cross_entropy with data.pairs: spread asks for one class; got spread")
    if data.pairs:
        _plain(data, "data.pairs", "n_shown", "degrees", "scale", "shear", "flip", *_LIGHT, "crop")


def use_plain_numbers(fields: Data | Model | Optim | Experiment) -> None:
    """Make numpy's and torch's single numbers Python's: files hold no others."""
    for name, value in vars(fields).items():
        object.__setattr__(fields, name, _in_python(value))


def _in_python(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [*map(_in_python, value)] if isinstance(value, list) else (*map(_in_python, value),)
    if isinstance(value, dict):
        return {key: _in_python(each) for key, each in value.items()}
    return single(value)


def _plain(data: Data, kind: str, *names: str) -> None:
    """Refuse what one kind of examples has no use for."""
    for name in names:
        value, plain = getattr(data, name), getattr(type(data)(), name)
        if value != plain:
            raise ValueError(f"data.{name} must be {plain} with {kind}, got {value}")


def _require_plain(name: str, options: dict[str, Any]) -> None:
    """Refuse what a file would not give back as it was."""
    if not isinstance(options, dict):
        raise ValueError(f"{name} must be a dict, got {options!r}")
    for key, value in options.items():
        if not _is_plain(value):
            raise ValueError(
                f"{name} must hold finite numbers, texts, and lists and mappings of such, as they are kept in files; "
                f"got {key}={value!r}"
            )


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(each) for key, each in value.items())
    return value is None or isinstance(value, int | str) or (isinstance(value, float) and math.isfinite(value))


def _within(name: str, value: float, least: float, most: float = math.inf) -> None:
    if isinstance(value, bool) or not (isinstance(value, Real) and math.isfinite(value) and least <= value <= most):
        limits = f"at least {least}" if most == math.inf else f"{least} … {most}"
        raise ValueError(f"{name} must be {limits} and finite, got {value!r}")
