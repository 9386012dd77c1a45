"""What each command does with its options; the first lines are its help.

torch and what stands on it are imported where they are used: ``--help`` must answer at once.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchcaps.training import Experiment

#: Of the names in lists: as long as the longest recipe's.
_WIDTH = 36


def list_command(parsed: argparse.Namespace) -> None:
    """List the recipes, the models, their trained weights and the data sets, or the options of one."""
    from torchcaps.data import DATASETS
    from torchcaps.models import MODELS, cards
    from torchcaps.training.recipes import RECIPES

    if parsed.name is not None:
        print_options(parsed.name)
        return
    print_list("Recipes:", RECIPES)
    print_list("Models:", MODELS)
    print("Trained weights:")
    for name, card in cards().items():
        found = ", ".join(f"{what.replace('_', ' ')} {value:.4g}" for what, value in card.result.items())
        print(f"  pretrained:{name:{_WIDTH - 11}} {card.model} of {card.data.partition(':')[0]}, {found}")
    print_list("Data sets:", DATASETS)


def print_options(name: str) -> None:
    """Print what the docstring of a model or data set says, and its options with their defaults."""
    import inspect

    from torchcaps.checks import check_choice
    from torchcaps.data import DATASETS
    from torchcaps.models import MODELS, options_of

    check_choice("name", name, {**DATASETS, **MODELS})
    function: Callable[..., Any] = {**DATASETS, **MODELS}[name]
    own = {each.name: each.default for each in inspect.signature(function).parameters.values()}
    own = own if name in DATASETS else options_of(MODELS[name])
    print(inspect.cleandoc(function.__doc__ or "").replace("``", ""))
    print("\nOptions:")
    for option, default in own.items():
        print(f"  {option}{'' if default is inspect.Parameter.empty else f' = {default!r}'}")
    if name in MODELS:
        print("Defaults are those of the class; what the text above says takes their place.")


def print_list(title: str, found: Mapping[str, Callable[..., Any]]) -> None:
    """Print each with the first line of its docstring."""
    print(title)
    for name, function in found.items():
        text = next(iter((function.__doc__ or "").strip().splitlines()), "").removeprefix("Build ").replace("``", "")
        print(f"  {name:{_WIDTH}} {text[:1].upper()}{text[1:]}".rstrip())


def tune_command(parsed: argparse.Namespace) -> None:
    """Choose a recipe's learning rate and regulariser, or any other fields, by its validation error."""
    from torchcaps.cli.train_command import parse_experiment
    from torchcaps.training.recipes import recipe
    from torchcaps.training.tuning import regulariser, tune

    config, out = parse_experiment(parsed.recipe, recipe(parsed.recipe), parsed.fields)
    if out is not None:
        raise ValueError(f"out must be left alone in tuning, which puts its runs below --runs; got {out}")
    if parsed.grid:
        _sweep(parsed, config)
        return
    if parsed.seeds != 1:
        raise ValueError(f"--seeds must be left out without --grid, got {parsed.seeds}")
    set_by_trials = f"--{regulariser(config)[0]}"
    if any(argument.partition("=")[0] == set_by_trials for argument in parsed.fields):
        raise ValueError(f"{set_by_trials[2:]} must be left alone in tuning, which sets it itself")
    found = tune(parsed.recipe, config, epochs=parsed.epochs, keep_in=parsed.keep, **place_of_runs(parsed))
    if not parsed.smoke:
        _say_next(parsed, {name: repr(value) for name, value in found["best"].items()})


def _sweep(parsed: argparse.Namespace, config: Experiment) -> None:
    """Train every combination of a grid, and draw what it came to."""
    from dataclasses import replace

    from torchcaps.explain import draw_sweep
    from torchcaps.training.files import write_picture
    from torchcaps.training.sweep import best, in_words, read_grid, sweep

    if parsed.keep is not None:
        raise ValueError(f"--keep must be left out with --grid, got {parsed.keep}")
    grid = read_grid(parsed.grid)
    if parsed.epochs is not None:
        config = replace(config, epochs=parsed.epochs)
    folder, found = sweep(config, grid, seeds=parsed.seeds, **place_of_runs(parsed))
    chosen = best(found)
    drawn = {in_words(each.settings): each.known() for each in found if each.known()}
    write_picture(folder / "table.png", draw_sweep(drawn, config.data.task.error or ""))
    print(f"wrote {folder / 'table.md'}, .json and .png")
    if not parsed.smoke:
        epochs = {} if parsed.epochs is None else {"epochs": str(parsed.epochs)}
        _say_next(parsed, epochs | {name: _as_option(value) for name, value in chosen.settings.items()})


