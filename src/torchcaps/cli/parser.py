"""The commands and their options."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from torchcaps.cli import commands
from torchcaps.cli.train_command import train_command

#: Those of study.measures, which imports torch (see commands.py).
MEASURES = ("robustness", "equivariance", "picasso", "routing", "matched", "pairs", "transfer", "averaged")
_ROOT = "folder of the data files, or of the data sets' folders"


def make_parser() -> argparse.ArgumentParser:
    """Of all commands but ``train``, which lists its own options."""
    from torchcaps import __version__

    # No abbreviations: a misspelt option may be another one's beginning.
    parser = argparse.ArgumentParser(prog="torchcaps", description="Capsule networks for PyTorch.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"torchcaps {__version__}")
    known = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, function: Callable[[Any], int | None]) -> argparse.ArgumentParser:
        text = function.__doc__ or ""
        made = known.add_parser(name, help=text[:1].lower() + text[1:-1], description=text, allow_abbrev=False)
        made.set_defaults(run_command=function)
        return made

    command("train", train_command)
    command("list", commands.list_command)
    run_help = "the folder of a run, such as runs/digits"
    made = command("evaluate", commands.evaluate_command)
    made.add_argument("run", metavar="RUN", help=run_help)
    made.add_argument("--split", default="test", help="val, test (the default), or a further one of these data")
    made.add_argument("--data.root", dest="root", type=_place, help=_ROOT)
    made.add_argument("--data.test_crops", dest="test_crops", type=int, help="windows to average over: 1 or 13")
    made = command("reproduce", commands.reproduce_command)
    made.add_argument("table", metavar="TABLE", help="a table of torchcaps list, such as mnist")
    made.add_argument("--row", dest="rows", metavar="RECIPE", nargs="+", default=[], help="rows (default: all)")
    made.add_argument("--seeds", type=int, default=1, help="runs of each row (default: 1)")
    made.add_argument("--epochs", type=int, help="of each run, instead of the recipe's")
    made.add_argument("--budget", type=float, metavar="MINUTES", help="when to stop; the same command goes on")
    made.add_argument("--keep", type=_place, metavar="FOLDER", help="also put finished results into this folder")
    _add_place_of_runs(made)
    made = command("tune", commands.tune_command)
    made.usage = "%(prog)s RECIPE [options] [any field of the recipe]"
    made.epilog = (
        "Any field of the recipe can be set, as torchcaps train RECIPE --help lists them: one's own images by "
        "--data.name folder --data.root photos."
    )
    made.add_argument("recipe", metavar="RECIPE", help="a classifier's recipe")
    made.add_argument("--epochs", type=int, help="of each trial (default: a third of the recipe's)")
    made.add_argument(
        "--keep", type=_place, metavar="FOLDER", help="also put the outcome there, such as study/results/tuning"
    )
    _add_place_of_runs(made)
    made = command("results", commands.results_command)
    made.add_argument(
        "--from", dest="results", type=_place, metavar="FOLDER", default="results", help="default: results"
    )
    made.add_argument("--to", type=_place, metavar="FILE", default="study/results.md", help="default: study/results.md")
    made = command("report", commands.report_command)
    made.add_argument("run", metavar="RUN", help=run_help)
    made.add_argument("--data.root", dest="root", type=_place, help=_ROOT)
    made.add_argument("--beside", metavar="RUN", nargs="+", default=[], help="other runs to compare it with")
    made = command("few-labels", commands.few_labels_command)
    made.add_argument("run", metavar="RUN", help="the folder of an auto-encoder's run, such as runs/mnist-templates")
    made.add_argument("--beside", metavar="RUN", nargs="+", default=[], help="other auto-encoders of the same data")
    made.add_argument(
        "--labels",
        metavar="N",
        type=int,
        nargs="+",
        default=[10, 25, 50, 100, 1000],
        help="how many labels, once each (default: 10 25 50 100 1000)",
    )
    made.add_argument("--draws", type=int, default=10, help="draws of the labelled examples (default: 10)")
    made.add_argument("--unlabelled", type=int, help="training images to take without labels (default: all)")
    made.add_argument("--out", type=_place, metavar="FOLDER", help="where to write (default: the run's folder)")
    made.add_argument(
        "--steps", type=int, default=100, help="of the supervised networks, at least; 0 leaves them out (default: 100)"
    )
    made.add_argument("--data.root", dest="root", type=_place, help=_ROOT)
    made = command("measure", commands.measure_command)
    made.add_argument("name", metavar="NAME", help=f"one of {', '.join(MEASURES)}")
    made.add_argument("run", metavar="RUN", help=run_help)
    made.add_argument("--beside", metavar="RUN", help="another run on the same data to compare it with, such as a CNN")
    made.add_argument("--n", type=int, help="test images (default: the measure's own number)")
    made.add_argument(
        "--keep", type=_place, metavar="FOLDER", help="also put JSON and picture there, such as study/results/measures"
    )
    made.add_argument("--data.root", dest="root", type=_place, help=_ROOT)
    made = command("predict", commands.predict_command)
    made.add_argument("run", metavar="RUN", help=run_help)
    made.add_argument("images", metavar="IMAGE", nargs="+", help="image files of any size")
    made.add_argument(
        "--invert", action="store_true", help="for dark ink on light ground, where the model learned light on dark"
    )
    made.add_argument("--top", type=int, default=3, help="how many classes are named for each image (default: 3)")
    made = command("doctor", commands.doctor_command)
    made.add_argument("--json", type=_place, metavar="FILE", help="also write all of it there, to attach to a report")
    return parser


def _place(text: str) -> str:
    """A folder or file; an empty text, as of a shell variable that is none, would be the folder one stands in."""
    if not text:
        raise argparse.ArgumentTypeError("wants a name, got an empty text")
    return text


def _add_place_of_runs(made: argparse.ArgumentParser) -> None:
    """Options of commands that train several runs: where, on what, and whether in earnest."""
    made.add_argument("--data.root", dest="root", type=_place, help=_ROOT)
    made.add_argument(
        "--runs", type=_place, metavar="FOLDER", default="runs", help="where runs are kept (default: runs)"
    )
    made.add_argument(
        "--threads", type=int, default=0, help="threads on a CPU (default: all cores, or OMP_NUM_THREADS)"
    )
    made.add_argument("--device", choices=("auto", "cpu", "cuda", "mps"), default="auto")
    made.add_argument(
        "--smoke", action="store_true", help="two steps of every run, whatever else is set, to see that it runs"
    )
