"""Capsule networks for PyTorch: correct, fast, and every number with its file and its command.

The names a user starts from; each is imported when it is first used.

Mathematics: :func:`squash`, :func:`dynamic_routing`, :func:`dynamic_routing_from_votes`, :func:`em_routing`,
:func:`conv_em_routing`, :func:`em_routing_from_votes`, :class:`EMSettings`, :func:`margin_loss`,
:func:`spread_loss`, :func:`reconstruction_loss`, :class:`Capsules`. Layers: :class:`PrimaryCaps`,
:class:`MatrixPrimaryCaps`, :class:`ConvCaps`, :class:`DenseCaps`, :class:`ClassCaps`, :class:`Decoder`,
:class:`Standardize`; their routings: :class:`DynamicRouting`, :class:`EMRouting`. Models and data: :func:`build`,
:func:`load`. Training: :func:`recipe`, :func:`train`, :func:`load_model`, :func:`predict`,
:func:`export`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchcaps.data import load as load
    from torchcaps.layers import ClassCaps as ClassCaps
    from torchcaps.layers import ConvCaps as ConvCaps
    from torchcaps.layers import Decoder as Decoder
    from torchcaps.layers import DenseCaps as DenseCaps
    from torchcaps.layers import DynamicRouting as DynamicRouting
    from torchcaps.layers import EMRouting as EMRouting
    from torchcaps.layers import MatrixPrimaryCaps as MatrixPrimaryCaps
    from torchcaps.layers import PrimaryCaps as PrimaryCaps
    from torchcaps.layers import Standardize as Standardize
    from torchcaps.models import build as build
    from torchcaps.ops import Capsules as Capsules
    from torchcaps.ops import EMSettings as EMSettings
    from torchcaps.ops import conv_em_routing as conv_em_routing
    from torchcaps.ops import dynamic_routing as dynamic_routing
    from torchcaps.ops import dynamic_routing_from_votes as dynamic_routing_from_votes
    from torchcaps.ops import em_routing as em_routing
    from torchcaps.ops import em_routing_from_votes as em_routing_from_votes
    from torchcaps.ops import margin_loss as margin_loss
    from torchcaps.ops import reconstruction_loss as reconstruction_loss
    from torchcaps.ops import spread_loss as spread_loss
    from torchcaps.ops import squash as squash
    from torchcaps.training.checkpoint import load_model as load_model
    from torchcaps.training.export import export as export
    from torchcaps.training.predict import predict as predict
    from torchcaps.training.recipes import recipe as recipe
    from torchcaps.training.train import train as train

__version__ = "0.1.0"

_HOME = {
    "ClassCaps": "layers",
    "ConvCaps": "layers",
    "Decoder": "layers",
    "DenseCaps": "layers",
    "EMSettings": "ops",
    "DynamicRouting": "layers",
    "EMRouting": "layers",
    "MatrixPrimaryCaps": "layers",
    "PrimaryCaps": "layers",
    "Capsules": "ops",
    "Standardize": "layers",
    "build": "models",
    "conv_em_routing": "ops",
    "dynamic_routing": "ops",
    "dynamic_routing_from_votes": "ops",
    "em_routing": "ops",
    "em_routing_from_votes": "ops",
    "export": "training.export",
    "load": "data",
    "load_model": "training.checkpoint",
    "predict": "training.predict",
    "recipe": "training.recipes",
    "train": "training.train",
    "margin_loss": "ops",
    "reconstruction_loss": "ops",
    "spread_loss": "ops",
    "squash": "ops",
}

_MODULES = (
    "cli",
    "data",
    "doctor",
    "training",
    "explain",
    "layers",
    "memory",
    "models",
    "ops",
    "optim",
    "playground",
    "report",
    "testing",
)

__all__ = list(_HOME)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    # The command line must answer --help without waiting for torch, and it passes through here.
    if name in _HOME:
        return getattr(import_module(f"torchcaps.{_HOME[name]}"), name)
    if name in _MODULES:
        return import_module(f"torchcaps.{name}")
    raise AttributeError(f"module 'torchcaps' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_MODULES, "__version__"])
