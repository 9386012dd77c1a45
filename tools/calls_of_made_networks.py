"""Calls of networks that are made already, on images that are spoiled."""

from __future__ import annotations

import torch

from tools.arguments import float32
from tools.call import layer
from tools.calls_of_networks import PASSES
from torchcaps import models

CALLS = {
    f"{name} forward": layer(
        make,
        {},
        forward={"x": float32(f"B {shape}")},
        forward_optional=optional,
        names=("transformation",),
        can_be_endless="transformation" in optional,  # one without an inverse
    )
    for name, make, shape, optional in (
        (
            "torchcaps.models.capsnet_small",
            lambda: models.capsnet_small((1, 12, 12), 3, channels=4, kernel_size=3, decoder=None),
            "1 12 12",
            PASSES,
        ),
        (
            "torchcaps.models.matrix_capsnet",
            lambda: models.MatrixCapsNet((2, 24, 24), 3, A=2, B=2, C=2, D=2),
            "2 24 24",
            PASSES,
        ),
        ("torchcaps.models.norb_cnn", lambda: models.norb_cnn((2, 8, 8), 3), "2 8 8", {}),
        (
            "torchcaps.models.affine_autoencoder",
            lambda: models.affine_autoencoder((1, 8, 8), n_capsules=2),
            "1 8 8",
            {"transformation": lambda sizes: torch.eye(3).expand(sizes["B"], 3, 3).clone()},
        ),
        (
            "torchcaps.models.template_autoencoder",
            lambda: models.template_autoencoder((1, 12, 12), n_capsules=2, template=3),
            "1 12 12",
            {"transformation": lambda sizes: torch.eye(3).expand(sizes["B"], 3, 3).clone()},
        ),
        ("torchcaps.models.plain_autoencoder", lambda: models.plain_autoencoder((1, 8, 8)), "1 8 8", {}),
    )
}
