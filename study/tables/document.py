"""``study/results.md``: every table and measure, from the results that are kept."""

from __future__ import annotations

from pathlib import Path

from study import records
from study.tables import TABLES
from study.tables.kept import read_results
from study.tables.measured import recorded
from study.tables.poses import poses_as_markdown
from study.tables.write import as_markdown
from torchcaps.training.files import write_text

_HEAD = """# Results

Written by `python -m study results` from the files in `results/`: do not edit. Each number is the mean over the seeds
`<recipe>-<seed>` in [runs.jsonl](results/runs.jsonl) (and where there are several, the standard deviation over them),
measured once on the test split after training, in per cent. `checks.jsonl: em-rates` (say) names a line of such a file;
`python -m study show runs mnist-0` prints one: seed, settings, commit, versions, device, time. A run that saw fewer
images than its row asks for reads "smoke", and "–" is a row without a run. `python -m study reproduce TABLE`
trains a table anew, going on where it stopped, and shows its own numbers beside the recorded ones: every row once, with
its recipe's own epochs. What was recorded with others says so, and is made again by `python -m study reproduce TABLE
--row RECIPE --epochs 5`, several seeds by `--seeds 3`. Whole tables take days on a CPU: `--budget 60` stops after an
hour.

Learning rates fall along a cosine. The CapsNets and CNNs of MNIST, MultiMNIST, expanded MNIST and Fashion-MNIST,
`smallnorb-capsnet` and `cifar10` were trained in bfloat16, all others in float32. Other numbers of threads, processors
and convolution code round differently, and a run may differ by a few images. Times are no comparison between rows: they
were taken on shared machines. Recipes without a number run, but have no recorded run yet.
"""

_BEYOND = """## Beyond error

What `python -m study measure` found; [protocols.md](protocols.md) says how, and what would speak against each claim."""


def document(results: str | Path) -> str:
    """All tables with the recorded numbers.

    Args:
        results: folder of the kept results.

    Raises:
        ValueError: a file there cannot be read.
    """
    kept = read_results(Path(results))
    parts = [as_markdown(table, {"recorded": kept}, name, level=2) for name, table in TABLES.items()]
    beyond = recorded(Path(results))
    return "\n".join([_HEAD, *parts, poses_as_markdown(kept), _BEYOND, *beyond]) + "\n"


def write_document(results: str | Path, to: str | Path) -> None:
    """Write them into a file.

    Raises:
        ValueError: no results there, or the file holds something else.
    """
    results, to = Path(results), Path(to)
    if not records.every("runs", results):
        raise ValueError(f"--from must be a folder of kept results, but {results} has none")
    if to.exists() and not to.read_text(encoding="utf-8").startswith(_HEAD.split(" from")[0]):
        raise ValueError(f"--to must be free or what this command wrote before, got {to}, which is something else")
    write_text(to, document(results))
