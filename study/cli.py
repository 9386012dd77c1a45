"""The study's commands and their options."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torchcaps.cli
from torchcaps.cli.commands import place_of_runs, print_list
from torchcaps.cli.parser import ROOT, Adder, add_place_of_runs, place

#: Those of :mod:`study.measures`, which imports torch.
MEASURES = ("robustness", "equivariance", "picasso", "routing", "matched", "pairs", "transfer", "profile", "averaged")
RESULTS = "study/results"
KINDS = ("runs", "measures", "tuning", "checks", "few-labels", "bench", "gpu")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command of the study or of torchcaps, see :func:`torchcaps.cli.main`."""
    import study.data
    import study.recipes  # noqa: F401  (both enter names among the library's)

    return torchcaps.cli.main(arguments, prog="python -m study", further=_add)


def _add(command: Adder) -> None:
    command("tables", tables_command, "")
    made = command("reproduce", reproduce_command, "mnist --row mnist --seeds 3")
    made.add_argument("table", metavar="TABLE", help="one that python -m study tables shows, such as mnist")
    made.add_argument("--row", dest="rows", metavar="RECIPE", nargs="+", default=[], help="rows (default: all)")
    made.add_argument("--seeds", type=int, default=1, help="runs of each row (default: 1)")
    made.add_argument("--epochs", type=int, help="of each run, instead of the recipe's")
    made.add_argument("--budget", type=float, metavar="MINUTES", help="when to stop; the same command goes on")
    made.add_argument("--keep", type=place, metavar="FOLDER", help="also put finished results into this folder")
    add_place_of_runs(made)
    made = command("routings", routings_command, "--data mnist --seeds 1 --budget 60")
    made.add_argument("--data", metavar="NAME", nargs="+", default=[], help="data sets (default: all)")
    made.add_argument("--routing", dest="routings", metavar="NAME", nargs="+", default=[], help="default: all")
    made.add_argument("--seeds", type=int, default=3, help="runs of each routing (default: 3)")
    made.add_argument("--budget", type=float, metavar="MINUTES", help="when to stop; the same command goes on")
    add_place_of_runs(made)
    made = command("record", record_command, "runs/mnist")
    made.add_argument(
        "what",
        metavar="RUN",
        help="the folder of a finished run, such as runs/mnist; or a file that tune, few-labels or a benchmark wrote",
    )
    made.add_argument("--as", dest="name", metavar="NAME", help="of a benchmark's record, such as steps")
    made.add_argument("--to", type=place, metavar="FOLDER", default=RESULTS, help=f"default: {RESULTS}")
    made = command("publish", publish_command, "runs/mnist-small --as mnist-small")
    made.add_argument("run", metavar="RUN", help="the folder of a finished run")
    made.add_argument("--as", dest="name", metavar="NAME", required=True, help="of the weights")
    made.add_argument("--data.root", dest="root", type=place, help=ROOT)
    made = command("results", results_command, "")
    made.add_argument(
        "--from", dest="results", type=place, metavar="FOLDER", default=RESULTS, help=f"default: {RESULTS}"
    )
    made.add_argument("--to", type=place, metavar="FILE", default="study/results.md", help="default: study/results.md")
    made = command("show", show_command, "runs mnist-0")
    made.add_argument("kind", metavar="KIND", help=f"one of {', '.join(KINDS)}")
    made.add_argument("name", metavar="NAME", nargs="?", help="of the record, such as mnist-0 (default: list them)")
    made.add_argument(
        "--from", dest="results", type=place, metavar="FOLDER", default=RESULTS, help=f"default: {RESULTS}"
    )
    made.add_argument("--picture", type=place, metavar="FILE", help="draw it instead, of few-labels and bench")
    made = command("few-labels", few_labels_command, "runs/mnist-templates --labels 10 100")
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
    made.add_argument("--out", type=place, metavar="FOLDER", help="where to write (default: the run's folder)")
    made.add_argument(
        "--steps", type=int, default=100, help="of the supervised networks, at least; 0 leaves them out (default: 100)"
    )
    made.add_argument("--data.root", dest="root", type=place, help=ROOT)
    made = command("measure", measure_command, "robustness runs/digits --beside runs/digits-cnn")
    made.add_argument("name", metavar="NAME", help=f"one of {', '.join(MEASURES)}")
    made.add_argument("run", metavar="RUN", help="the folder of a run, such as runs/digits")
    made.add_argument("--beside", metavar="RUN", help="another run on the same data to compare it with, such as a CNN")
    made.add_argument("--n", type=int, help="test images (default: the measure's own number)")
    made.add_argument("--keep", type=place, metavar="FOLDER", help="also record it there, such as study/results")
    made.add_argument("--data.root", dest="root", type=place, help=ROOT)


