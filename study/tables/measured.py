"""Measures that are kept, as Markdown: those of one recipe's seeds and folds put together."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from study import records
from study.measures import MEASURES
from study.measures.said import Said, in_words, mean
from study.measures.write import headlines, table
from study.tables import TABLES

#: What the record of a measure must have.
FIELDS = {"measure", "values", "n", "device", "run", "beside"}


class _Kept(NamedTuple):
    """A kept measure, what is to be read first of it, and its key."""

    content: dict[str, Any]
    said: dict[str, dict[str, Said]]
    key: str


def recorded(folder: Path) -> list[str]:
    """The lines of all measures that are kept, as ``<run>/<measure>`` in ``<folder>/measures.jsonl``.

    The picture of one is linked where it stands in ``pictures`` beside the folder.

    Of several folds a number is the mean, and of several seeds mean and standard deviation, as in the tables.

    Raises:
        ValueError: a line there is broken, or of no known measure.
    """
    rows = {recipe: row for every in TABLES.values() for row in every.rows for recipe in row.recipes}
    groups: dict[tuple[Any, ...], list[_Kept]] = {}
    for key, content in records.every("measures", folder).items():
        where = records.place("measures", key, folder)
        if not content.keys() >= FIELDS:
            raise ValueError(f"{where} must hold {', '.join(sorted(FIELDS))}; got {', '.join(content)}")
        if content["measure"] not in MEASURES:
            raise ValueError(f"{where} must be of one of {', '.join(MEASURES)}, got {content['measure']}")
        try:
            said = headlines(content)
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"{where} must hold what {content['measure']} measures, got other values: {error!r}"
            ) from error
        names = [content[part]["recipe"] for part in said]
        of = [rows[name].recipe if name in rows else name for name in names]
        apart = content["beside"]["seed"] - content["run"]["seed"] if content["beside"] else 0
        alike = content["measure"], str(content["n"]), *of, apart, *said["run"]
        groups.setdefault(alike, []).append(_Kept(content, said, key))
    return [line for kept in groups.values() for line in _section(kept, folder)]


def _section(kept: list[_Kept], folder: Path) -> Iterator[str]:
    """A table, and where its numbers come from."""
    of_seed: dict[int, list[_Kept]] = {}
    for each in kept:
        of_seed.setdefault(each.content["run"]["seed"], []).append(each)
    n_folds = max(map(len, of_seed.values()))
    # A seed without some of the folds is left out: its mean would be of other toys than that of the others.
    whole = {seed: of_seed[seed] for seed in sorted(of_seed) if len(of_seed[seed]) == n_folds}
    shown = [each for folds in whole.values() for each in folds]
    columns = {
        _name([each.content[part]["recipe"] for each in shown]): _cells(
            [[fold.said[part] for fold in folds] for folds in whole.values()]
        )
        for part in shown[0].said
    }
    n = shown[0].content["n"]
    images = f"{n if isinstance(n, int) else ' + '.join(map(str, n))} images"
    seeds = f", {len(whole)} seeds" * (len(whole) > 1)
    folds = f", {n_folds} folds" * (n_folds > 1)
    devices = "; ".join(dict.fromkeys(each.content["device"] for each in shown))
    yield from ("", *table(kept[0].content["measure"], columns), "")
    yield f"{images}{folds}{seeds}, {devices}: {'; '.join(_link(each, folder, len(shown) > 1) for each in shown)}."


def _name(recipes: list[str]) -> str:
    """What a column is called: the recipe, of several folds without its number."""
    return f"`{recipes[0]}`" if len({*recipes}) == 1 else f"`{recipes[0].rpartition('-')[0]}-*`"


def _cells(seeds: list[list[dict[str, Said]]]) -> dict[str, str]:
    """Of every seed's folds the mean, then over the seeds; by label."""
    labels = seeds[0][0]
    return {label: in_words([mean([fold[label] for fold in folds]) for folds in seeds]) for label in labels}


def _link(each: _Kept, folder: Path, named: bool) -> str:
    """Name the record, by its run alone where there are several, and link its picture where one is kept."""
    run, _, _ = each.key.partition("/")
    said = f'[`{run if named else each.key}`]({folder.name}/measures.jsonl "{each.key}")'
    picture = Path("pictures") / f"{each.key}.png"
    return said + (f", [picture]({picture.as_posix()})" if (folder.parent / picture).is_file() else "")
