"""Tables of routings side by side, one for each data set of :mod:`study.recipes.comparison`."""

from __future__ import annotations

from study.recipes.comparison import DATA, ROUTINGS, name_of
from study.tables.table import Row, Table

_SOURCE = "no paper; see Routings side by side in protocols.md"
_NOTE = (
    "One trunk, as many steps and as many trials for every routing. Networks are small and trainings short: what is "
    "compared is routings under the same conditions, not what each can come to."
)
#: Training images that a run must have seen, less incomplete last batches.
_MINIMUM = {"mnist": 160_000, "fashion-mnist": 160_000, "smallnorb": 170_000, "azimuth": 80_000, "cifar10": 155_000}


def tables() -> dict[str, Table]:
    """Return them by name, such as "routings-mnist"."""
    return {
        f"routings-{data}": Table(
            title=f"Routings side by side: {compared.title}",
            source=_SOURCE,
            rows=tuple(Row(label, name_of(data, routing), _MINIMUM[data]) for routing, label in ROUTINGS.items()),
            columns={"test_error": "familiar, %", "novel_error": "novel, %"}
            if data == "azimuth"
            else {"test_error": "test error, %"},
            note=_NOTE,
        )
        for data, compared in DATA.items()
    }
