"""Tables of the pages, written between markers from the recorded results, so that no number is copied by hand."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

from study import records
from study.gpu_pages import gpu_in_short, gpu_routing, gpu_steps, milliseconds
from study.peers_page import peers
from study.routings_page import authors, costs, routings, verdicts
from study.tables import TABLES
from study.tables.kept import read_results
from study.tables.summary import Summary, summarise

ROOT = Path(__file__).resolve().parents[1]


class Headline(NamedTuple):
    """Describe a recipe's row.

    Attributes:
        what: The network and its training; names of further columns in braces.
        paper: What the paper has.
        minutes: What belongs behind the minutes.
    """

    what: str
    paper: str
    minutes: str = ""


#: The rows of study/README.md.
HEADLINES = {
    name: Headline(**row)
    for name, row in tomllib.loads((ROOT / "study" / "headlines.toml").read_text(encoding="utf-8")).items()
}
#: Those of README.md: what, on what.
SHORT = {
    "mnist": ("CapsNet, dynamic routing", "MNIST"),
    "mnist-cnn": ("the paper's CNN", "MNIST"),
    "multimnist-deep": ("CapsNet with a stem of five convolutions", "overlapping MNIST digits"),
    "smallnorb-em-light": ("small matrix capsules, EM routing", "small NORB"),
    "smallnorb-cnn": ("the paper's CNN", "small NORB"),
    "digits": ("small CapsNet, trained in two minutes", "bundled digits"),
}


def pages() -> dict[Path, str]:
    """Return every page that has generated tables, with these as the results say."""
    written = {
        ROOT / "README.md": {"results": results(), "speed-short": speed_in_short()},
        ROOT / "study" / "README.md": {"headlines": headlines()},
        ROOT / "docs" / "results" / "speed.md": {
            "speed": speed(),
            "peers": peers(),
            "speed-gpu": gpu_routing(),
            "steps-gpu": gpu_steps(),
        },
        ROOT / "docs" / "results" / "routings.md": {
            "routings": routings(),
            "verdicts": verdicts(),
            "costs": costs(),
            "authors": authors(),
        },
    }
    return {path: _filled(path, parts) for path, parts in written.items()}


def _filled(path: Path, parts: dict[str, list[str]]) -> str:
    text = path.read_text(encoding="utf-8")
    for name, lines in parts.items():
        pattern = rf"(<!-- {name}: [^\n]*-->\n).*?(<!-- end -->)"
        if not re.search(pattern, text, re.S):
            raise ValueError(f"{path} must have the markers of {name}, and has none")
        block = "\n".join(lines) + "\n"
        text = re.sub(pattern, lambda found, block=block: found[1] + block + found[2], text, flags=re.S)
    return text


def summaries() -> dict[str, Summary]:
    """Return what the results of each recipe come to."""
    kept = read_results(records.RESULTS)
    rows = ((table, row) for table in TABLES.values() for row in table.rows)
    found = {row.recipe: summarise(table, row, kept) for table, row in rows}
    return {recipe: one for recipe, one in found.items() if one is not None}


def headlines() -> list[str]:
    """Return the table of study/README.md."""
    found = summaries()
    lines = [
        "| recipe | what | test error | seeds | paper | parameters | minutes a run, 1 CPU core |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for recipe, (what, paper, minutes) in HEADLINES.items():
        one = found[recipe]
        more = {name: one.cell(name) for name in re.findall(r"{(\w+)}", what)}
        behind = f"{minutes}" if minutes.startswith(",") or not minutes else f" {minutes}"
        lines.append(
            f"| `{recipe}` | {what.format(**more)} | {one.cell('test_error')} | {len(one.seeds)} | {paper} "
            f"| {one.n_parameters:,} | {one.minutes:.0f}{behind} |"
        )
    return lines


def results() -> list[str]:
    """Return the short table of README.md."""
    found = summaries()
    lines = ["| network | data | recipe | ours | seeds | paper |", "| --- | --- | --- | --- | --- | --- |"]
    for recipe, (network, data) in SHORT.items():
        one = found[recipe]
        lines.append(
            f"| {network} | {data} | `{recipe}` | {one.cell('test_error')} | {len(one.seeds)} "
            f"| {HEADLINES[recipe].paper} |"
        )
    return lines


def speed() -> list[str]:
    """Return the table of speed on a CPU."""
    return ["| what | time or memory | beside it |", "| --- | --- | --- |", *speed_rows()]


def speed_in_short() -> list[str]:
    """Return the table of README.md: routing on a CPU core and on a GPU."""
    bench = records.read("bench", "steps")["suites"]
    ms = {name: 1e3 * x["median"] for name, x in bench["dynamic"]["seconds"].items()}
    eager = min(ms[f"{name}, forward + backward"] for name in ("tiled", "einsum", "batched", "few_at_a_time"))
    nets = {name: 1e3 * x["median"] for name, x in bench["em"]["seconds"].items()}
    rows = [
        ("dynamic routing 1152×8 → 10×16, batch 64, one CPU core", ms["ours, forward + backward"], eager),
        ("the same, batch 128, one H100", *gpu_in_short("dynamic B=128")),
    ]
    rows.append(
        (
            "training step of matrix capsules (A=B=C=D=32), batch 8, one CPU core",
            nets["A=B=C=D=32: ours, step"],
            nets["A=B=C=D=32: stored_votes, step"],
        )
    )
    rows.append(("first of its layers, batch 64, one H100", *gpu_in_short("EM conv1 B=64")))
    return [
        "| what | torchcaps | plain PyTorch |",
        "| --- | --- | --- |",
        *(
            f"| {what} | {milliseconds(ours)} | {milliseconds(plain)}: {plain / ours:.1f}× |"
            for what, ours, plain in rows
        ),
    ]


def speed_rows() -> list[str]:
    """Return the rows of the table of speed on a CPU, from the files of the benchmarks."""
    suites: dict[str, Any] = {}
    for name in ("steps", "xeon/threads"):
        suites |= records.read("bench", name)["suites"]
    ms = {key: {name: 1e3 * x["median"] for name, x in suite["seconds"].items()} for key, suite in suites.items()}
    mb = {name: x["median"] / 1e6 for name, x in suites["memory"]["bytes"].items()}
    goals = {row["what"]: row["value"] for suite in suites.values() for row in suite["rows"]}

    def time(x: float) -> str:
        return f"{x:,.0f} ms" if x >= 20 else f"{x:.1f} ms"

    def eager(step: str) -> float:
        return min(ms["dynamic"][f"{name}, {step}"] for name in ("tiled", "einsum", "batched", "few_at_a_time"))

    rows = []
    for what, step in (
        ("dynamic routing, 1152×8 → 10×16, batch 64, forward", "forward"),
        ("the same, forward and backward", "forward + backward"),
    ):
        best, ours = eager(step), ms["dynamic"][f"ours, {step}"]
        rows.append(f"| {what} | {time(ours)} | eager {time(best)}: {best / ours:.1f}× |")
    share = goals["routing's share of the step in bf16"]
    between = f"eager routing {time(ms['capsnet']['few_at_a_time, step'])}; "
    for what, step, first, more in (
        ("CapsNet's training step, batch 64, float32", "step", between, ""),
        ("the same in bfloat16", "step in bf16", "", f"; routing alone {share:.1f} %"),
    ):
        ours, floor, torchs = (
            ms["capsnet"][f"{name}, {step}"] for name in ("ours", "floor", "ours with torch's convolutions")
        )
        beside = f"floor {time(floor)}; {first}with torch's convolutions {time(torchs)}{more}"
        rows.append(f"| {what} | {time(ours)} | {beside} |")
    cnn = ms["em"]["the paper's CNN, 4.2 M parameters, step"]
    for what, net in (
        ("matrix capsules A=B=C=D=32, training step, batch 8", "A=B=C=D=32"),
        ("matrix capsules A=64 B=8 C=D=16, the same", "A64 B8 C16 D16"),
    ):
        ours, floor, stored = (ms["em"][f"{net}: {name}, step"] for name in ("ours", "floor", "stored_votes"))
        beside = f"floor {time(floor)}: {ours / floor:.1f}× as long; eager {time(stored)}: {stored / ours:.0f}×"
        rows.append(f"| {what} | {time(ours)} | {beside}; the paper's 4.2 M CNN {time(cnn)} |")
    convolutions = mb["CapsNet: ours with torch's convolutions"]
    ours, floor = mb["CapsNet: ours"], mb["CapsNet: floor"]
    rows.append(
        f"| peak memory of CapsNet's step, float32 | {ours:.0f} MB | floor {floor:.0f} MB; "
        f"with torch's convolutions {convolutions:.0f} MB; "
        f"eager routing with our convolutions {mb['CapsNet: few_at_a_time']:.0f} MB |"
    )
    for what, net in (("of the first matrix capsules'", "A=B=C=D=32"), ("of the second", "A64 B8 C16 D16")):
        ours, floor, stored = (mb[f"EM net {net}: {name}"] for name in ("ours", "floor", "stored_votes"))
        rows.append(f"| {what} | {ours:.0f} MB | floor {floor:.0f} MB; eager {stored:,.0f} MB |")
    faster = [row["value"] for row in suites["threads"]["rows"]]
    rows.append(
        "| two cores instead of one, on an Intel Xeon ([threads](../../study/results/bench/xeon/threads.md)) "
        f"| {min(faster):.2f}× to {max(faster):.2f}× faster | routing alone and whole steps |"
    )
    return rows
