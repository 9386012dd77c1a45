"""Transforming Auto-encoders (Hinton, Krizhevsky, Wang, ICANN 2011), and templates after Tieleman's thesis (2014).

No labels are shown to any of them. The paper does not say how long it trained, nor with which learning rate.
"""

from __future__ import annotations

from dataclasses import replace

from torchcaps.training.config import Data, Experiment, Model
from torchcaps.training.recipes import AFFINE, CONSISTENT, mnist_templates, mnist_translation


def mnist_translation_consistent() -> Experiment:
    """Capsules of points whose poses of a shifted image are asked to be the shifted poses."""
    return replace(mnist_translation(), recipe="mnist-translation-consistent", consistency=CONSISTENT, epochs=40)


def mnist_affine() -> Experiment:
    """The paper's second setting: 25 capsules of 3×3 matrices, 40 recognition and 40 generation units."""
    model = Model("affine_autoencoder")
    return replace(mnist_translation(), recipe="mnist-affine", data=replace(AFFINE, name="mnist"), model=model)


def mnist_affine_consistent() -> Experiment:
    """Capsules of matrices whose poses of a transformed image are asked to be the transformed poses."""
    return replace(mnist_affine(), recipe="mnist-affine-consistent", consistency=CONSISTENT)


def mnist_affine_parts() -> Experiment:
    """Capsules of matrices read as angle, scales, shear and shift, so that each has an inverse; consistent poses."""
    return replace(mnist_affine_consistent(), recipe="mnist-affine-parts", model=Model("parts_autoencoder"))


def mnist_affine_local() -> Experiment:
    """Capsules of matrices that each see a window of 11×11 pixels, after the paper's third setting (on cars)."""
    model = Model("local_autoencoder", {"n_capsules": 2})
    return replace(mnist_affine_consistent(), recipe="mnist-affine-local", model=model)


def fashion_mnist_affine() -> Experiment:
    """Capsules of 3×3 matrices with consistent poses on Fashion-MNIST, which the paper does not have."""
    data = replace(AFFINE, name="fashion-mnist")
    return replace(mnist_affine_consistent(), recipe="fashion-mnist-affine", data=data)


def fashion_mnist_templates() -> Experiment:
    """Templates on Fashion-MNIST."""
    data = replace(AFFINE, name="fashion-mnist")
    return replace(mnist_templates(), recipe="fashion-mnist-templates", data=data)


def smallnorb_affine() -> Experiment:
    """Capsules with windows of their own on the stereo pairs of small NORB; the paper has such of cars.

    Smaller changes, so that nothing from beyond the image, which is black and not grey, comes into the window.
    """
    data = Data("smallnorb", transformed=True, shift=1, degrees=10.0, scale=0.1, shear=0.1, crop=(32, 32))
    return replace(mnist_affine_local(), recipe="smallnorb-affine", data=data)


def mnist_plain_autoencoder() -> Experiment:
    """An ordinary auto-encoder, for comparison: its code has no poses, and it gets no transformation."""
    data = Data("mnist", transformed=True, shift=0)
    return replace(mnist_translation(), recipe="mnist-plain-autoencoder", data=data, model=Model("plain_autoencoder"))
