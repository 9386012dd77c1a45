"""Labelled images as tensors, and their splits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from torchcaps.checks import check_tensor, single

#: What images may be made of.
_DTYPES = (torch.uint8, torch.uint16, torch.float32)


@dataclass(frozen=True, eq=False, repr=False)  # compared by identity: == of tensors is element-wise
class Images:
    """Hold labelled images in memory, as one tensor.

    Attributes:
        images: ``[N, C, H, W]``, any number of channels: uint8 0 … 255 (a quarter of the memory of floats), uint16
            0 … 65535, or float32, which networks see as they are: 0 … 1, unless values mean more (a decoder
            reconstructs 0 … 1 alone).
        labels: ``[N]`` int64. Other integers, and ``[N, 1]``, become that. Or several labels an image: ``[N, J]`` of
            0 and 1 for J classes, of any dtype, which become bool.
        factors: what else is known of each image, by name, each ``[N]`` int64: such as the toy and
            the viewpoint of small NORB. Empty where nothing is.
        masks: where each of J classes is, ``[N, J, H, W]`` bool, for networks that segment; None where nothing says.
            A mask for each class, as each pixel of SegCaps has a capsule for each: several classes may be at one pixel,
            or none, which is background.

    Raises:
        ValueError: one of them is no tensor, or of another shape or dtype.
    """

    images: Tensor
    labels: Tensor
    factors: Mapping[str, Tensor] = field(default_factory=dict)
    masks: Tensor | None = None

    def __post_init__(self) -> None:
        check_tensor("images", self.images)
        if self.images.dim() != 4 or self.images.dtype not in _DTYPES:
            raise ValueError(
                "images must be [N, C, H, W] uint8, uint16 or float32, "
                f"got {list(self.images.shape)} of {self.images.dtype}"
            )
        check_tensor("labels", self.labels)
        object.__setattr__(self, "labels", _as_labels(self.labels, len(self.images)))
        if not isinstance(self.factors, Mapping):
            raise ValueError(f"factors must be tensors by name, got {self.factors!r:.80}")
        for name, values in self.factors.items():
            check_tensor(name, values)
            if values.shape != self.images.shape[:1] or values.dtype != torch.int64:
                raise ValueError(
                    f"{name} must be [N={len(self.images)}] int64, got {list(values.shape)} of {values.dtype}"
                )
        if self.masks is not None:
            _check_masks(self.masks, self.images)

    @property
    def several_labels(self) -> bool:
        """Return whether an image may have none, one or several labels."""
        return self.labels.dim() == 2

    def shown(self) -> Tensor:
        """Return which classes each image shows: its labels, or ``[N, J]`` bool of its masks."""
        return self.labels if self.masks is None else self.masks.flatten(2).any(dim=2)

    def __repr__(self) -> str:
        known = [*self.factors, *(["masks"] if self.masks is not None else [])]
        return f"Images({len(self):,} of {list(self.images.shape[1:])}{''.join(f', {name}' for name in known)})"

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, k: int) -> tuple[Tensor, Tensor]:
        """Return one image as floats ``[C, H, W]``, and its label, for a ``torch.utils.data.DataLoader``."""
        return to_float(self.images[k]), self.labels[k]

    def take(self, index: Tensor | slice) -> Images:
        """Return the images at these places."""
        factors = {name: values[index] for name, values in self.factors.items()}
        masks = None if self.masks is None else self.masks[index]
        return Images(_at(self.images, index), self.labels[index], factors, masks)

    def floats(self, index: Tensor | slice) -> Tensor:
        """Return the images at these places as floats, as :func:`to_float` makes them."""
        return to_float(_at(self.images, index))

    def to(self, device: torch.device | str) -> Images:
        """Copy to another device."""
        factors = {name: values.to(device) for name, values in self.factors.items()}
        masks = None if self.masks is None else self.masks.to(device)
        return Images(self.images.to(device), self.labels.to(device), factors, masks)


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Hold a data set with its fixed splits: choose on ``val``, report on ``test`` once.

    Attributes:
        name: of the data set.
        classes: their names, in the order of the labels; a list and numbers will do, and become texts.
        train: images to train on.
        val: images to choose on.
        test: images to report on.
        further: more images to report on, by what they are called: "novel" shows the test's objects from
            viewpoints that were not trained on, "affine_mnist" digits distorted as none were in training.
        note: which of its forms and splits this is, where it has several.
        held_out: whether the validation images are kept from training; of others nothing can be chosen.
        mirrored: the order of the channels in a mirror, where that is another: (1, 0) of two cameras beside each other.

    Raises:
        ValueError: a split is no Images, has images of another shape, or labels beyond the classes; two classes of
            one name; a further split with the name of another; ``mirrored`` is no order of the channels.
    """

    name: str
    classes: tuple[str, ...]
    train: Images
    val: Images
    test: Images
    further: Mapping[str, Images] = field(default_factory=dict)
    note: str = ""
    held_out: bool = True
    mirrored: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        in_order = hasattr(self.classes, "__getitem__") and not isinstance(self.classes, str | bytes | Mapping | type)
        in_order = in_order and getattr(self.classes, "shape", None) != ()
        if not in_order:  # of a set none is the first
            raise ValueError(f"{self.name}: classes must be a name for each, got {self.classes!r}")
        object.__setattr__(self, "classes", tuple(str(single(name)) for name in self.classes))
        if len(set(self.classes)) < len(self.classes):
            raise ValueError(f"{self.name}: classes must have different names, got {', '.join(self.classes)}")
        if not isinstance(self.further, Mapping):
            raise ValueError(f"{self.name}: further must be Images by name, got {self.further!r:.80}")
        taken = {"train", "val", "test"} & set(self.further)
        if taken:
            raise ValueError(f"{self.name}: further splits must have names of their own, got {min(taken)}")
        for split, part in self.splits.items():
            if not isinstance(part, Images):
                raise ValueError(f"{self.name}: {split} must be Images, got a {type(part).__name__}")
            if part.images.shape[1:] != self.train.images.shape[1:]:
                raise ValueError(
                    f"{self.name}: {split} images must be {list(self.train.images.shape[1:])} "
                    f"as in train, got {list(part.images.shape[1:])}"
                )
            if part.several_labels != self.train.several_labels:
                kinds = ["one label an image", "several labels an image"]
                kinds = kinds[:: -1 if self.train.several_labels else 1]
                raise ValueError(f"{self.name}: {split} must have {kinds[0]} as train, got {kinds[1]}")
            self._check_masks_of(split, part)
            if part.images.dtype != self.train.images.dtype:
                raise ValueError(
                    f"{self.name}: {split} images must be {self.train.images.dtype} as in train, "
                    f"got {part.images.dtype}"
                )
            if not all_finite(part.images):
                raise ValueError(f"{self.name}: {split} images must be finite, got NaN or infinity")
            if part.several_labels:
                if part.labels.shape[1] != len(self.classes):
                    raise ValueError(
                        f"{self.name}: {split} labels must be [N, {len(self.classes)}], one column a class, "
                        f"got {list(part.labels.shape)}"
                    )
            elif len(part) and not 0 <= int(part.labels.min()) <= int(part.labels.max()) < len(self.classes):
                raise ValueError(
                    f"{self.name}: {split} labels must be 0 … {len(self.classes) - 1}, "
                    f"got {int(part.labels.min())} … {int(part.labels.max())}"
                )
        if self.mirrored is not None and _sorted(self.mirrored) != list(range(self.image_shape[0])):
            raise ValueError(
                f"{self.name}: mirrored must be an order of the {self.image_shape[0]} channels, got {self.mirrored}"
            )

    def _check_masks_of(self, split: str, part: Images) -> None:
        if (part.masks is None) != (self.train.masks is None):
            kinds = ["no masks", "masks"][:: 1 if self.train.masks is None else -1]
            raise ValueError(f"{self.name}: {split} must have {kinds[0]} as train, got {kinds[1]}")
        if part.masks is not None and part.masks.shape[1] != len(self.classes):
            raise ValueError(
                f"{self.name}: {split} masks must be [N, {len(self.classes)}, H, W], one for each class, "
                f"got {list(part.masks.shape)}"
            )

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name} {len(part):,}" for name, part in self.splits.items())
        note = f" ({self.note})" if self.note else ""
        return f"Dataset({self.name}{note}: {len(self.classes)} classes, {list(self.image_shape)}; {sizes})"

    @property
    def splits(self) -> dict[str, Images]:
        """Return the splits that there are, by name."""
        return {"train": self.train, "val": self.val, "test": self.test, **self.further}

    @property
    def several_labels(self) -> bool:
        """Return whether an image may have none, one or several labels."""
        return self.train.several_labels

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Return (channels, height, width)."""
        channels, height, width = self.train.images.shape[1:]
        return channels, height, width


def _as_labels(labels: Tensor, n: int) -> Tensor:
    """Bring labels to ``[N]`` int64, or ``[N, J]`` bool."""
    if labels.dim() == 2 and labels.shape[1] == 1 and not _is_inexact(labels):
        labels = labels.squeeze(1)
    if labels.shape == (n,) and labels.dtype == torch.int64:
        return labels
    if labels.shape == (n,) and not _is_inexact(labels) and labels.dtype != torch.bool:
        return labels.long()
    if labels.dim() == 2 and len(labels) == n and labels.shape[1] > 1:
        if labels.dtype == torch.bool:
            return labels
        if bool(((labels == 0) | (labels == 1)).all()):
            return labels.bool()
        raise ValueError(f"labels of [N, {labels.shape[1]}] must be 0 and 1, got {labels.min()} … {labels.max()}")
    raise ValueError(
        f"labels must be [N={n}] int64, or [N={n}, J] of 0 and 1, got {list(labels.shape)} of {labels.dtype}"
    )


def _check_masks(masks: object, images: Tensor) -> None:
    check_tensor("masks", masks)
    assert isinstance(masks, Tensor)
    n, _, height, width = images.shape
    fits = masks.dim() == 4 and (len(masks), *masks.shape[2:]) == (n, height, width) and masks.shape[1] > 0
    if not fits or masks.dtype != torch.bool:
        raise ValueError(
            f"masks must be [N={n}, J, H={height}, W={width}] bool, got {list(masks.shape)} of {masks.dtype}"
        )


def labels_of(masks: Tensor) -> Tensor:
    """Return which classes an image shows anywhere, as :class:`Images` takes it.

    Args:
        masks: ``[N, J, H, W]`` bool.

    Returns:
        ``[N, J]`` bool; of a single class its number, ``[N]`` zeros, as there is nothing to tell apart.
    """
    if masks.shape[1] == 1:
        return torch.zeros(len(masks), dtype=torch.int64, device=masks.device)
    return masks.flatten(2).any(dim=2)


def _is_inexact(labels: Tensor) -> bool:
    return labels.is_floating_point() or labels.is_complex()


def _at(images: Tensor, index: Tensor | slice) -> Tensor:
    """Index images; those of uint16, which few devices' kernels know, as if they were signed."""
    if images.dtype == torch.uint16:
        return images.view(torch.int16)[index].view(torch.uint16)
    return images[index]


