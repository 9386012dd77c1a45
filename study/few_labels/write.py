"""``few-labels.json``, ``few-labels.md`` and ``pictures/few-labels.png`` in the folder of a run or another."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from study.draw.few_labels import draw_few_labels
from study.few_labels.compare import Settings, compare, trained_as
from study.few_labels.finished import Finished
from study.markdown import markdown_table
from torchcaps.checks import check_several
from torchcaps.training.environment import versions
from torchcaps.training.files import read_json, require_place, write_json, write_picture, write_text
from torchcaps.training.run import Run


def few_labels(
    run_path: str | Path,
    beside: Sequence[str | Path],
    settings: Settings,
    root: str | Path | None = None,
    out: str | Path | None = None,
) -> tuple[Path, dict[str, Any]]:
    """Compare, and write down what came of it.

    A comparison that was broken off goes on with the row that it was at; one that is finished is not made again.

    Args:
        run_path: folder of a finished run of an auto-encoder.
        beside: folders of further ones on the same data.
        settings: what is compared.
        root: folder of the data files, where they are no longer where the run found them.
        out: folder to write into; None for the run's.

    Returns:
        the path of the table, and what the JSON holds.

    Raises:
        ValueError: as :func:`~study.few_labels.compare.compare`; a run is not finished; or another
            comparison lies there already; or it is no folder that can be written to.
    """
    check_several("beside", beside)
    run, others = Run(run_path), [Run(path) for path in beside]
    folder = run.path if out is None else Path(out).expanduser()
    require_place("out", folder)
    of = _digest(run, others, settings)
    written, finished = folder / "few-labels.json", Finished(folder / "few-labels.partial.json", of)
    if written.is_file():
        found = read_json(written, "rows")
        if found.get("of") != of:
            raise ValueError(
                f"{written} is a comparison of other settings, runs or versions: remove it, or name another folder by "
                "--out"
            )
        found["trained"] = trained_as(run, others)  # older versions did not keep it
    else:
        found = compare(run, others, settings, finished, root, say=lambda text: print(text, flush=True))
        found["of"] = of
    table, picture = folder / "few-labels.md", folder / "pictures" / "few-labels.png"
    figure = draw_few_labels(found["rows"])
    write_picture(picture, figure)
    write_text(table, as_markdown(found))
    write_json(written, found)
    finished.clear()
    return table, found


def _digest(run: Run, others: Sequence[Run], settings: Settings) -> str:
    """Of all that the rows depend on, but the code's version control."""
    runs = {each.path.resolve().name: each.finished() for each in (run, *others)}
    content = json.dumps([asdict(settings), runs, versions()], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def best(rows: Sequence[dict[str, Any]], n: str) -> dict[str, Any]:
    """The row of the lowest validation error with n labels: what one would choose."""
    return min(rows, key=lambda row: row["errors"][n]["val_error"])


def as_markdown(found: dict[str, Any]) -> str:
    """The table: test errors in per cent, mean ± standard deviation over the draws."""
    numbers = list(found["rows"][0]["errors"])
    lines = [
        f"# Few labels: {found['run']}",
        "",
        f"Test error in per cent on {found['data']}, {_over(found['draws'])} of the "
        f"labelled examples (the same for all; as many of each class as of every other, or one more of some), "
        f"{found['n_unlabelled']:,} images to find neighbours among, most without a label. Nothing was fitted to test "
        f"images. {'' if found['steps'] else 'Networks that see the labelled images alone were left out. '}With as few "
        "labels, the row to choose by its error on validation images (which are labelled only for this choice) is "
        + "; ".join(f"of {n}: {_name(best(found['rows'], n))}" for n in numbers)
        + ".",
        "",
    ]
    rows = [
        (row["code"], row["readout"], *(_cell(errors) for errors in row["errors"].values())) for row in found["rows"]
    ]
    head = ("what neighbours are found by", "how classes are found", *(f"{n} labels" for n in numbers))
    lines += markdown_table(head, rows)
    trained = "; ".join(
        f"{each['recipe']} for {each['epochs']} epochs, seed {each['seed']}" for each in found["trained"]
    )
    networks = (
        f" Networks that see the labelled images alone took {found['steps']} steps (more where that is less than 15 "
        "epochs) on images moved by up to two pixels, with other initial weights for every draw; nothing of theirs was "
        "chosen."
        if found["steps"]
        else ""
    )
    lines += [
        "",
        f"Trained once each: {trained}. Their deviations are of the draws of labels alone.{networks}",
        "",
        f"Recipe {found['recipe']}, seed {found['seed']}, commit {found['commit']}, {found['device']}.",
        "",
    ]
    return "\n".join(lines)


def _over(draws: int) -> str:
    return f"mean ± standard deviation over {draws} draws" if draws > 1 else "of a single draw"


def _name(row: dict[str, Any]) -> str:
    return f"{row['code']}, {row['readout']}"


def _cell(errors: dict[str, Any]) -> str:
    mean = f"{100 * errors['test_error']:.2f}"
    return mean if errors["test_std"] is None else f"{mean} ± {100 * errors['test_std']:.2f}"
