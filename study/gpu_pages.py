"""Tables of speed on a GPU, from the records of ``python -m benchmarks.gpu``."""

from __future__ import annotations

from typing import Any

from benchmarks.gpu.table import speeds
from study import records
from study.markdown import markdown_table

#: What is shown of routing, by the problem's name in the records.
PROBLEMS = {
    "dynamic B=128": "dynamic routing, 1152×8 → 10×16, batch 128",
    "dynamic 100 classes": "the same to 100 classes, batch 64",
    "EM conv1 B=64": "first matrix capsules, A=B=C=D=32, batch 64",
    "EM conv1 small B=64": "first matrix capsules of the small network",
    "EM classes B=64": "matrix class capsules, 512 → 5",
}
#: What is shown of training steps: network and precision in the records, in words, and the paper's CNN beside it.
STEPS = {
    "capsnet B=128, fp32": ("CapsNet, batch 128, float32", None),
    "capsnet B=128, bf16": ("CapsNet, batch 128, bfloat16", None),
    "matrix_capsnet_small B=64, fp32": ("small matrix capsules, batch 64, float32", "norb_cnn B=64, fp32"),
    "matrix_capsnet B=64, fp32": ("matrix capsules A=B=C=D=32, batch 64, float32", "norb_cnn B=64, fp32"),
}


def gpu_routing() -> list[str]:
    """Return the table of routing alone: time by a replayed graph, and memory."""
    found = records.every("gpu")
    rows, times = found["speed"]["rows"], speeds(found, "both")
    cells = []
    for name, words in PROBLEMS.items():
        ours, bound = times[name]["triton"], rows[f"{name}, bound"]["both, ms, products in float32"]
        eager, compiled = best(times[name]), times[name].get("compiled")
        cells.append(
            (
                words,
                f"{milliseconds(ours)}, {megabytes(rows[f'{name}, triton'])}",
                f"{milliseconds(times[name][eager])}, {megabytes(rows[f'{name}, {eager}'])}: "
                f"{times[name][eager] / ours:.1f}×",
                "–" if compiled is None else f"{milliseconds(compiled)}: {compiled / ours:.1f}×",
                f"{milliseconds(bound)}: {ours / bound:.1f}×",
            )
        )
    header = ("forward and backward, float32", "kernels", "best eager", "`torch.compile`", "the card's bound")
    return markdown_table(header, cells)


def gpu_steps() -> list[str]:
    """Return the table of whole training steps beside the same networks without routing."""
    rows = records.read("gpu", "steps")["rows"]
    cells = []
    for name, (words, beside) in STEPS.items():
        ours, floor, plain = (rows[f"{name}, {contender}"] for contender in ("ours", "floor", "reference"))
        time = ours["graph ms"]
        cnn = "–" if beside is None else f"{milliseconds(rows[f'{beside}, itself']['graph ms'])}"
        cells.append(
            (
                words,
                f"{milliseconds(time)}, {ours['MB']:,.0f} MB",
                f"{milliseconds(floor['graph ms'])}, {floor['MB']:,.0f} MB: {time / floor['graph ms']:.2f}×",
                f"{milliseconds(plain['graph ms'])}, {plain['MB']:,.0f} MB",
                cnn,
            )
        )
    return markdown_table(("training step", "ours", "without routing", "plain routing", "the paper's CNN"), cells)


def gpu_in_short(problem: str) -> tuple[float, float]:
    """Return our milliseconds, and those of the best plain PyTorch, compiled or not."""
    row = speeds(records.every("gpu"), "both")[problem]
    return row["triton"], min(row[best(row)], row["compiled"])


def best(times: dict[str, float]) -> str:
    """Name the quickest that is written in plain PyTorch and not compiled."""
    return min(
        (name for name in ("reference", "einsum", "batched", "stored_votes") if name in times), key=times.__getitem__
    )


def milliseconds(ms: float) -> str:
    """Write a time with two digits, or whole where there are more."""
    return f"{ms:,.0f} ms" if ms >= 10 else f"{ms:.1f} ms" if ms >= 1 else f"{ms:.2g} ms"


def megabytes(row: dict[str, Any]) -> str:
    """Write the peak memory of a row."""
    return f"{row['both, MB']:,.0f} MB"