def all_finite(images: Tensor) -> bool:
    """Return whether there is no NaN and no infinity among the pixels."""
    if not images.is_floating_point():
        return True
    return all(bool(part.isfinite().all()) for part in images.split(1000))  # of all at once it takes a quarter more


def to_float(images: Tensor) -> Tensor:
    """Convert uint8 0 … 255 and uint16 0 … 65535 to float32 0 … 1; float32 stays as it is.

    Raises:
        ValueError: no tensor, or another dtype.

    Example:
        >>> import torch
        >>> to_float(torch.tensor([0, 255], dtype=torch.uint8))
        tensor([0., 1.])
    """
    check_tensor("images", images)
    if images.dtype not in _DTYPES:
        raise ValueError(f"images must be uint8, uint16 or float32, got {images.dtype}")
    if images.dtype == torch.uint16:
        return (images.view(torch.int16).int() & 65535).float() / 65535
    return images if images.dtype == torch.float32 else images.float() / 255


def resized(images: Tensor, size: tuple[int, int] | None) -> Tensor:
    """Smoothly resize images ``[N, C, H, W]`` of any dtype of :class:`Images` to (height, width); None leaves them."""
    if size is None or tuple(images.shape[2:]) == tuple(size):
        return images
    found = torch.empty(*images.shape[:2], *size, dtype=images.dtype, device=images.device)
    most = {torch.uint8: 255, torch.uint16: 65535}.get(images.dtype)
    for part, to in zip(images.split(1000), found.split(1000), strict=True):  # as floats all at once may not fit
        smooth = F.interpolate(part.float(), size=tuple(size), mode="bicubic", align_corners=False, antialias=True)
        to.copy_(smooth if most is None else smooth.round().clamp(0, most))
    return found


def keep_back(every: Images, n: int, seed: int) -> tuple[Images, Images]:
    """Part images in a fixed random order into all but n of them, to train on, and those n, to validate on."""
    order = fixed_order(len(every), seed)
    return every.take(order[n:]), every.take(order[:n])


def numbered_classes(parts: Iterable[Images]) -> tuple[str, ...]:
    """Name classes by their numbers, as many as the labels of all parts need."""
    parts = list(parts)
    if parts[0].several_labels:
        return tuple(map(str, range(parts[0].labels.shape[1])))
    return tuple(map(str, range(1 + max(int(part.labels.max()) for part in parts))))


def keep_a_tenth(every: Images) -> tuple[Images, Images]:
    """Part images into those to train on, and a tenth to validate on, picked once."""
    return keep_back(every, len(every) // 10, seed=0)


def fixed_order(n: int, seed: int) -> Tensor:
    """Draw a permutation of 0 … n − 1 that is the same on every machine."""
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed), device="cpu")


def _sorted(order: object) -> list[int] | None:
    """Return the numbers of an order in their order, None of what is none."""
    numbered = isinstance(order, tuple | list) and all(isinstance(each, int) for each in order)
    return sorted(order) if numbered else None  # type: ignore[type-var, arg-type]
