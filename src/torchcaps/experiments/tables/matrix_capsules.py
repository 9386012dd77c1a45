"""Tables of Matrix Capsules with EM Routing (Hinton, Sabour, Frosst, ICLR 2018)."""

from __future__ import annotations

from torchcaps.experiments.tables.table import Row, Table

_SOURCE = "Hinton et al. 2018"


def _row(label: str, recipe: str, paper: str | None = None) -> Row:
    return Row(label, recipe, 300_000, {} if paper is None else {"test_error": paper})


SMALLNORB = Table(
    title="Small NORB",
    source=f"{_SOURCE}, table 1 and section 4",
    rows=(
        _row("matrix capsules A=64, B=8, C=D=16", "smallnorb-small", "2.2"),
        _row("3 iterations, matrix, spread loss, coordinates", "smallnorb", "1.8"),
        _row("1 iteration", "smallnorb-1-iteration", "9.7"),
        _row("2 iterations", "smallnorb-2-iterations", "2.2"),
        _row("5 iterations", "smallnorb-5-iterations", "3.9"),
        _row("vector poses", "smallnorb-vector", "2.9"),
        _row("no coordinates", "smallnorb-no-coordinates", "2.6"),
        _row("vector poses, no coordinates", "smallnorb-vector-no-coordinates", "3.2"),
        _row("margin loss", "smallnorb-margin-loss", "3.2"),
        _row("cross-entropy", "smallnorb-cross-entropy", "5.8"),
        _row("CNN, 4.2 M parameters", "smallnorb-cnn", "5.2"),
        _row("CNN with as many parameters as the small capsules", "smallnorb-cnn-small"),
    ),
    note=(
        "One toy of each category is held out of training for validation. Where the images are 48×48 copies of the "
        "official ones, the result's `data` says so."
    ),
)
