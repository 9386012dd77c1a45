"""The command line: parses, calls one function, prints."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from torchcaps.memory import keep_memory

if TYPE_CHECKING:
    from torchcaps.experiments import Experiment

# torch and what stands on it are imported where they are used: --help must answer at once.


_ROOT = "folder of the data files, or of the data sets' folders"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; bad input prints what is wrong and gives exit status 2."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    keep_memory()
    for stream in (sys.stdout, sys.stderr):  # of another encoding than UTF-8, to which not all can be written
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        if arguments[:1] == ["train"]:
            _train(arguments[1:])
            return 0
        parsed = _parser().parse_args(arguments)
        parsed.run_command(parsed)
        return 0
    except (ValueError, OSError) as error:
        print(f"torchcaps: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        print(f"torchcaps: {error}; the command line needs the extra 'train': see Install in README", file=sys.stderr)
        return 2
    except (MemoryError, RuntimeError) as error:  # PyTorch's of a CPU has no type of its own
        if not isinstance(error, MemoryError) and "allocate" not in str(error):
            raise
        print(f"torchcaps: memory does not suffice ({error}); smaller images or batches need less", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        resumed = bool({"train", "reproduce", "tune", "few-labels"} & set(arguments[:1]))
        more = "; the same command goes on from what was last saved, if anything was" * resumed
        print(f"torchcaps: stopped{more}", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    from torchcaps import __version__

    parser = argparse.ArgumentParser(prog="torchcaps", description="Capsule networks for PyTorch.")
    parser.add_argument("--version", action="version", version=f"torchcaps {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, function: Callable[[Any], None], text: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        made.set_defaults(run_command=function)
        return made

    command("train", lambda _: None, "train a recipe, evaluate it and record the result")
    command("list", _list, "list the tables, recipes, models and data sets")
    run_help = "the folder of a run, such as runs/digits"
    made = command("evaluate", _evaluate, "measure a trained model on one split of its data")
    made.add_argument("run", metavar="RUN", help=run_help)
    made.add_argument("--split", default="test", help="val, test (the default), or a further one of these data")
    made.add_argument("--data.root", dest="root", help=_ROOT)
    made.add_argument("--data.test_crops", dest="test_crops", type=int, help="windows to average over: 1 or 13")
    made = command("reproduce", _reproduce, "train the rows of a paper's table and write it with our numbers beside")
    made.add_argument("table", metavar="TABLE", help="one of docs/results.md; a wrong name lists them")
    made.add_argument("--row", dest="rows", metavar="RECIPE", nargs="+", default=[], help="rows (default: all)")
    made.add_argument("--seeds", type=int, default=1, help="runs of each row (default: 1)")
    made.add_argument("--epochs", type=int, help="of each run, instead of the recipe's")
    made.add_argument("--budget", type=float, metavar="MINUTES", help="when to stop; the same command goes on")
    made.add_argument("--keep", metavar="FOLDER", help="also put finished results into this folder")
    _add_place_of_runs(made)
    made = command("tune", _tune, "choose a recipe's learning rate and regulariser by its validation error")
    made.add_argument("recipe", metavar="RECIPE", help="a classifier's recipe")
    made.add_argument("--epochs", type=int, help="of each trial (default: a third of the recipe's)")
    made.add_argument("--keep", metavar="FOLDER", help="also put the outcome there, such as results/tuning")
    _add_place_of_runs(made)
    made = command("results", _results, "write docs/results.md from the results that are kept")
    made.add_argument("--from", dest="results", metavar="FOLDER", default="results", help="default: results")
    made.add_argument("--to", metavar="FILE", default="docs/results.md", help="default: docs/results.md")
    made = command("report", _report, "write report.html: what a trained model has learned")
    made.add_argument("run", metavar="RUN", help=run_help)
    made.add_argument("--data.root", dest="root", help=_ROOT)
    made.add_argument("--beside", metavar="RUN", nargs="+", default=[], help="other runs to compare it with")
    made = command("few-labels", _few_labels, "classify from a few labels, by what an auto-encoder learned without any")
    made.add_argument("run", metavar="RUN", help="the folder of an auto-encoder's run, such as runs/mnist-templates")
    made.add_argument("--beside", metavar="RUN", nargs="+", default=[], help="other auto-encoders of the same data")
    made.add_argument("--labels", metavar="N", type=int, nargs="+", default=[10, 25, 50, 100, 1000])
    made.add_argument("--draws", type=int, default=10, help="draws of the labelled examples (default: 10)")
    made.add_argument("--unlabelled", type=int, help="training images to take without labels (default: all)")
    made.add_argument("--out", metavar="FOLDER", help="where to write (default: the run's folder)")
    made.add_argument("--steps", type=int, default=100, help="of the supervised networks, at least; 0 leaves them out")
    made.add_argument("--data.root", dest="root", help=_ROOT)
    made = command("measure", _measure, "ask more of a trained model than its error, as docs/protocols.md says")
    made.add_argument("name", metavar="NAME", help="such as robustness or equivariance; a wrong name lists them")
    made.add_argument("run", metavar="RUN", help=run_help)
    made.add_argument("--beside", metavar="RUN", help="another run on the same data to compare it with, such as a CNN")
    made.add_argument("--n", type=int, help="test images (default: the measure's own number)")
    made.add_argument("--keep", metavar="FOLDER", help="also put JSON and picture there, such as results/measures")
    made.add_argument("--data.root", dest="root", help=_ROOT)
    made = command("predict", _predict, "say what is in images of your own")
    made.add_argument("run", metavar="RUN", help=run_help)
    made.add_argument("images", metavar="IMAGE", nargs="+", help="image files of any size")
    made.add_argument(
        "--invert", action="store_true", help="for dark ink on light ground, where the model learned light on dark"
    )
    made = command("bench", _bench, "measure speed and memory beside a floor and what others write")
    made.add_argument("names", metavar="NAME", nargs="*", help="suites (default: all); a wrong name lists them")
    made.add_argument("--threads", type=int, default=1, help="threads on a CPU (default: 1)")
    made.add_argument("--repeats", type=int, default=7, help="repetitions of every measurement (default: 7)")
    made.add_argument(
        "--out", metavar="FOLDER", default="runs/bench", help="a new folder to write to (default: runs/bench)"
    )
    made.add_argument("--device", choices=("cpu", "cuda", "auto"), default="cpu", help="default: cpu")
    made.add_argument("--compile", action="store_true", help="also torch.compile of the reference; takes minutes")
    made.add_argument("--smoke", action="store_true", help="tiny sizes, to see that it runs")
    return parser


def _add_place_of_runs(made: argparse.ArgumentParser) -> None:
    """Options of commands that train several runs: where, on what, and whether in earnest."""
    made.add_argument("--data.root", dest="root", help=_ROOT)
    made.add_argument("--runs", metavar="FOLDER", default="runs", help="where runs are kept (default: runs)")
    made.add_argument("--threads", type=int, default=0, help="threads on a CPU (default: all cores)")
    made.add_argument("--device", choices=("auto", "cpu", "cuda", "mps"), default="auto")
    made.add_argument("--smoke", action="store_true", help="two steps of every run, to see that it runs")


def _place_of_runs(parsed: argparse.Namespace) -> dict[str, Any]:
    """The same as arguments of the function that trains them."""
    found = {name: getattr(parsed, name) for name in ("root", "runs", "threads", "device")}
    return found | {"quick": parsed.smoke, "progress": "bar" if sys.stderr.isatty() else "lines"}


def _train(arguments: list[str]) -> None:
    from torchcaps.experiments.recipes import recipe

    name = arguments[0] if arguments and not arguments[0].startswith("-") else None
    if name is None and not {"-h", "--help"} & set(arguments):
        raise ValueError("train needs a recipe, such as digits: torchcaps list shows all")
    config, out, keep_in = _parse_experiment(name, recipe(name or "digits"), arguments[1:] if name else arguments)
    from pathlib import Path

    from torchcaps.experiments.errors_in_words import further_errors, if_seen
    from torchcaps.experiments.run import Run
    from torchcaps.experiments.tables.kept import keep, require_free
    from torchcaps.experiments.train import default_folder, train

    if out == "":  # of an empty shell variable
        raise ValueError("out must name a folder, got an empty text")
    out = out or default_folder(config)
    finished = Run(out).result.is_file()
    if keep_in is not None and not finished:
        require_free(config, Path(keep_in).expanduser())
    result = train(config, out, progress="bar" if sys.stderr.isatty() else "lines")
    if finished:
        print(f"{out} holds the finished run; nothing was trained")
    print(f"{result['recipe']}, seed {result['seed']}: ", end="")
    name, form = ("error", ".2%") if "val_error" in result else ("loss", ".5f")
    said = {
        f"test_{name}": f"test {name}",
        **further_errors(result),
        f"val_{name}": f"validation {name}{if_seen(result)}",
    }
    found = (f"{words} {result[key]:{form}}, " for key, words in said.items() if key in result)
    print(f"{''.join(found)}{result['n_parameters']:,} parameters, ", end="")
    print(f"{result['epochs']} epochs in {result['seconds']:.0f} s; see {out}")
    if keep_in is not None:
        print(f"kept as {keep(result, Path(keep_in).expanduser())}")
    if not config.trial:
        print(f"next: torchcaps report {out}")


def _parse_experiment(
    name: str | None, defaults: Experiment, arguments: list[str]
) -> tuple[Experiment, str | None, str | None]:
    """What to train, the run's folder, and where to keep the result besides."""
    from jsonargparse import ArgumentParser

    class OneLine(ArgumentParser):  # thirty lines of usage would hide what is wrong
        def error(self, message: str, ex: Exception | None = None) -> NoReturn:
            del ex
            raise ValueError(
                f"{' '.join(message.split())}; torchcaps train {name or 'RECIPE'} --help lists what can be set"
            )

    from torchcaps.experiments import Experiment
    from torchcaps.experiments.run import placed
    from torchcaps.experiments.smoke import smoke

    parser = OneLine(
        prog=f"torchcaps train {name or 'RECIPE'}",
        description="Train a recipe. Every field of it can be set; a run that was broken off is resumed.",
    )
    parser.add_argument("--config", action="config", help="a YAML file with any of these fields")
    parser.add_argument(
        "--out", type=str, default=None, help="the run's folder (default: runs/<recipe>, -seed<n> or -trial behind)"
    )
    parser.add_argument("--keep", type=str, default=None, help="also put the result into this folder, such as results")
    parser.add_argument("--smoke", action="store_true", help="two steps on eight images, to see that it runs")
    parser.add_class_arguments(Experiment)
    fields = defaults.to_dict()
    parser.set_defaults(fields)
    parsed = parser.instantiate(parser.parse_args(arguments))
    if parsed.recipe != defaults.recipe:
        raise ValueError(f"the configuration must be of the recipe {defaults.recipe}, got one of {parsed.recipe}")
    config = Experiment(**{key: value for key, value in vars(parsed).items() if key in fields})
    config = placed(config, config.data.root, config.threads, config.device)
    return smoke(config) if parsed.smoke else config, parsed.out, parsed.keep


