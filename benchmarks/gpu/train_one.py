"""One training in a process of its own, by Python: the command line wants jsonargparse.

``python -m benchmarks.gpu.train_one RECIPE SEED FOLDER --seconds N``; the same goes on with what was not done.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

from torchcaps.memory import keep_memory


def main() -> None:
    """Train until it is done, or the seconds are over."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("recipe")
    parser.add_argument("seed", type=int)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--smoke", action="store_true")
    given = parser.parse_args()
    until = time.monotonic() + given.seconds
    keep_memory()
    import study.recipes  # noqa: F401 (which enters the rows of the papers' tables)
    from torchcaps.training.callbacks import OutOfTime
    from torchcaps.training.config import smoke
    from torchcaps.training.recipes import recipe
    from torchcaps.training.train import train

    config = replace(recipe(given.recipe), seed=given.seed, device=given.device)
    config = smoke(config) if given.smoke else config
    config = replace(config, epochs=given.epochs or config.epochs)
    if given.data is not None and config.data.name != "digits":
        config = replace(config, data=replace(config.data, root=str(given.data / config.data.name)))
    try:
        result = train(config, given.folder, progress="none", until=until)
    except OutOfTime:
        print(f"{given.folder} goes on in the next call", flush=True)
        return
    print(f"{given.folder} is done in {result['seconds']} s", flush=True)


if __name__ == "__main__":
    main()
