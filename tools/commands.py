"""Every command, in this process, with options of which some are spoiled."""

from __future__ import annotations

import contextlib
import io
import os
import random
import re
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import uvicorn
from PIL import Image

from tools.cases import fault_of
from tools.trained import write_run
from torchcaps.cli import main

#: What options are given instead of what they want.
VALUES = (
    *("", " ", "-1", "0", "1", "2", "nan", "inf", "1e999", "1.5", "99999999999999999999", "null", "true", "False"),
    *(
        "[]",
        "[1,",
        "{}",
        '{"a": 1}',
        "[1, 2]",
        "text",
        "a/b",
        "..",
        "/absent",
        ".",
        "absent",
        "é",
        "-",
        "--",
        "a\nb",
        "%s",
        "*",
    ),
    *("/dev/null", "file.csv", "photos", "run", "pretrained:absent", "pretrained:mnist-small", "a=1", "optim.lr=1,2"),
)
#: Options of experiments that are worth to be set in many ways.
FIELDS = (
    *("data.name", "data.root", "data.n_train", "data.n_eval", "data.image_size", "data.shift", "data.degrees"),
    *("data.pairs", "data.transformed", "data.multi_label", "data.balance", "data.fill", "data.crop", "data.contrast"),
    *("data.test_crops", "data.options", "data.options.eyes", "model.name", "model.options", "model.options.n_iters"),
    *("model.options.channels", "model.options.decoder", "model.options.routing", "optim.lr", "optim.name"),
    *("optim.schedule", "optim.warmup", "optim.clip", "loss", "margin", "reconstruction", "consistency", "epochs"),
    *("stop_at", "keep_best", "batch_size", "precision", "threads", "device", "seed", "trial", "out", "config"),
    *("logger", "nonsense", "data", "model", "optim", "data.n_shown", "data.gamma", "data.flip", "recipe"),
)


def run_command(command: Callable[[random.Random], list[str]], draw: random.Random, folder: Path) -> str:
    """Run one command in a folder that holds a run and photos; say how it ended."""
    folder /= "here"  # so that its parent holds nothing else
    _fill(folder)
    arguments = command(draw)
    for _ in range(draw.randint(0, 2)):
        arguments = _spoiled(arguments, draw)
    printed, said = io.StringIO(), io.StringIO()
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(said), _no_network():
            status = main(arguments)
    except SystemExit as stop:  # argparse's way to end, with its usage before what is wrong
        status = stop.code if isinstance(stop.code, int) else 1
    except Exception as error:
        return fault_of(error)
    finally:
        os.chdir("/")
    lines = [line for line in said.getvalue().splitlines() if line.strip()]
    if status == 0:
        return "result"
    if status != 2:
        return f"fault: exit status {status}"
    if "Traceback" in said.getvalue():
        return "fault: a traceback"
    if not re.search(r"^torchcaps( \w+)?: ", said.getvalue(), re.MULTILINE):
        return f"fault: says {' / '.join(lines)[-100:]}"
    return "an error in words"


def _fill(folder: Path) -> None:
    folder.mkdir()
    write_run(folder / "run")
    for kind in ("cat", "dog"):
        (folder / "photos" / kind).mkdir(parents=True)
        for k in range(3):
            pixels = np.full((9, 7), 40 * k, np.uint8)
            Image.fromarray(pixels).save(folder / "photos" / kind / f"{k}.png")
    (folder / "file.csv").write_text("file,label\na.png,cat\n")