def _list(_: argparse.Namespace) -> None:
    from torchcaps.data import DATASETS
    from torchcaps.experiments.recipes import RECIPES
    from torchcaps.experiments.tables import TABLES
    from torchcaps.models import MODELS

    print("Tables:")
    for name, table in TABLES.items():
        print(f"  {name:32} {table.title}. {table.source}.")
    for title, found in (("Recipes", RECIPES), ("Models", MODELS), ("Data sets", DATASETS)):
        print(f"{title}:")
        for name, function in found.items():
            print(f"  {name:32} {(function.__doc__ or '').strip().splitlines()[0].replace('``', '')}")


def _evaluate(parsed: argparse.Namespace) -> None:
    from dataclasses import replace

    from torchcaps.checks import check_choice
    from torchcaps.experiments.batches import split
    from torchcaps.experiments.devices import choose_device
    from torchcaps.experiments.evaluate import evaluate
    from torchcaps.experiments.run import Run, with_data_in
    from torchcaps.experiments.saved import data_for, load_model

    run = Run(parsed.run)
    config, trained = run.experiment(), load_model(run)
    if config.trial and parsed.split != "val":
        raise ValueError(f"split must be val for a trial, which has seen no test image; got {parsed.split}")
    config = with_data_in(config, parsed.root)
    if parsed.test_crops is not None:
        config = replace(config, data=replace(config.data, test_crops=parsed.test_crops))
    device = choose_device("auto")  # not necessarily where it was trained
    if not config.trial:  # before its data are loaded, or downloaded
        losses = [key for key in run.finished() if key.endswith("_loss")]
        check_choice("split", parsed.split, [key.removesuffix("_loss") for key in losses])
    dataset = data_for(config, trained)
    batches = split(config, dataset, parsed.split, device)
    scores = evaluate(config, trained.model.to(device), batches, progress=sys.stderr.isatty())
    error = f"error {scores['error']:.2%}, " if "error" in scores else ""
    print(f"{run.path}: {parsed.split} {error}loss {scores['loss']:.5f}, {batches.n:,} examples")


