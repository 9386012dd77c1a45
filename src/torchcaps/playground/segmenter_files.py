"""A network that segments as files of a page for any static host: its programs, and test images with their masks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchcaps.data import Images
from torchcaps.data.images import to_float
from torchcaps.playground.messages import as_bytes
from torchcaps.playground.programs import write_masks
from torchcaps.playground.segmenter import Segmenter

#: Test images that lie beside the page: at most so many, and of large images so many bytes, masks included.
N_SAMPLES, MOST_BYTES = 1000, 8 * 2**20
#: Images on which a program is compared with its network.
COMPARED = 16


def write_segmenter(
    segmenter: Segmenter, beside: Segmenter | None, folder: Path, name: str, *, test_images: bool
) -> dict[str, Any]:
    """Write a network, the one beside, and test images.

    Args:
        segmenter: the network.
        beside: another one of the same images and classes.
        folder: of the page.
        name: with which the names of the files begin, in the folder.
        test_images: write them, where there are some.

    Returns:
        What the page has to know of them.

    Raises:
        ValueError: a program differs from its network by more than 1e-5.
    """
    images = _images(segmenter)
    programs: dict[str, str | None] = {"masks": f"{name}-masks.onnx", "beside": None}
    write_masks(segmenter, images, folder / f"{name}-masks.onnx")
    if beside is not None:
        programs["beside"] = f"{name}-beside.onnx"
        write_masks(beside, images, folder / f"{name}-beside.onnx")
    n, samples = 0, None
    if test_images and segmenter.samples is not None and segmenter.samples.masks is not None:
        samples = f"{name}-samples.bin"
        n = _write_samples(segmenter.samples, segmenter.samples.masks, folder / samples)
    return {"programs": programs, "samples": n, "samples_file": samples}


def _write_samples(images: Images, masks: Tensor, path: Path) -> int:
    """Write images one after the other: of each the bytes of its pixels, then a bit for each pixel of each mask."""
    written, size = list[bytes](), 0
    for image, mask in zip(images.images[:N_SAMPLES], masks):
        bits = np.packbits(mask.numpy().reshape(-1), bitorder="little").tobytes()
        written.append(as_bytes(to_float(image)) + bits)
        size += len(written[-1])
        if size + len(written[-1]) > MOST_BYTES:
            break
    path.write_bytes(b"".join(written))
    return len(written)


def _images(segmenter: Segmenter) -> Tensor:
    """Return images to compare on: test images, else noise."""
    if segmenter.samples is not None:
        return to_float(segmenter.samples.images[:COMPARED])
    return torch.rand(COMPARED, *segmenter.image_shape, generator=torch.Generator().manual_seed(0))
