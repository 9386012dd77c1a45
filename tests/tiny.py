"""An experiment that is trained in a second, for tests of what happens around training."""

from __future__ import annotations

from dataclasses import replace

from torchcaps.training import Data, Model
from torchcaps.training.recipes import recipe

TINY = replace(
    recipe("digits"),
    data=Data("digits", n_train=64, n_eval=16),
    model=Model("capsnet_small", {"channels": 4, "n_types": 2, "decoder": None}),
    epochs=3,
    batch_size=16,
    threads=1,
    device="cpu",
)