@contextlib.contextmanager
def _no_network() -> Iterator[None]:
    """Refuse connections, and serve nothing for ever."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError("there is no network here")

    connect, serve = socket.socket.connect, uvicorn.Server.run
    socket.socket.connect = refuse  # type: ignore[method-assign, assignment]
    uvicorn.Server.run = lambda *_, **__: None  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        socket.socket.connect = connect  # type: ignore[method-assign]
        uvicorn.Server.run = serve  # type: ignore[method-assign]


def _spoiled(arguments: list[str], draw: random.Random) -> list[str]:
    """Change, drop, double or add an argument."""
    found = list(arguments)
    at = draw.randrange(1, len(found) + 1)
    way = draw.randrange(5)
    if way == 0 and at < len(found):
        del found[at]
    elif way == 1 and at < len(found):
        found.insert(at, found[at])
    elif way == 2:
        found[at:at] = [
            draw.choice(("--nonsense", "--help", "-x", "--", "--import", "--import=absent.py", "--version"))
        ]
    elif at < len(found):
        found[at] = draw.choice(VALUES) if not found[at].startswith("--") else found[at] + draw.choice(("=", "x", "=1"))
    else:
        found.append(draw.choice(VALUES))
    return found


def _some(draw: random.Random, options: Sequence[Sequence[str]]) -> list[str]:
    """Take some of the options, each with one of its values."""
    found = []
    for name, *values in options:
        if draw.random() < 0.4:
            found += [name, *([draw.choice(values)] if values else [])]
    return found


_TRAIN = ["--smoke", "--device", "cpu", "--threads", "1"]
_SMALL = ["--model.options.channels", "4", "--model.options.n_types", "2", "--model.options.decoder", "null"]


def _train(draw: random.Random) -> list[str]:
    data = draw.choice(([], ["--data.name", "folder", "--data.root", "photos", "--data.image_size", "[28, 28]"]))
    field = [f"--{draw.choice(FIELDS)}", draw.choice(VALUES)] if draw.random() < 0.8 else []
    return ["train", "digits", *_TRAIN, "--out", "new", *data, *_SMALL, *field]


def _tune(draw: random.Random) -> list[str]:
    grid = ["--grid", draw.choice(("optim.lr=1e-3,3e-3", "optim.lr", "=", "epochs=1,x", "model.options.channels=4,5"))]
    known = (("--epochs", "1", "x"), ("--seeds", "1", "0"), ("--runs", "runs", "photos"))
    field = [f"--{draw.choice(FIELDS)}", draw.choice(VALUES)] if draw.random() < 0.5 else []
    return ["tune", "digits", *_TRAIN, *grid, *_SMALL, *_some(draw, known), *field]


COMMANDS: dict[str, Callable[[random.Random], list[str]]] = {
    "train": _train,
    "tune": _tune,
    "list": lambda draw: ["list", *_some(draw, (("capsnet_small",), ("mnist",), ("absent",)))],
    "evaluate": lambda draw: [
        "evaluate",
        "run",
        *_some(
            draw,
            (
                ("--split", "val", "test", "absent"),
                ("--folder", "photos", "absent"),
                ("--invert",),
                ("--confusion", "out.csv", "out.png", "out.txt"),
                ("--data.root", "photos"),
                ("--data.test_crops", "1", "13", "2"),
            ),
        ),
    ],
    "report": lambda draw: ["report", "run", *_some(draw, (("--beside", "run", "absent"), ("--data.root", "photos")))],
    "predict": lambda draw: [
        "predict",
        draw.choice(("run", "pretrained:mnist-small")),
        draw.choice(("photos", "photos/cat/0.png", "file.csv", "absent")),
        *_some(
            draw,
            (
                ("--csv", "out.csv", "file.csv", "photos"),
                ("--json", "out.json", "a/b.json"),
                ("--invert",),
                ("--top", "2"),
            ),
        ),
    ],
    "export": lambda draw: [
        "export",
        draw.choice(("run", "pretrained:mnist-small", "absent")),
        "--format",
        draw.choice(("safetensors", "safetensors", "onx")),
        *_some(draw, (("--out", "out.safetensors", "out.pt", "photos", "a/b.safetensors"), ("--force",))),
    ],
    "playground": lambda draw: [
        "playground",
        draw.choice(("absent", "photos", "file.csv")),
        "--no-browser",
        *_some(draw, (("--port", "0", "99999", "-1"), ("--host", "127.0.0.1", "nowhere"), ("--beside", "absent"))),
    ],
    "doctor": lambda draw: ["doctor", "--json", draw.choice(("photos", "absent/a.json", "file.csv/a"))],
    "nothing": lambda draw: [draw.choice(("", "absent", "--help", "--version", "trian", "train", "list"))],
}
