"""``torchcaps train``: its options are the fields of an experiment."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    from torchcaps.training import Experiment


#: Data sets of one's own files.
FOLDERS = ("folder", "mask-folder")
#: What is said of a result: the first that it has, and how it is written.
_MEASURES = {"error": ".2%", "dice": ".4f", "loss": ".5f"}


def train_command(arguments: list[str]) -> None:
    """Train a recipe, evaluate it and record the result."""
    from torchcaps.training.recipes import recipe

    name = arguments[0] if arguments and not arguments[0].startswith("-") else None
    if name is None and not {"-h", "--help"} & set(arguments):
        raise ValueError("train needs a recipe, such as digits: torchcaps list shows all")
    config, out, log = _parsed(name, recipe(name or "digits"), arguments[1:] if name else arguments)
    from torchcaps.training.dice import dice_lines_of
    from torchcaps.training.errors_in_words import further_errors, if_seen
    from torchcaps.training.more_epochs import epochs_before, going_on_in_words
    from torchcaps.training.per_class import error_words, lines_of, split_in_words
    from torchcaps.training.processes import world_here
    from torchcaps.training.run import Run
    from torchcaps.training.train import default_folder, train

    if out == "":  # of an empty shell variable
        raise ValueError("out must name a folder, got an empty text")
    out = out or default_folder(config)
    before = epochs_before(Run(out), config)
    finished = Run(out).result.is_file() and before is None
    first = world_here().first
    if before is not None and first:
        print(going_on_in_words(Run(out), config, before), flush=True)
    result = train(config, out, progress="bar" if sys.stderr.isatty() else "lines", more_epochs=True, logger=log)
    if not first:  # of several processes one says it
        return
    if finished:
        print(f"{out} holds the finished run; nothing was trained")
    where = f" on {config.data.root}" if config.data.name in FOLDERS else ""
    print(f"{result['recipe']}{where}, seed {result['seed']}: ", end="")
    name, form = next((name, form) for name, form in _MEASURES.items() if f"val_{name}" in result)
    called = {"dice": "Dice"}.get(name, name)
    said = {
        f"test_{name}": f"test {called}",
        **further_errors(result),
        f"val_{name}": f"validation {called}{if_seen(result)}",
    }
    found = (
        f"{words} {result[key]:{form}}{error_words(result, key.removesuffix(f'_{name}'))}, "
        for key, words in said.items()
        if key in result
    )
    print(f"{''.join(found)}{result['n_parameters']:,} parameters, ", end="")
    epochs = "1 epoch" if result["epochs"] == 1 else f"{result['epochs']} epochs"
    kept = f", kept epoch {result['kept_epoch']}, the best on validation" if config.keep_best else ""
    print(f"{epochs}{kept}, in {result['seconds']:.0f} s; see {out}")
    if split_in_words(result):
        print(split_in_words(result))
    split = "val" if config.trial else "test"
    lines = [f"{split}:", *dice_lines_of(result, split)] if config.data.masks else lines_of(result, split)
    print("".join(f"{line}\n" for line in lines), end="")
    if not config.trial:
        print(f"next: torchcaps report {out}")


def parse_experiment(name: str | None, defaults: Experiment, arguments: list[str]) -> tuple[Experiment, str | None]:
    """Return what to train, and the run's folder."""
    return _parsed(name, defaults, arguments)[:2]


def _parsed(
    name: str | None, defaults: Experiment, arguments: list[str]
) -> tuple[Experiment, str | None, Literal["tensorboard"] | None]:
    """Return what to train, the run's folder, and where else its metrics go."""
    from jsonargparse import ArgumentParser

    class OneLine(ArgumentParser):  # thirty lines of usage would hide what is wrong
        def error(self, message: str, ex: Exception | None = None) -> NoReturn:
            del ex
            raise ValueError(f"{_in_words(message)}; torchcaps train {name or 'RECIPE'} --help lists what can be set")

        def format_help(self, *options: Any, **named: Any) -> str:
            return re.sub(
                r"(?::\w+:)?`+~?([^`]+)`+", r"\1", super().format_help(*options, **named)
            )  # docstrings' marks

    from torchcaps.training import Experiment
    from torchcaps.training.config import smoke
    from torchcaps.training.run import placed

    parser = OneLine(
        allow_abbrev=False,  # as in parser.py
        prog=f"torchcaps train {name or 'RECIPE'}",
        description="Train a recipe. Every field of it can be set; a run that was broken off is resumed. "
        "Lists are written '[32, 32]', and nothing at all is null; torchcaps list NAME shows a model's options. "
        + f"Defaults are those of {name}." * bool(name)
        + "The defaults here are those of digits; torchcaps train RECIPE --help shows a recipe's." * (not name),
        epilog=f"example: torchcaps train {name or 'digits'} --seed 1 --epochs 5 --out runs/short",
    )
    parser.add_argument(
        "--config",
        action="config",
        help="a YAML file with any of these fields (its options replace all of the recipe's), or a result.json",
    )
    parser.add_argument(
        "--out",
        type=str,
        default=None,
        help="the run's folder (default: runs/<recipe>, with -seed<n>, -trial or -smoke behind)",
    )
    parser.add_argument(
        "--smoke",
        action="store_true",
        help="two steps on eight images, whatever else is set, to see that it runs; downloads the data all the same",
    )
    parser.add_argument(
        "--import", metavar="FILE", help="a Python file that enters networks, data and others of your own"
    )
    parser.add_argument(
        "--log",
        type=Literal["tensorboard"] | None,
        default=None,
        help="also write each epoch's metrics for TensorBoard, into the run's folder (pip install tensorboard)",
    )
    parser.add_argument(
        "--skip-bad",
        dest="skip_bad",
        action="store_true",
        help="pass over files of a folder that cannot be read, and list them; the same as --data.options.skip_bad true",
    )
    parser.add_class_arguments(Experiment)
    fields, settled = defaults.to_dict(), _settled(arguments)
    parser.set_defaults(fields)
    first = parser.parse_args(settled)
    parser.set_defaults(_suited(defaults, first.data.name, first.model.name, first.data.image_size).to_dict())
    parsed = parser.instantiate(parser.parse_args(settled))
    if parsed.recipe != defaults.recipe:
        raise ValueError(f"the configuration must be of the recipe {defaults.recipe}, got one of {parsed.recipe}")
    config = Experiment(**{key: value for key, value in vars(parsed).items() if key in fields})
    if parsed.skip_bad:
        config = replace(config, data=replace(config.data, options={**config.data.options, "skip_bad": True}))
    config = placed(config, config.data.root, config.threads, config.device)
    return smoke(config) if parsed.smoke else config, parsed.out, parsed.log