def tables_command(_: argparse.Namespace) -> None:
    """List the tables with their recipes."""
    from study.recipes import RECIPES
    from study.tables import TABLES

    every = {recipe for table in TABLES.values() for row in table.rows for recipe in row.recipes}
    for name, table in TABLES.items():
        rows = {recipe: RECIPES[recipe] for row in table.rows for recipe in row.recipes}
        print_list(f"Table {name}: {table.title}. {table.source}.", rows)
    autoencoders = {name: make for name, make in RECIPES.items() if name not in every}
    print_list("In no table: auto-encoders, Hinton et al. 2011, and templates after Tieleman 2014.", autoencoders)


def reproduce_command(parsed: argparse.Namespace) -> None:
    """Train the rows of a paper's table and write it with our numbers beside."""
    from study.tables.reproduce import reproduce

    reproduce(
        parsed.table,
        parsed.rows,
        seeds=parsed.seeds,
        epochs=parsed.epochs,
        budget=parsed.budget,
        keep_in=parsed.keep,
        **place_of_runs(parsed),
    )


def routings_command(parsed: argparse.Namespace) -> None:
    """Choose settings for every routing, train it and measure it, under the same conditions."""
    from study.comparison import Place, compare

    where = Place(**place_of_runs(parsed))
    compare(parsed.data, parsed.routings, seeds=parsed.seeds, budget=parsed.budget, place=where)


def record_command(parsed: argparse.Namespace) -> None:
    """Put a finished run, or the outcome of another command, beside those that are kept."""
    from study.recorded import record

    for where in record(Path(parsed.what).expanduser(), Path(parsed.to).expanduser(), parsed.name):
        print(f"kept as {where}")


def publish_command(parsed: argparse.Namespace) -> None:
    """Make a finished run's weights those that come with the library."""
    from study.weights import publish
    from torchcaps.training.run import Run

    card = publish(Run(parsed.run), parsed.name, root=parsed.root)
    print(f"{card.name}: {card.size:,} bytes, {', '.join(f'{key} {value:.5f}' for key, value in card.result.items())}")


def show_command(parsed: argparse.Namespace) -> None:
    """Print what was recorded, as JSON: ``python -m study show runs mnist-0``."""
    import json

    from study import records
    from study.draw.recorded import draw_recorded
    from torchcaps.training.files import write_picture

    folder = Path(parsed.results).expanduser()
    if parsed.picture is not None:
        if parsed.name is None or Path(parsed.picture).exists():
            raise ValueError(f"--picture must be a file that is free, of a record with a name; got {parsed.picture}")
        write_picture(Path(parsed.picture), draw_recorded(parsed.kind, parsed.name, folder))
        print(f"wrote {parsed.picture}")
    elif parsed.name is None:
        print("\n".join(records.names(parsed.kind, folder)))
    else:
        print(json.dumps(records.read(parsed.kind, parsed.name, folder), indent=2, ensure_ascii=False))


def results_command(parsed: argparse.Namespace) -> None:
    """Write study/results.md from the results that are kept, and the generated tables of the pages."""
    from study.pages import pages
    from study.records import RESULTS as RECORDED
    from study.tables.document import write_document
    from study.tables.kept import stale

    write_document(parsed.results, parsed.to)
    for where in stale(Path(parsed.results)):
        print(f"{where} is left out: no result, or of a recipe that is gone or has changed")
    print(f"wrote {parsed.to}")
    if Path(parsed.results).resolve() != RECORDED:
        return
    for path, text in pages().items():
        if path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path}")


def few_labels_command(parsed: argparse.Namespace) -> None:
    """Classify from a few labels, by what an auto-encoder learned without any."""
    from study.few_labels.compare import Settings
    from study.few_labels.write import few_labels

    settings = Settings(tuple(parsed.labels), parsed.draws, parsed.unlabelled, parsed.steps)
    path, _ = few_labels(parsed.run, parsed.beside, settings, parsed.root, parsed.out)
    print(f"wrote {path}")


def measure_command(parsed: argparse.Namespace) -> None:
    """Ask more of a trained model than its error, as study/protocols.md says."""
    from study.measures.record import record
    from study.measures.write import as_markdown
    from torchcaps.training.files import read_json

    path = record(parsed.name, parsed.run, beside=parsed.beside, n=parsed.n, root=parsed.root, keep_in=parsed.keep)
    print("\n".join(as_markdown(read_json(path))))
    print(f"wrote {path}")
