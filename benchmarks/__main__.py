"""``python -m benchmarks``, from the root of a clone."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from torchcaps.memory import keep_memory


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suites that are named; bad input prints what is wrong and gives exit status 2."""
    keep_memory()
    parsed = make_parser().parse_args(arguments)
    try:
        if not parsed.out:  # of an empty shell variable
            raise ValueError("out must name a folder, got an empty text")
        from benchmarks.bench import bench

        bench(**vars(parsed))
    except (ValueError, OSError) as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("benchmarks: stopped", file=sys.stderr)
        return 130
    print(f"wrote {parsed.out}")
    return 0


def make_parser() -> argparse.ArgumentParser:
    """The options are those of :func:`benchmarks.bench.bench`."""
    # No abbreviations: a misspelt option may be another one's beginning.
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure speed and memory beside a floor and what others write.",
        allow_abbrev=False,
    )
    suites = "of dynamic, capsnet, em, memory, growth, threads, routings, votes, later, peers, bounds (default: all)"
    parser.add_argument("names", metavar="NAME", nargs="*", help=suites)
    parser.add_argument("--threads", type=int, default=1, help="threads on a CPU (default: 1)")
    parser.add_argument("--repeats", type=int, default=7, help="repetitions of every measurement (default: 7)")
    parser.add_argument(
        "--out", metavar="FOLDER", default="runs/bench", help="a new folder to write to (default: runs/bench)"
    )
    parser.add_argument("--device", choices=("cpu", "cuda", "auto"), default="cpu", help="default: cpu")
    parser.add_argument("--compile", action="store_true", help="also torch.compile of the reference; takes minutes")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, to see that it runs")
    return parser


if __name__ == "__main__":
    sys.exit(main())