def _as_option(value: Any) -> str:
    import json

    return value if isinstance(value, str) else json.dumps(value)


def _say_next(parsed: argparse.Namespace, best: Mapping[str, str]) -> None:
    """Print the command that trains with the best settings."""
    place = [] if parsed.root is None else ["--data.root", parsed.root]
    chosen = [text for name, value in best.items() for text in (f"--{name}", value)]
    out = Path(parsed.runs) / f"{parsed.recipe}-tuned"
    given = _without(parsed.fields, best)
    print("next:", shlex.join(["torchcaps", "train", parsed.recipe, *given, *place, *chosen, "--out", str(out)]))


def _without(arguments: list[str], names: Mapping[str, object]) -> list[str]:
    """Arguments without those that set fields of these names."""
    options, found, skip = {f"--{name}" for name in names}, list[str](), False
    for argument in arguments:
        option, equals, _ = argument.partition("=")
        if not skip and option not in options:
            found.append(argument)
        skip = not skip and option in options and not equals
    return found


def report_command(parsed: argparse.Namespace) -> None:
    """Write report.html: what a trained model has learned."""
    from torchcaps.report import write_report

    print(f"wrote {write_report(parsed.run, beside=parsed.beside, root=parsed.root)}")


def predict_command(parsed: argparse.Namespace) -> None:
    """Say what is in images of your own."""
    from torchcaps.training.run import Run

    run = Run(parsed.run)
    if parsed.masks is not None or (run.config.is_file() and run.experiment().data.task.segments):
        _write_masks(parsed)
        return
    from torchcaps.training.predict import predictions
    from torchcaps.training.prediction_table import image_files, write_predictions

    to = [file for file in (parsed.csv, parsed.json) if file is not None]
    if to:
        wrong = write_predictions(parsed.run, parsed.images, to, invert=parsed.invert)
        print(f"wrote {' and '.join(to)}; scores of classes need not sum to 1")
        if wrong:
            number = "1 file" if len(wrong) == 1 else f"{len(wrong)} files"
            raise ValueError(f"{number} could not be read: {'; '.join(wrong.values())}")
        return
    broken, files = 0, image_files(parsed.images)
    for path, found in predictions(parsed.run, files, invert=parsed.invert, top=parsed.top):
        if isinstance(found, ValueError):
            broken += 1
            print(f"torchcaps: {found}", file=sys.stderr)
        else:
            print(f"{path}: " + ", ".join(f"{name} ({score:.2f})" for name, score in found))
    if broken:
        raise ValueError(f"{broken} of {len(files)} files could not be read")


def _write_masks(parsed: argparse.Namespace) -> None:
    """Write the masks of images into a folder, by a run that segments."""
    from torchcaps.training.predict_masks import write_masks

    for option, value in (("--csv", parsed.csv), ("--json", parsed.json)):
        if value is not None:
            raise ValueError(f"{option} must be left out for a run that segments, which writes masks; got {value}")
    if parsed.masks is None:
        raise ValueError(f"--masks must name a folder for the masks that {parsed.run} predicts, got none")
    written, wrong = write_masks(parsed.run, parsed.images, parsed.masks, invert=parsed.invert)
    print(f"wrote {len(written)} mask{'s' * (len(written) != 1)} into {parsed.masks}")
    if wrong:
        raise ValueError(f"{len(wrong)} file{'s' * (len(wrong) != 1)} could not be read: {'; '.join(wrong)}")


