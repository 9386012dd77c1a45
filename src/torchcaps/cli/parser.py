"""The commands and their options."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from torchcaps.cli import commands
from torchcaps.cli.evaluate_command import evaluate_command
from torchcaps.cli.train_command import train_command

IMPORT = "a Python file that enters networks, data sets, routings or recipes of your own; with any command"
ROOT = "folder of the data files, or of the data sets' folders"


#: Adds a command by its name, its function and an example of its arguments, and returns its parser.
Adder = Callable[[str, Callable[[Any], int | None], str], argparse.ArgumentParser]


def make_parser(prog: str = "torchcaps", further: Callable[[Adder], None] | None = None) -> argparse.ArgumentParser:
    """Make the parser of all commands. ``train`` lists its own options.

    Args:
        prog: What the program is called.
        further: Adds commands of your own.
    """
    from torchcaps import __version__

    # No abbreviations: a misspelt option may be another one's beginning.
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Capsule networks for PyTorch.",
        epilog=f"example: {prog} train digits",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"torchcaps {__version__}")
    parser.add_argument("--import", metavar="FILE", help=IMPORT)
    known = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, function: Callable[[Any], int | None], example: str) -> argparse.ArgumentParser:
        text = function.__doc__ or ""
        made = known.add_parser(
            name,
            help=text[:1].lower() + text[1:-1],
            description=text,
            epilog=f"example: {prog} {name} {example}".rstrip(),
            formatter_class=argparse.RawDescriptionHelpFormatter,  # which breaks no example
            allow_abbrev=False,
        )
        made.set_defaults(run_command=function)
        return made

    command("train", train_command, "digits")
    made = command("list", commands.list_command, "capsnet_small")
    made.add_argument("name", metavar="NAME", nargs="?", help="a model or data set, to show its options")
    run_help = "the folder of a run, such as runs/digits"
    made = command("evaluate", evaluate_command, "runs/digits --split val")
    made.add_argument("run", metavar="RUN", help=run_help)
    made.add_argument("--split", help="val, test (the default), or a further one, such as novel of small NORB")
    made.add_argument("--folder", type=place, help="other images instead: a folder with one sub-folder a class")
    made.add_argument("--invert", action="store_true", help="exchange light and dark in the images of --folder")
    made.add_argument("--confusion", type=place, metavar="FILE", help="write the confusion matrix as .csv or .png")
    made.add_argument("--data.root", dest="root", type=place, help=ROOT)
    made.add_argument(
        "--data.test_crops", dest="test_crops", type=int, help="windows to average over, 1 or 13, of a run on crops"
    )
    made = command("tune", commands.tune_command, "digits --data.name folder --data.root photos")
    made.usage = "%(prog)s RECIPE [options] [any field of the recipe]"
    made.epilog = f"Any field that {prog} train RECIPE --help lists can be set.\n{made.epilog}"
    made.add_argument("recipe", metavar="RECIPE", help="a recipe of a classifier, or of images with masks")
    made.add_argument("--epochs", type=int, help="of each of the six trials (default: a third of the recipe's)")
    made.add_argument("--keep", type=place, metavar="FOLDER", help="also put the outcome there, such as tuning")
    made.add_argument(
        "--grid",
        metavar="FIELD=VALUE,VALUE",
        action="append",
        default=[],
        help="try these values of any field instead, such as optim.lr=1e-3,3e-3; of several fields every combination",
    )
    made.add_argument("--seeds", type=int, default=1, help="runs of each combination of --grid (default: 1)")
    add_place_of_runs(made)
    made = command("report", commands.report_command, "runs/digits --beside runs/digits-cnn")
    made.add_argument("run", metavar="RUN", help=run_help)
    made.add_argument("--data.root", dest="root", type=place, help=ROOT)
    made.add_argument("--beside", metavar="RUN", nargs="+", default=[], help="other runs to compare it with")
    made = command("predict", commands.predict_command, "runs/digits photos --csv answers.csv")
    made.add_argument("run", metavar="RUN", help=f"{run_help}; or pretrained:NAME, which torchcaps list names")
    made.add_argument("images", metavar="IMAGE", nargs="+", help="image files of any size, and folders of such")
    made.add_argument(
        "--csv",
        type=place,
        metavar="FILE",
        help="write a row for each image to this .csv file, which must not be there",
    )
    made.add_argument("--json", type=place, metavar="FILE", help="write the same to this .json file")
    made.add_argument(
        "--masks",
        type=place,
        metavar="FOLDER",
        help="of a run that segments: write NAME.png there for each image, of a volume NAME.nii.gz: numbers of classes",
    )
    made.add_argument(
        "--invert", action="store_true", help="for dark ink on light ground, where the model learned light on dark"
    )
    made.add_argument("--top", type=int, default=3, help="how many classes are named for each image (default: 3)")
    made = command("export", commands.export_command, "runs/digits --format onnx")
    made.add_argument("run", metavar="RUN", help=f"{run_help}; or pretrained:NAME, which torchcaps list names")
    made.add_argument("--format", required=True, choices=("onnx", "pt2", "openvino", "safetensors"))
    made.add_argument(
        "--int8", action="store_true", help="of ONNX: 8-bit integers; says the test error, or Dice, before and after"
    )
    made.add_argument(
        "--out", type=place, metavar="FILE", help="default: model.onnx and the like in the run's folder; NAME.onnx here"
    )
    made.add_argument("--force", action="store_true", help="replace a file that is there")
    made.add_argument(
        "--tolerance", type=float, default=1e-5, help="how far its scores may be from the network's (default: 1e-5)"
    )
    made.add_argument("--data.root", dest="root", type=place, help=ROOT)
    made = command("playground", commands.playground_command, "runs/digits --beside runs/digits-cnn")
    made.add_argument(
        "runs",
        metavar="RUN",
        nargs="*",
        help=f"{run_help}, on images of one channel, or one that segments (default: networks that come trained)",
    )
    made.add_argument(
        "--beside", metavar="RUN", help="another run, such as a CNN's or a U-Net's, whose answers stand beside"
    )
    made.add_argument(
        "--parts",
        metavar="RUN",
        help="a run of template_autoencoder, which takes drawings apart (default: one that comes trained)",
    )
    made.add_argument(
        "--toys",
        metavar="RUN",
        help="a run of small NORB, such as pretrained:smallnorb-small, whose toys are shown from all sides",
    )
    made.add_argument("--host", type=place, default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    made.add_argument("--port", type=int, default=0, help="port to listen on (default: a free one)")
    made.add_argument("--no-browser", action="store_true", help="open no browser")
    made.add_argument(
        "--static",
        type=place,
        metavar="DIR",
        help="serve nothing: write the page for a static host, with the networks, which run in the browser",
    )
    made.add_argument(
        "--onnxruntime-web",
        type=place,
        metavar="FOLDER",
        help="with --static: folder of that npm package (default: download it into the cache)",
    )
    made.add_argument(
        "--no-test-images",
        action="store_true",
        help="with --static: lay no test images beside the page, such as a patient's, where all can see them",
    )
    made = command("doctor", commands.doctor_command, "--json doctor.json")
    made.add_argument("--json", type=place, metavar="FILE", help="also write all of it there, to attach to a report")
    if further is not None:
        further(command)
    return parser


def place(text: str) -> str:
    """Return a folder or file; an empty text, as of an unset shell variable, would be the working folder."""
    if not text:
        raise argparse.ArgumentTypeError("wants a name, got an empty text")
    return text


def add_place_of_runs(made: argparse.ArgumentParser) -> None:
    """Options of commands that train several runs: where, on what, and whether as a smoke test."""
    made.add_argument("--data.root", dest="root", type=place, help=ROOT)
    made.add_argument(
        "--runs", type=place, metavar="FOLDER", default="runs", help="where runs are kept (default: runs)"
    )
    made.add_argument(
        "--threads", type=int, default=0, help="threads on a CPU (default: all cores, or OMP_NUM_THREADS)"
    )
    made.add_argument("--device", choices=("auto", "cpu", "cuda", "mps"), default="auto")
    made.add_argument(
        "--smoke", action="store_true", help="two steps of every run, whatever else is set, to see that it runs"
    )
