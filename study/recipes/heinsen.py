"""An Algorithm for Routing Capsules in All Domains (Heinsen 2019).

Network, epochs, batch and shifts are those of the author's code. It trains by RAdam in one cycle with mixup, which this
library does not have: here it is Adam under a cosine. Of ten trainings it kept the one best on crops of the *test*
images. This was not trained yet.
"""

from __future__ import annotations

from torchcaps.training.config import Data, Experiment, Model, Optim


def smallnorb_heinsen() -> Experiment:
    """Parts that share one matrix, on small NORB at 96×96: 0.9 % in the paper, with 271,688 parameters."""
    return Experiment(
        recipe="smallnorb-heinsen",
        data=Data("smallnorb", image_size=(96, 96), shift=16),
        model=Model("heinsen_capsnet"),
        optim=Optim(lr=5e-4, schedule="cosine", warmup=0.02),
        loss="cross_entropy",
        epochs=50,
        batch_size=20,
    )
