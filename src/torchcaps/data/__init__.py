"""Readers and makers of image tensors. Knows no model.

``load("mnist", root=None)`` gives a :class:`~torchcaps.data.images.Dataset` with fixed splits; any
of :data:`DATASETS` or, by ``load("folder", root=…)``, a folder of images (``"mask-folder"``: with masks).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from torchcaps.checks import check_choice, check_two
from torchcaps.data.arrays import load_arrays
from torchcaps.data.cifar10 import load_cifar10
from torchcaps.data.cifar100 import load_cifar100
from torchcaps.data.digit_masks import load_digit_masks
from torchcaps.data.digits import load_digits
from torchcaps.data.emnist import load_emnist, load_qmnist
from torchcaps.data.folder import load_folder
from torchcaps.data.images import Dataset, Images, to_float
from torchcaps.data.mask_folder import load_mask_folder
from torchcaps.data.medmnist import load_medmnist
from torchcaps.data.mnist import load_fashion_mnist, load_kmnist, load_mnist
from torchcaps.data.pairs import Pairs
from torchcaps.data.smallnorb import load_smallnorb
from torchcaps.data.svhn import load_svhn
from torchcaps.data.torch_dataset import from_torch
from torchcaps.data.transformed import Limits, transformed_pairs
from torchcaps.typed import typed

#: Every data set, by name. Each takes ``root`` (the folder of its files, None for the cache) and
#: ``image_size`` (None, or what to resize to where the data set allows it); some take options of their own.
DATASETS: dict[str, Callable[..., Dataset]] = {
    "arrays": load_arrays,
    "cifar10": load_cifar10,
    "cifar100": load_cifar100,
    "digit-masks": load_digit_masks,
    "digits": load_digits,
    "emnist": load_emnist,
    "fashion-mnist": load_fashion_mnist,
    "folder": load_folder,
    "kmnist": load_kmnist,
    "mask-folder": load_mask_folder,
    "medmnist": load_medmnist,
    "mnist": load_mnist,
    "qmnist": load_qmnist,
    "smallnorb": load_smallnorb,
    "svhn": load_svhn,
}

#: The same wherever their files lie; of others a folder holds one form or another, or what is anyone's own.
SAME_EVERYWHERE = {"digit-masks", "digits", "fashion-mnist", "kmnist", "medmnist", "mnist", "qmnist", "svhn"}
#: Made on the spot, or brought by a package.
NO_FILES = {"digit-masks", "digits"}


#: What the extra "train" brings of what data sets need, as it is imported.
_EXTRA = ("PIL", "filelock", "pooch", "scipy", "sklearn", "tqdm")


def load(
    name: str, root: str | Path | None = None, image_size: tuple[int, int] | None = None, **options: Any
) -> Dataset:
    """Load a data set by name.

    Args:
        name: one of :data:`DATASETS`.
        root: a folder that has the files already. Without it they are downloaded into the cache
            (``$TORCHCAPS_DATA``, by default ``~/.cache/torchcaps``).
        image_size: (height, width) to resize to; by default the data set's own size, and 28×28 for a folder.
        options: as the data set's own function says.

    Raises:
        ValueError: an unknown name or option, no such size; files missing, broken or with a wrong checksum; ``root``
            for data that have no files; a function of one's own that takes or returns something else.
        ModuleNotFoundError: a package that the extra ``train`` brings is not installed.

    Example:
        >>> digits = load("digits")
        >>> len(digits.train), digits.image_shape, digits.classes[:3]
        (1257, (1, 28, 28), ('0', '1', '2'))
    """
    check_choice("data.name", name, DATASETS)
    taken = inspect.signature(DATASETS[name]).parameters
    anything = any(each.kind is each.VAR_KEYWORD for each in taken.values())
    missing = [each for each in ("root", "image_size") if not anything and each not in taken]
    if missing:  # of somebody's own
        raise ValueError(f"DATASETS[{name!r}] must take root and image_size, got a function without {missing[0]}")
    known = [option for option in taken if option not in ("root", "image_size")]
    unknown = [option for option in options if not anything and option not in known]
    if unknown:
        wanted = f"be among {', '.join(known)}" if known else "be empty"
        raise ValueError(f"data.options of {name} must {wanted}; got {', '.join(unknown)}")
    if image_size is not None:
        check_two("data.image_size", image_size, 1)
    if root is not None and name in NO_FILES:  # who names one has other data in mind
        raise ValueError(f"data.root must be left alone for {name}, which has no files; got {root}")
    # Whatever torch.set_default_device says; and one's own that draws its splits draws the same ones every time.
    with torch.device("cpu"), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)  # torch.manual_seed would seed GPUs too
        try:
            found = DATASETS[name](
                root=None if root is None else Path(root).expanduser(), image_size=image_size, **options
            )
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in _EXTRA:  # somebody's own
                raise
            said = f"{name} needs {error.name}, which the extra 'train' brings: see Install in README"
            raise ModuleNotFoundError(said, name=error.name) from error
    if not isinstance(found, Dataset):
        raise ValueError(f"DATASETS[{name!r}] must return a Dataset, got a {type(found).__name__}")
    return found


@typed
def register(name: str, reader: Callable[..., Dataset], *, same_everywhere: bool = False, files: bool = True) -> None:
    """Enter a data set of your own, which experiments then take by its name.

    Args:
        name: Its name.
        reader: Takes ``root`` and ``image_size``, and options of its own; returns a :class:`Dataset`.
        same_everywhere: It is the same wherever its files lie, so that runs on it may be compared.
        files: It is read from files, so that a ``root`` means something.

    Raises:
        ValueError: Another data set has this name.
    """
    if DATASETS.get(name, reader) is not reader:
        raise ValueError(f"name must be new, got {name!r}, which is {DATASETS[name].__name__}")
    DATASETS[name] = reader
    if same_everywhere:
        SAME_EVERYWHERE.add(name)
    if not files:
        NO_FILES.add(name)


__all__ = [
    "DATASETS",
    "Dataset",
    "Images",
    "Limits",
    "Pairs",
    "from_torch",
    "load",
    "register",
    "to_float",
    "transformed_pairs",
]
