"""Any torch ``Dataset``, or one of Hugging Face's, as images in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from typing import Any

import numpy as np
import torch
import torch.utils.data
from torch import Tensor

from torchcaps.checks import check_at_least, check_two
from torchcaps.data.image_file import without_transparency
from torchcaps.data.images import Dataset, Images, keep_a_tenth, numbered_classes, resized

#: What image and label are called where a sample is a mapping.
_IMAGE_KEYS, _LABEL_KEYS = ("image", "img", "pixel_values", "x"), ("label", "labels", "fine_label", "target", "y")


def from_torch(
    train: Any,
    test: Any,
    val: Any = None,
    *,
    classes: Sequence[str] | None = None,
    name: str = "own",
    image_size: tuple[int, int] | None = None,
    workers: int = 0,
) -> Dataset:
    """Read torch data sets whose samples are (image, label) into a :class:`Dataset`, which ``train`` takes.

    A sample may also be a mapping, as those of Hugging Face's ``datasets`` are. An image is a Pillow image, an array
    ``[H, W]`` or ``[H, W, C]``, or a tensor ``[H, W]`` or ``[C, H, W]``: uint8, uint16, or floats, which stay as they
    are. A label is a class's number, or 0 and 1 for each class. Random transforms are drawn once, here: leave
    augmentation to the experiment's ``data``.

    Args:
        train: images to train on.
        test: images to report on.
        val: images to choose on; None keeps a tenth of ``train`` back.
        classes: their names; None takes those that ``train`` has (``train.classes``, or the names of its feature
            "label"), else numbers.
        name: of the data.
        image_size: (height, width) that all are resized to; needed where they have several sizes.
        workers: processes that read.

    Raises:
        ValueError: a data set without a length, or with a sample of another form, size or kind than the first.

    Example:
        >>> import torch
        >>> digits = torch.utils.data.TensorDataset(torch.rand(30, 1, 28, 28), torch.arange(30) % 10)
        >>> from_torch(digits, digits)
        Dataset(own: 10 classes, [1, 28, 28]; train 27, val 3, test 30)
    """
    check_at_least("workers", workers, 0)
    if image_size is not None:
        check_two("image_size", image_size, 1)
    if classes is not None and (not isinstance(classes, Sequence) or isinstance(classes, str | bytes)):
        raise ValueError(f"classes must be a name for each, got {classes!r:.80}")
    with torch.device("cpu"):  # torch's loader draws a number, which a default device "meta" has not
        parts = {
            split: _read(split, source, image_size, workers)
            for split, source in {"train": train, "val": val, "test": test}.items()
            if source is not None
        }
    every = parts["train"]
    held, chosen = (every, parts["val"]) if val is not None else keep_a_tenth(every)
    names = _class_names(train, list(parts.values())) if classes is None else tuple(classes)
    return Dataset(name, names, held, chosen, parts["test"])


def _read(split: str, source: Any, size: tuple[int, int] | None, workers: int) -> Images:
    if not isinstance(source, Sized) or not hasattr(source, "__getitem__"):
        kind = type(source).__name__
        raise ValueError(f"{split} must be a data set with a length and samples by number, got a {kind}")
    n = len(source)
    if not n:
        raise ValueError(f"{split} must have samples, got none")
    samples: Any = _Samples(source, split, size)  # whose type DataLoader's stub does not take
    images, labels = torch.empty(0, device="cpu"), torch.empty(0, device="cpu")
    for k, (pixels, label) in enumerate(torch.utils.data.DataLoader(samples, batch_size=None, num_workers=workers)):
        if k == 0:
            images = torch.empty(n, *pixels.shape, dtype=pixels.dtype, device="cpu")
            labels = torch.empty(n, *label.shape, dtype=label.dtype, device="cpu")
        grey_among_colours = pixels.shape[0] == 1 < images.shape[1]
        image = pixels.expand(images.shape[1], -1, -1) if grey_among_colours else pixels
        for what, value, every in (("image", image, images), ("label", label, labels)):
            if value.shape != every.shape[1:] or value.dtype != every.dtype:
                advice = "; image_size resizes images" if what == "image" else ""
                raise ValueError(
                    f"{split}[{k}] must have a sample's {what} of {list(every.shape[1:])} {every.dtype} as {split}[0] "
                    f"has, got {list(value.shape)} {value.dtype}{advice}"
                )
        images[k], labels[k] = image, label
    return Images(images, labels)


class _Samples(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """Make tensors of samples, where they are read: in workers."""

    def __init__(self, source: Any, split: str, size: tuple[int, int] | None) -> None:
        self.source, self.split, self.size = source, split, size

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, k: int) -> tuple[Tensor, Tensor]:
        where = f"{self.split}[{k}]"
        image, label = _parts(self.source[k], where)
        pixels = _as_pixels(image, where)
        return resized(pixels[None], self.size)[0], _as_label(label, where)


def _parts(sample: Any, where: str) -> tuple[Any, Any]:
    """Return image and label of a sample."""
    if isinstance(sample, Mapping):
        keys = [next((key for key in known if key in sample), None) for known in (_IMAGE_KEYS, _LABEL_KEYS)]
        if None in keys:
            raise ValueError(
                f"{where} must have one of {', '.join(_IMAGE_KEYS)} and one of {', '.join(_LABEL_KEYS)}, got the keys "
                f"{', '.join(map(str, sample))}"
            )
        return sample[keys[0]], sample[keys[1]]
    if not isinstance(sample, tuple | list) or len(sample) != 2:
        raise ValueError(f"{where} must be (image, label), or a mapping with both, got a {type(sample).__name__}")
    return sample[0], sample[1]


def _as_pixels(image: Any, where: str) -> Tensor:
    """Make a tensor ``[C, H, W]`` of an image."""
    if isinstance(image, Tensor):
        pixels = (image[None] if image.dim() == 2 else image).detach().cpu()
    else:
        array = np.asarray(without_transparency(image) if hasattr(image, "mode") else image)
        if array.ndim not in (2, 3) or array.dtype == object:
            raise ValueError(f"{where} must have an image of [H, W] or [H, W, C], got a {type(image).__name__}")
        pixels = torch.from_numpy(np.array(array[None] if array.ndim == 2 else array.transpose(2, 0, 1), order="C"))
    if pixels.dim() != 3:
        raise ValueError(f"{where} must have an image of [C, H, W] or [H, W], got {list(pixels.shape)}")
    return pixels.float() if pixels.is_floating_point() else pixels


def _as_label(label: Any, where: str) -> Tensor:
    if isinstance(label, str | bytes) or label is None:
        raise ValueError(f"{where} must have a class's number as its label, got {label!r}")
    found = torch.as_tensor(label, device="cpu")
    return found.long() if found.dim() == 0 and not found.is_floating_point() else found


def _class_names(source: Any, parts: Sequence[Images]) -> tuple[str, ...]:
    """Return the names that a data set gives its classes, else their numbers."""
    features = getattr(source, "features", None)
    if isinstance(features, Mapping):
        for key in _LABEL_KEYS:
            names = getattr(features.get(key), "names", None)
            if names:
                return tuple(map(str, names))
    names = getattr(source, "classes", None)
    if isinstance(names, list | tuple) and names:
        return tuple(map(str, names))
    return numbered_classes(parts)


__all__ = ["from_torch"]
