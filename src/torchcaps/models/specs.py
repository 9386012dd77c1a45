"""Layers that capsule networks have on demand: further convolutions, and capsules below the class capsules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from torch import nn

from torchcaps.checks import as_two, check_at_least, check_choice
from torchcaps.layers.convolution import ReLUConv2d
from torchcaps.layers.shapes import conv_size


@dataclass(frozen=True)
class HiddenConv:
    """A convolution with a ReLU behind it, between the first one and the primary capsules."""

    channels: int = 128
    kernel_size: int | tuple[int, int] = 3
    stride: int | tuple[int, int] = 1
    padding: int | tuple[int, int] = 1


@dataclass(frozen=True)
class HiddenCaps:
    """A layer of convolutional capsules between primary and class capsules."""

    n_types: int = 16
    d_out: int = 8
    kernel_size: int | tuple[int, int] = 3
    stride: int | tuple[int, int] = 1


def build_stem(
    stem: Sequence[HiddenConv], channels: int, size: tuple[int, int]
) -> tuple[nn.ModuleList, int, tuple[int, int]]:
    """Build the layers for a map of so many channels and this size; return what they make of both, too.

    Raises:
        ValueError: a kernel is larger than its padded map.
    """
    layers = nn.ModuleList()
    for spec in stem:
        layers.append(ReLUConv2d(channels, spec.channels, spec.kernel_size, spec.stride, spec.padding))
        channels, size = spec.channels, conv_size(size, spec.kernel_size, spec.stride, spec.padding)
    return layers, channels, size


Layer = TypeVar("Layer", HiddenConv, HiddenCaps)
#: The least that a field may be; the sizes among them may be pairs.
_LEAST = {"channels": 1, "n_types": 1, "d_out": 1, "kernel_size": 1, "stride": 1, "padding": 0}
_SIZES = ("kernel_size", "stride", "padding")


def read_layers(name: str, given: Sequence[Layer | Mapping[str, Any]], kind: type[Layer]) -> list[Layer]:
    """Read the layers that an argument of this name lists, each as ``kind`` or as a dict of its fields.

    Raises:
        ValueError: no list, something else in it, an unknown field, or a field that is too small.
    """
    if not isinstance(given, Sequence):
        raise ValueError(f"{name} must list layers, got {given!r}")
    return [_read(f"{name}[{place}]", one, kind) for place, one in enumerate(given)]


def _read(name: str, given: Layer | Mapping[str, Any], kind: type[Layer]) -> Layer:
    if not isinstance(given, kind | Mapping):
        raise ValueError(f"{name} must be a {kind.__name__} or a dict of its fields, got {given!r}")
    known = [field.name for field in fields(kind)]
    if isinstance(given, Mapping):
        for field in given:
            check_choice(f"a field of {name}", field, known)
        given = kind(**given)
    for field in known:
        check = as_two if field in _SIZES else check_at_least
        check(f"{name}.{field}", getattr(given, field), _LEAST[field])
    return given