def _reproduce(parsed: argparse.Namespace) -> None:
    from torchcaps.experiments.tables.reproduce import reproduce

    reproduce(
        parsed.table,
        parsed.rows,
        seeds=parsed.seeds,
        epochs=parsed.epochs,
        budget=parsed.budget,
        keep_in=parsed.keep,
        **_place_of_runs(parsed),
    )


def _tune(parsed: argparse.Namespace) -> None:
    from torchcaps.experiments.tuning import tune

    tune(parsed.recipe, epochs=parsed.epochs, keep_in=parsed.keep, **_place_of_runs(parsed))


def _results(parsed: argparse.Namespace) -> None:
    from pathlib import Path

    from torchcaps.experiments.tables.document import write_document
    from torchcaps.experiments.tables.kept import stale

    write_document(parsed.results, parsed.to)
    for path in stale(Path(parsed.results)):
        print(f"{path} is left out: no result, or of a recipe that is gone, or another by now")
    print(f"wrote {parsed.to}")


def _report(parsed: argparse.Namespace) -> None:
    from torchcaps.experiments.report import report

    print(f"wrote {report(parsed.run, beside=parsed.beside, root=parsed.root)}")


def _few_labels(parsed: argparse.Namespace) -> None:
    from torchcaps.experiments.few_labels.compare import Settings
    from torchcaps.experiments.few_labels.write import few_labels

    settings = Settings(tuple(parsed.labels), parsed.draws, parsed.unlabelled, parsed.steps)
    path, _ = few_labels(parsed.run, parsed.beside, settings, parsed.root, parsed.out)
    print(f"wrote {path}")


