"""Call every public function, layer, network and command with spoiled arguments.

Each call ends in a result as documented, or in a ``ValueError`` that names an argument; each command with its work
done, or with a sentence and exit status 2. ``python -m tools.fuzz_calls --cases 20000 --seed 0 --out
runs/fuzz-calls.json`` writes how many cases ended how, and the first faults of each kind with the number that makes the
case again: ``--only NAME --first NUMBER --cases 1``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial

from tools import (
    calls_of_explain,
    calls_of_layers,
    calls_of_losses,
    calls_of_made_networks,
    calls_of_networks,
    calls_of_ops,
    calls_of_routings,
    calls_of_the_rest,
)
from tools.call import run_call
from tools.cases import Case, run_fuzzer
from tools.commands import COMMANDS, run_command
from tools.trained import run_files

EVERY = {
    **calls_of_ops.CALLS,
    **calls_of_losses.CALLS,
    **calls_of_layers.CALLS,
    **calls_of_routings.CALLS,
    **calls_of_networks.CALLS,
    **calls_of_made_networks.CALLS,
    **calls_of_explain.CALLS,
    **calls_of_the_rest.CALLS,
}


def subjects() -> Mapping[str, Case]:
    """Return every public call and every command by its name."""
    run_files()  # once, before processes are forked
    calls = {name: partial(run_call, call) for name, call in EVERY.items()}
    return {**calls, **{f"torchcaps {name}": partial(run_command, command) for name, command in COMMANDS.items()}}


if __name__ == "__main__":
    sys.exit(run_fuzzer(__doc__, subjects))
