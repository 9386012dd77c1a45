"""CapsNet on images that are no digits on black: section 7 of Dynamic Routing Between Capsules.

(Sabour, Frosst, Hinton 2017.) Brightness, contrast, windows and standardisation are those of the authors' released
code; the epochs are fewer, under a cosine.
"""

from __future__ import annotations

from dataclasses import replace

from torchcaps.training.config import NO_FACTORS, Data, Experiment, Model
from torchcaps.training.recipes import BRIGHTNESS, CONTRAST, mnist_adam


def svhn() -> Experiment:
    """A smaller network (64 channels, 16 types of 6-D, classes of 8-D) on SVHN: 4.3 % in the paper.

    A tenth of its 73,257 training images validates. Of augmentation and reconstruction the paper says nothing: here
    they are those of ``mnist-adam``.
    """
    options = {"channels": 64, "n_types": 16, "d_primary": 6, "d_class": 8}
    return replace(mnist_adam(), recipe="svhn", data=Data("svhn"), model=Model("capsnet", options), epochs=10)


def smallnorb_capsnet() -> Experiment:
    """The network of ``mnist-adam``, trained alike, on both eyes of small NORB: 2.7 % in the paper.

    It sees standardised windows of 32×32, and reconstructs them as they were before, from 0 to 1.
    """
    data = Data("smallnorb", shift=0, brightness=BRIGHTNESS, contrast=CONTRAST, crop=(32, 32))
    return replace(
        mnist_adam(),
        recipe="smallnorb-capsnet",
        data=data,
        model=Model("capsnet", {**NO_FACTORS, "standardize": True}),
        epochs=30,
    )