def export_command(parsed: argparse.Namespace) -> None:
    """Write a trained network as a file that runs without torchcaps."""
    from torchcaps.training.export import default_path, export

    if parsed.int8 and parsed.format != "onnx":
        raise ValueError(f"--int8 must come with --format onnx, got {parsed.format}")
    path = default_path(parsed.run, parsed.format)
    path = Path(parsed.out) if parsed.out is not None else path.with_stem(path.stem + "-int8" * parsed.int8)
    try:
        if parsed.int8:
            _export_int8(parsed, path)
            return
        options = {"root": parsed.root, "overwrite": parsed.force, "tolerance": parsed.tolerance}
        done = export(parsed.run, path, format=parsed.format, **options)
    except ValueError as error:
        said = str(error).replace("overwrite=True", "--force").replace("a tolerance", "--tolerance")
        raise ValueError(said) from error
    compared = f"its scores of {done.n_images} images of {done.images_of}"
    print(f"wrote {done.path}; {compared} differ by at most {done.error:.1e} from the network's")


def _export_int8(parsed: argparse.Namespace, path: Path) -> None:
    from torchcaps.training.int8 import export_int8

    done = export_int8(parsed.run, path, root=parsed.root, overwrite=parsed.force)
    error, error_before = done.test_error
    said = f"test error {error:.2%} instead of {error_before:.2%}"
    scores, scores_before = done.test_dice
    if scores:
        mean, mean_before = (sum(each.values()) / len(each) for each in done.test_dice)
        said = f"test Dice {mean:.4f} instead of {mean_before:.4f}, {error:.2%} of pixels wrong instead of "
        said += f"{error_before:.2%},"
    print(
        f"wrote {done.path}, {done.size[0]:,} bytes instead of {done.size[1]:,}; {said} on {done.n_images:,} images; "
        f"scores differ by at most {done.difference:.2f}"
    )
    for name, score in scores.items():
        print(f"{name}: Dice {score:.4f} instead of {scores_before[name]:.4f}")


def playground_command(parsed: argparse.Namespace) -> None:
    """Draw on a local page, and see which capsules agree, or which class is where."""
    from torchcaps.playground import serve_playground, write_playground
    from torchcaps.playground.load import OURS, PARTS

    runs = parsed.runs or OURS
    parts = parsed.parts or (None if parsed.runs else PARTS)
    shown = {"beside": parsed.beside, "parts": parts, "toys": parsed.toys}
    if parsed.static is not None:
        further = {"onnxruntime_web": parsed.onnxruntime_web, "test_images": not parsed.no_test_images}
        folder = write_playground(parsed.static, runs, **shown, **further)
        print(f"wrote {folder}: give it to any static host, or try it by python -m http.server -d {folder}")
        return
    for option, given in (("onnxruntime-web", parsed.onnxruntime_web), ("no-test-images", parsed.no_test_images)):
        if given:
            raise ValueError(f"--{option} is for --static, which is not given")
    serve_playground(
        runs,
        **shown,
        host=parsed.host,
        port=parsed.port,
        opens_browser=not parsed.no_browser,
    )


def doctor_command(parsed: argparse.Namespace) -> int:
    """Say what is installed, what runs where and whether it is right, and what to do."""
    from pathlib import Path

    from torchcaps.doctor import anonymous, as_text, check_place, examine, is_wrong, write

    if parsed.json is not None:
        check_place(Path(parsed.json))  # before it takes a while
    said = sys.stderr.isatty()
    report = anonymous(
        examine(
            lambda text: print(f"\r\033[Klooking at {text} …", end="", file=sys.stderr, flush=True) if said else None
        )
    )
    if said:
        print("\r\033[K", end="", file=sys.stderr)
    print(as_text(report))
    if parsed.json is not None:
        write(report, Path(parsed.json))
        print(f"wrote {parsed.json}")
    return int(is_wrong(report))


def place_of_runs(parsed: argparse.Namespace) -> dict[str, Any]:
    """Return the same as arguments of the function that trains them."""
    found = {name: getattr(parsed, name) for name in ("root", "runs", "threads", "device")}
    return found | {"quick": parsed.smoke, "progress": "bar" if sys.stderr.isatty() else "lines"}
