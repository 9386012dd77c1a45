"""Run suites, and write what they found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.conditions import Conditions
from benchmarks.draw import draw
from benchmarks.report import as_json, as_markdown
from benchmarks.result import Found
from benchmarks.suites import SUITES
from torchcaps.checks import check_at_least, check_choice
from torchcaps.ops import which_backend
from torchcaps.training.environment import choose_device, commit, device_in_words, tf32, versions
from torchcaps.training.files import require_place, write_json, write_picture, write_text


def bench(
    names: Sequence[str] = (),
    out: str | Path = "runs/bench",
    *,
    device: str = "cpu",
    threads: int = 1,
    repeats: int = 7,
    compile: bool = False,  # noqa: A002 (as the flag is called)
    smoke: bool = False,
    say: Callable[[str], object] = print,
) -> dict[str, Any]:
    """Measure, and write ``bench.json``, ``bench.md`` and ``bench.png`` into a folder.

    Args:
        names: of :data:`~benchmarks.suites.SUITES`; all of them where none is named.
        out: the folder, new or empty. What is found is there as soon as its suite is done.
        device: "cpu", "cuda" or "auto", which is a CUDA device where there is one.
        threads: on a CPU.
        repeats: repetitions of every measurement, of which medians and quartiles are kept.
        compile: also measure the reference through torch.compile, which takes minutes.
        smoke: sizes so small that a suite is done within a minute or so, to see that it runs.
        say: called with the name of each suite when it begins, and the table at the end.

    Returns:
        The content of ``bench.json``.

    Raises:
        ValueError: an unknown suite or device, a number below 1, or a folder that holds something.
        Disagreement: a contender is not right; its suite is not written.
    """
    import matplotlib  # noqa: F401 (where it is missing, that is said before anything is measured)

    for name in names:
        check_choice("suite", name, SUITES)
    check_at_least("threads", threads, 1)
    check_at_least("repeats", repeats, 1)
    check_choice("device", device, ("cpu", "cuda", "auto"))
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    conditions = Conditions(choose_device(device), threads, repeats, compile, smoke)
    folder = Path(out).expanduser()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"out must be a new folder or an empty one, got {folder}: name another by --out")
    require_place("out", folder)
    origin = {
        "tf32": list(tf32()),
        "threads": threads,
        "repeats": repeats,
        "versions": versions(),
        "commit": commit("benchmarks"),
    }
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        where = device_in_words(conditions.device)
        probe = torch.zeros(1, device=conditions.device)
        backend = {routing: which_backend(routing, "auto", probe) for routing in ("dynamic", "em")}
        found: dict[str, Found] = {}
        content: dict[str, Any] = {}
        for name in dict.fromkeys(names or SUITES):
            say(f"{name}: {(SUITES[name].__doc__ or '').strip()}")
            found[name] = SUITES[name](conditions)
            content = {"device": where} | origin | {"backend": backend, "smoke": smoke, "suites": as_json(found)}
            write_json(folder / "bench.json", content)
    finally:
        torch.set_num_threads(before)
    options = {"device": device} if device != "cpu" else {}
    options |= {"threads": threads, "repeats": repeats}
    flags = [f"--{name} {value}" for name, value in options.items()]
    flags += [f"--{name}" for name, asked in (("compile", compile), ("smoke", smoke)) if asked]
    words = (
        f"{where}; torch {torch.__version__}; medians of {repeats} interleaved repetitions (of memory fewer); commit "
        f"{origin['commit']}. Made by `python -m benchmarks {' '.join([*found, *flags])}`; "
        f"ours: {' and '.join(f'backend={used!r} ({routing})' for routing, used in backend.items())}; must and "
        "aim: limits that were set before anything was measured; contenders: benchmarks/textbook.py."
    )
    table = as_markdown(found, words, smoke=smoke)
    write_text(folder / "bench.md", table)
    if any(one.seconds or one.bytes or one.curves for one in found.values()):  # a GPU has no suite of threads
        write_picture(folder / "bench.png", draw(found))
    say(table)
    return content