def _measure(parsed: argparse.Namespace) -> None:
    from torchcaps.experiments.measures.record import record
    from torchcaps.experiments.measures.write import as_markdown
    from torchcaps.experiments.run import read_json

    path = record(parsed.name, parsed.run, beside=parsed.beside, n=parsed.n, root=parsed.root, keep_in=parsed.keep)
    print("\n".join(as_markdown(read_json(path))))
    print(f"wrote {path}")


def _predict(parsed: argparse.Namespace) -> None:
    from torchcaps.experiments.predict import predictions

    broken = 0
    for path, found in predictions(parsed.run, parsed.images, invert=parsed.invert):
        if isinstance(found, ValueError):
            broken += 1
            print(f"torchcaps: {found}", file=sys.stderr)
        else:
            print(f"{path}: " + ", ".join(f"{name} ({score:.2f})" for name, score in found))
    if broken:
        raise ValueError(f"{broken} of {len(parsed.images)} files could not be read")


def _bench(parsed: argparse.Namespace) -> None:
    from torchcaps.benchmarks.bench import bench

    bench(
        parsed.names,
        parsed.out,
        device=parsed.device,
        threads=parsed.threads,
        repeats=parsed.repeats,
        compile=parsed.compile,
        smoke=parsed.smoke,
    )
    print(f"wrote {parsed.out}")


if __name__ == "__main__":
    sys.exit(main())
