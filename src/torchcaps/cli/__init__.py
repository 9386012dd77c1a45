"""The command line: parses, calls one function, prints."""

from __future__ import annotations

import io
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torchcaps.cli.parser import Adder, make_parser
from torchcaps.cli.train_command import train_command
from torchcaps.memory import keep_memory
from torchcaps.training.own_code import import_file

#: How long a process leaves it to the first one to say what is wrong.
_SECONDS = 20.0


def main(
    arguments: Sequence[str] | None = None,
    *,
    prog: str = "torchcaps",
    further: Callable[[Adder], None] | None = None,
) -> int:
    """Run one command; bad input prints what is wrong and gives exit status 2, what ``doctor`` finds wrong 1.

    Args:
        arguments: Those of the command line by default.
        prog: What the program is called.
        further: Adds commands of your own, see :func:`torchcaps.cli.parser.make_parser`.
    """
    arguments, own = _own_code(list(sys.argv[1:] if arguments is None else arguments))
    keep_memory()
    if sys.stdout is None or sys.stderr is None:  # a closed one, as that of a daemon
        nowhere = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
        sys.stdout, sys.stderr = sys.stdout or nowhere, sys.stderr or nowhere
    for stream in (sys.stdout, sys.stderr):  # of another encoding than UTF-8, to which not all can be written
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    with _sigterm_as_ctrl_c() as asked:
        return _run(arguments, own, prog, further, asked)


def _run(
    arguments: list[str], own: list[str], prog: str, further: Callable[[Adder], None] | None, asked: list[int]
) -> int:
    """Run the command, and say in a sentence what ended it; ``asked`` holds the signals that were met."""
    try:
        status = None
        for file in own:
            import_file(file)
        if arguments[:1] == ["train"]:
            train_command(arguments[1:])
        else:
            parser = make_parser(prog, further)
            parsed, parsed.fields = parser.parse_known_args(arguments)
            if parsed.fields and arguments[:1] != ["tune"]:  # whose recipe has fields
                parser.error(f"unrecognized arguments: {' '.join(parsed.fields)}")
            status = parsed.run_command(parsed)
        sys.stdout.flush()  # a closed pipe is met here, not at exit
        return status or 0
    except BrokenPipeError:  # whoever read has seen enough, as ``| head`` has; what is left goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141  # as of a program that the closed pipe ends
    except (ValueError, OSError) as error:
        _let_the_first_say_it()
        print(f"torchcaps: {_by_options(str(error))}", file=sys.stderr)
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
        _let_the_first_say_it()
        resumed = bool({"train", "reproduce", "tune", "few-labels"} & set(arguments[:1]))
        more = "; the same command goes on from what was last saved, if anything was" * resumed
        print(f"torchcaps: stopped{more}", file=sys.stderr)
        return 128 + (asked[0] if asked else signal.SIGINT)  # as a shell gives it


@contextmanager
def _sigterm_as_ctrl_c() -> Iterator[list[int]]:
    """Let SIGTERM, as a cluster or a container sends it, end the command as Ctrl-C does; yields the signals met."""
    asked = list[int]()

    def interrupt(number: int, _: Any) -> None:
        asked.append(number)
        raise KeyboardInterrupt

    mine = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    if mine:
        signal.signal(signal.SIGTERM, interrupt)
    try:
        yield asked
    finally:
        if mine:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _let_the_first_say_it() -> None:
    """Wait, as one of torchrun's other processes, for the end that the first one's brings: what is wrong is said once.

    It does not come where this process alone is wrong.
    """
    if os.environ.get("RANK", "0") != "0" and "WORLD_SIZE" in os.environ:
        time.sleep(_SECONDS)


def _own_code(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Take ``--import FILE`` out of the arguments, wherever it stands."""
    rest, files, iterator = list[str](), list[str](), iter(arguments)
    for argument in iterator:
        option, equals, file = argument.partition("=")
        if option == "--import":
            files.append(file if equals else next(iterator, ""))
        else:
            rest.append(argument)
    return rest, files


def _by_options(text: str) -> str:
    """Name the options of the command line where a message names arguments of Python."""
    if text.startswith("options of "):
        text += "; a recipe's own options stay unless all are given as one mapping: --model.options '{...}'"
    for name in ("out", "runs"):
        text = re.sub(rf"\bby {name}\b", f"by --{name}", text)
    return text.replace("with compile=False", "with --compile false")