def _suited(defaults: Experiment, data: str, model: str, image_size: list[int] | None) -> Experiment:
    """Return the recipe's settings, suited to other data or another network; options that are given besides win."""
    from torchcaps.training.own_images import for_model, for_own_images

    config = for_model(defaults, model) if model != defaults.model.name else defaults
    if data not in FOLDERS or defaults.data.name == data or not (config.data.task.classifies or config.data.masks):
        return config
    given = replace(config, data=replace(config.data, name=data, image_size=image_size))
    suited = for_own_images(given)
    # Options are of the recipe's data set.
    return replace(suited, data=replace(config.data, fill=suited.data.fill, options={}))


def _settled(arguments: list[str]) -> list[str]:
    """Move ``--config`` to the front, so that the other options count wherever it stands.

    A result's file is replaced by its settings: ``--config runs/mnist/result.json`` trains it again.
    """
    files, others, rest = list[str](), list[str](), iter(arguments)
    for argument in rest:
        option, equals, file = argument.partition("=")
        if option != "--config":
            others.append(argument)
        elif equals or (file := next(rest, "")):
            files.append(f"--config={_settings(file)}")
        else:  # for the parser to refuse
            others.append(argument)
    return files + _with_values(others)


def _with_values(arguments: list[str]) -> list[str]:
    """``--keep-best`` as the field that it sets: with a value, of which the parser asks for one."""
    found = list[str]()
    for k, argument in enumerate(arguments):
        option, equals, value = argument.partition("=")
        if option not in ("--keep-best", "--keep_best"):
            found.append(argument)
        elif equals:
            found.append(f"--keep_best={value}")
        else:
            found.append("--keep_best" if arguments[k + 1 : k + 2] in (["true"], ["false"]) else "--keep_best=true")
    return found


def _settings(file: str) -> str:
    """Return a result's settings as text; any other file as it is, for the parser to read or to refuse."""
    from torchcaps.training.run import experiment_from

    try:
        content = json.loads(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return file
    if not isinstance(content, dict) or "config" not in content:
        return file
    try:
        return json.dumps(experiment_from(content["config"]).to_dict())
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error


def _in_words(message: str) -> str:
    """Say the field, what it wants and what it got, of what jsonargparse says of its subtypes."""
    from torchcaps.training import Experiment

    message = " ".join(message.split())
    misfit = re.fullmatch(r'Parser key "([\w.]+)": .*[Ee]xpected a .* value: (.*)', message)
    if misfit is None:
        return message
    field, got = misfit.groups()
    kind = Experiment
    for part in field.split("."):
        kind = get_type_hints(kind)[part]
    words = _kind_in_words(kind)
    quoted = ", such as '[2, 3]'" if "[" in words else ""  # which a shell would take apart, or take for file names
    return f"{field} wants {words}{quoted}, got {got}"


def _kind_in_words(kind: object) -> str:
    """Describe an annotation as one would write a value that fits."""
    kinds = get_args(kind)
    if get_origin(kind) is Literal:
        return " or ".join(map(str, kinds))
    if get_origin(kind) is tuple:
        return f"[{', '.join(map(_kind_in_words, kinds))}]"
    if type(None) in kinds:
        return " or ".join("null" if each is type(None) else _kind_in_words(each) for each in kinds)
    words = {"int": "an integer", "float": "a number", "bool": "true or false", "str": "a text", "dict": "a mapping"}
    return words.get(getattr(kind, "__name__", ""), str(kind))
