"""Run suites, and write what they found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from torchcaps.benchmarks.conditions import Conditions
from torchcaps.benchmarks.draw import draw
from torchcaps.benchmarks.report import as_json, as_markdown
from torchcaps.benchmarks.result import Found
from torchcaps.benchmarks.suites import SUITES
from torchcaps.checks import check_at_least, check_choice
from torchcaps.experiments.devices import choose_device, device_in_words
from torchcaps.experiments.files import write_atomically, write_json, write_text
from torchcaps.experiments.provenance import commit, versions
from torchcaps.ops import which_impl


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
        names: of :data:`~torchcaps.benchmarks.suites.SUITES`; all of them where none is named.
        out: the folder; what it holds of an earlier run is replaced.
        device: "cpu", "cuda" or "auto".
        threads: on a CPU.
        repeats: repetitions of every measurement, of which medians and quartiles are kept.
        compile: also measure the reference through torch.compile, which takes minutes.
        smoke: sizes so small that all is done in seconds, to see that it runs.
        say: is told the name of each suite when it begins, and the table at the end.

    Returns:
        The content of ``bench.json``.

    Raises:
        ValueError: an unknown suite, or a number below 1.
        Disagreement: a contender is not right; nothing is written.
    """
    for name in names:
        check_choice("suite", name, SUITES)
    check_at_least("threads", threads, 1)
    check_at_least("repeats", repeats, 1)
    conditions = Conditions(choose_device(device), threads, repeats, compile, smoke)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        where = device_in_words(conditions.device)
        probe = torch.zeros(1, device=conditions.device)
        impl = {routing: which_impl(routing, "auto", probe) for routing in ("dynamic", "em")}
        found: dict[str, Found] = {}
        for name in dict.fromkeys(names or SUITES):
            say(f"{name}: {(SUITES[name].__doc__ or '').strip()}")
            found[name] = SUITES[name](conditions)
    finally:
        torch.set_num_threads(before)
    origin = {"device": where, "threads": threads, "repeats": repeats, "versions": versions(), "commit": commit()}
    content = origin | {"impl": impl, "smoke": smoke, "suites": as_json(found)}
    options = {"device": device} if device != "cpu" else {}
    options |= {"threads": threads, "repeats": repeats}
    flags = [f"--{name} {value}" for name, value in options.items()]
    flags += [f"--{name}" for name, asked in (("compile", compile), ("smoke", smoke)) if asked]
    words = (
        f"{where}; torch {torch.__version__}; medians of {repeats} interleaved repetitions (of memory fewer); commit "
        f"{origin['commit']}. Made by `torchcaps bench {' '.join([*found, *flags])}`; "
        "must and aim: limits that were set before anything was measured; contenders: torchcaps/benchmarks/textbook.py."
    )
    table = as_markdown(found, words)
    folder = Path(out)
    write_json(folder / "bench.json", content)
    write_text(folder / "bench.md", table)
    write_atomically(folder / "bench.png", lambda path: draw(found).savefig(path, dpi=150, format="png"))
    say(table)
    return content
