"""Which toys and viewpoints of small NORB are trained, validated and tested on.

small NORB in its official files, or at half its size in ``.npz`` files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from torchcaps.checks import check_at_least, check_choice
from torchcaps.data.binary_matrix import read_matrix
from torchcaps.data.files import require
from torchcaps.data.images import Dataset, Images, fixed_order, resized

#: The toys (instances) of each category in the two official halves.
TOYS = {"train": (4, 6, 7, 8, 9), "test": (0, 1, 2, 3, 5)}

#: Toys of the test half that test where the others train: three splits, every toy at least once.
FOLDS = ((0, 1), (2, 3), (0, 5))

#: What is trained on of each viewpoint: azimuths in units of 10 degrees (300, 320, 340, 0, 20, 40
#: degrees; the others are 60 … 280), and the lowest of the nine elevations.
FAMILIAR = {"azimuth": (30, 32, 34, 0, 2, 4), "elevation": (0, 1, 2)}

SPLITS = ("official", *FAMILIAR)

#: Of the order of the training images, which in the files is that of toys and viewpoints.
SPLIT_SEED = 0


@dataclass(frozen=True)
class Plan:
    """A split, before any image is read.

    Attributes:
        view: "azimuth" or "elevation", of which :data:`FAMILIAR` alone is trained on; None for all.
        halves: the official halves that train and that test.
        train: toys of each category that are trained on.
        val: the toy of each category that validates.
        test: toys of each category that are tested on.
    """

    view: str | None
    halves: tuple[str, str]
    train: tuple[int, ...]
    val: int
    test: tuple[int, ...]

    @property
    def held_out(self) -> bool:
        """Return whether the toy that validates is kept from training."""
        return self.val not in self.train

    @property
    def note(self) -> str:
        """Say the split in words."""
        view = self.view or "official"
        where = " within the test half" if self.halves[0] == self.halves[1] else ""
        seen = "" if self.held_out else ", which is trained on too"
        return (
            f"{view} split{where}: toys {', '.join(map(str, self.train))} of each category train, "
            f"{self.val} validates{seen}, {', '.join(map(str, self.test))} test"
        )


def plan(split: str, val_toy: int | str | None, fold: int | None, *, posed: bool) -> Plan:
    """Choose the toys.

    Args:
        split: one of :data:`SPLITS`.
        val_toy: the toy that validates and is not trained on; "first" of the toys at hand; None to train
            on all of them, where the first validates though it was trained on.
        fold: a split by viewpoint within the test half, one of :data:`FOLDS`; None for the official
            halves, whose training half must have viewpoints then.
        posed: whether it has.

    Raises:
        ValueError: an argument that is none of these, a fold of the official split, or no viewpoints without one.
    """
    check_choice("split", split, SPLITS)
    if fold is not None:
        check_at_least("fold", fold, 0)
        check_choice("fold", fold, range(len(FOLDS)))
        if split == "official":
            raise ValueError(f"fold must be None for the official split, got {fold}")
    if split != "official" and not posed and fold is None:
        raise ValueError(
            "fold must be 0, 1 or 2 for a split by viewpoint where the training half has no viewpoints, as in .npz "
            "files; got None"
        )
    halves = ("train", "test") if fold is None else ("test", "test")
    test = TOYS["test"] if fold is None else FOLDS[fold]
    toys = tuple(toy for toy in TOYS[halves[0]] if halves[0] == "train" or toy not in test)
    check_choice("val_toy", val_toy, (*toys, "first", None))
    val = toys[0] if val_toy in ("first", None) else int(val_toy)
    train = toys if val_toy is None else tuple(toy for toy in toys if toy != val)
    return Plan(None if split == "official" else split, halves, train, val, test)


def divide(plan: Plan, halves: dict[str, Images]) -> dict[str, Images]:
    """Return the images of each split.

    Args:
        plan: as :func:`plan` made it.
        halves: the official halves that the plan names, with the factors ``instance`` and, for a
            split by viewpoint, that one.

    Returns:
        train in a fixed random order; val; test, of familiar viewpoints where there is a choice; and
        with a choice novel, the tested toys from the other viewpoints.
    """

    def part(half: str, toys: tuple[int, ...], familiar: bool = True) -> Images:
        images = halves[half]
        chosen = torch.isin(images.factors["instance"], torch.tensor(toys))
        if plan.view is not None:
            chosen &= torch.isin(images.factors[plan.view], torch.tensor(FAMILIAR[plan.view])) == familiar
        return images.take(chosen)

    trains, tests = plan.halves
    train = part(trains, plan.train)
    made = {
        "train": train.take(fixed_order(len(train), SPLIT_SEED)),
        "val": part(trains, (plan.val,)),
        "test": part(tests, plan.test),
    }
    return made if plan.view is None else made | {"novel": part(tests, plan.test, familiar=False)}


CLASSES = ("animal", "human", "airplane", "truck", "car")

#: Which cameras' images are the channels, in this order.
EYES = {"left": ("left",), "right": ("right",), "both": ("left", "right")}

#: Images in each half.
N_IMAGES = 24_300

_ADDRESS = "https://cs.nyu.edu/~ylclab/data/norb-v1.0-small/"
_STEMS = {
    "train": "smallnorb-5x46789x9x18x6x2x96x96-training",
    "test": "smallnorb-5x01235x9x18x6x2x96x96-testing",
}
#: Of the gzipped files, as tensorflow/datasets publishes them (url_checksums/smallnorb.txt).
_GZIPPED = {
    ("train", "dat"): "5ffd6272a07d32695ee1082a26a41a93a37aab8c28da047f8c34ed348d214873",
    ("train", "cat"): "2784e542c1922060691090952b6cd6278879a216c90f81476f0f00256d42cdaa",
    ("train", "info"): "de7eb932ebe7a4ee16217fead60660d0eb3d23632c2f4d1c51f88c501c17bf32",
    ("test", "dat"): "cf7104eed3e51174d2f65b66d1e5878b9da233b886f161b0d88f4510ba2c7474",
    ("test", "cat"): "ecaf6d5bb8c3bc5eab9cf0258f6d2198dd474e016e374836fc097f2e5ff509ff",
    ("test", "info"): "16adf314226327ee006d1a44db8cfef52773c06c829951d5653a9f6f310248a2",
}
#: Of the content. The images' is not known: a ``.mat`` of them that is not gzipped is known by its sizes alone.
_SHA256 = {
    ("train", "cat"): "591ed90c090cb6724593e8de28180bd602095ee8ec82bd1a5ca30b488cd1d06e",
    ("train", "info"): "6b4075d3800ba0c6fa8c46a02f672572abe7b93f7ed82fb7668354a99ef03306",
    ("test", "cat"): "591ed90c090cb6724593e8de28180bd602095ee8ec82bd1a5ca30b488cd1d06e",
    ("test", "info"): "318f817236b7c97af03cd90e07a9cbb4346e20ef83a1118a61eeb50e3b96db7e",
}
#: Of the files of one camera and half, 48×48; the left camera's hold the labels too.
_NPZ = {
    ("train", "left"): "e16a4ff0ba31be80bcb8ed3a9a24c2a49328c6118aa450529681d933cb425e90",
    ("train", "right"): "29bcf1e4dd1c228d890f5c613316c003abccff016fc007f15c880ba92df6f0ef",
    ("test", "left"): "8867074aa3cb4313921a6ca34e3f291f8daa4afcfc79e203870a509d06760d25",
    ("test", "right"): "f677639f66877bf314acc446bd80f7a6446ca3f805ade1c3e6d145d69812c07a",
}
#: The columns of the official ``info``; elevation in steps of 5 degrees from 30, azimuth in tens of degrees.
FACTORS = ("instance", "elevation", "azimuth", "lighting")

#: Degrees of elevation 0 and azimuth 0, and degrees from one number to the next.
DEGREES = {"elevation": (30, 5), "azimuth": (0, 10)}


def load_smallnorb(
    root: Path | None = None,
    image_size: tuple[int, int] | None = None,
    *,
    eyes: str = "both",
    split: str = "official",
    val_toy: int | str | None = "first",
    fold: int | None = None,
) -> Dataset:
    """small NORB: 50 toys of 5 categories from 162 viewpoints under 6 lightings, 48×48, by one or two cameras.

    Half of the toys train (toys 4, 6, 7, 8, 9 of each category), half test (0, 1, 2, 3, 5); 24,300
    views each. The official 96×96 become 48×48 by the mean of 2×2 pixels, rounded.

    The splits by viewpoint train on a third of the azimuths or elevations; ``test`` shows other toys
    from those, ``novel`` the same ones from the rest. They need viewpoints of the images trained on, which the
    ``.npz`` form lacks in its training half: with a ``fold``, three toys of each category of the test half
    train (one of them validates, unless ``val_toy`` is None) and the other two test.
    ``Dataset.note`` says which it was.

    Args:
        root: a folder with the six official files, ``.mat.gz`` (which is preferred: it can be checked)
            or ``.mat``, or with the 48×48 ``.npz`` of the cameras asked for; None downloads the official ones.
        image_size: (height, width) to resize to; 48×48 by default, and from those unless one of the two is larger.
        eyes: "both" (two channels, left first), "left" or "right".
        split: "official"; "azimuth": trains on 300 … 40 degrees, 60 … 280 are novel; "elevation": trains on
            the 3 lowest, the 6 higher are novel.
        val_toy: the toy of each category that is kept from training to validate on; "first" of those at
            hand (4 in the official split). None trains on all of them, for a schedule that was fixed before:
            the first validates then too, but says nothing that could be chosen on.
        fold: 0, 1 or 2: a split by viewpoint within the test half, the only ones for ``.npz``.

    Raises:
        ValueError: an argument that is none of these; a file is missing, damaged, or not to be downloaded.

    Source: LeCun, Huang, Bottou 2004; splits by viewpoint: Hinton, Sabour, Frosst 2018, section 5.1.
    """
    check_choice("eyes", eyes, EYES)
    npz = root is not None and _has_npz(root)
    chosen = plan(split, val_toy, fold, posed=not npz)
    halves = {}
    for half in dict.fromkeys(chosen.halves):
        images, labels, factors = _read_npz(root, half, eyes) if npz else _read_official(root, half, eyes, image_size)
        halves[half] = Images(resized(images, image_size), labels, factors)
    note = f"{'48×48 .npz' if npz else 'official'} files, eyes: {eyes}; {chosen.note}"
    further = divide(chosen, halves)
    train, val, test = (further.pop(name) for name in ("train", "val", "test"))
    mirrored = (1, 0) if eyes == "both" else None
    return Dataset("smallnorb", CLASSES, train, val, test, further, note, chosen.held_out, mirrored)


def in_degrees(factors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the viewpoints among the factors of small NORB's images, as angles.

    Args:
        factors: as ``Images.factors`` has them, each ``[N]``.

    Returns:
        those of "elevation" (30 … 70 degrees above the ground) and "azimuth" (0 … 340) that are there.
    """
    return {name: start + step * factors[name] for name, (start, step) in DEGREES.items() if name in factors}


def _has_npz(root: Path) -> bool:
    """Return which of the two forms a folder has; the official one if it has the images of both."""
    official = [root / f"{_name(half, kind)}{end}" for half, kind in _GZIPPED for end in (".gz", "")]
    npz = [root / _npz_name(half, eye) for half, eye in _NPZ]
    if not any(path.is_file() for path in (*official, *npz)):
        raise ValueError(
            f"data.root must hold the six files {_name('train', 'dat')}.gz … or "
            f"{_npz_name('train', 'left')} …, but {root} has none of them"
        )
    images = [path for path in official if "-dat.mat" in path.name]
    return any(path.is_file() for path in npz) and not any(path.is_file() for path in images)


def _name(half: str, kind: str) -> str:
    return f"{_STEMS[half]}-{kind}.mat"


def _npz_name(half: str, eye: str) -> str:
    return f"smallnorb_{half}_48x48_{eye}.npz"


def _read_official(
    root: Path | None, half: str, eyes: str, image_size: tuple[int, int] | None
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Images ``[N, C, 48, 48]``, larger ones where such are wanted; labels and all four factors, each ``[N]``."""
    info = _read(root, half, "info", "int32", (N_IMAGES, 4))
    labels = _read(root, half, "cat", "int32", (N_IMAGES,))
    pixels = _read(root, half, "dat", "uint8", (N_IMAGES, 2, 96, 96))
    cameras = [EYES["both"].index(eye) for eye in EYES[eyes]]
    factors = {name: torch.from_numpy(info[:, k].astype(np.int64)) for k, name in enumerate(FACTORS)}
    pixels = pixels[:, cameras[0] : cameras[-1] + 1]
    enough = image_size is None or max(image_size) <= 48
    images = halved(pixels) if enough else torch.from_numpy(pixels.copy())
    return images, torch.from_numpy(labels.astype(np.int64)), factors


def _read(root: Path | None, half: str, kind: str, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    name = _name(half, kind)
    if root is not None and (root / name).is_file() and not (root / f"{name}.gz").is_file():
        path = root / name
    else:
        path = require(f"{name}.gz", _GZIPPED[half, kind], root=root, folder="smallnorb", address=_ADDRESS)
    found = read_matrix(path, _SHA256.get((half, kind)))
    if found.dtype != dtype or found.shape != shape:
        raise ValueError(f"{path} must hold {dtype} of shape {list(shape)}, got {found.dtype} of {list(found.shape)}")
    return found


def halved(pixels: np.ndarray) -> Tensor:
    """Mean of 2×2 pixels, halves rounded up: uint8 ``[N, C, 2H, 2W]`` to ``[N, C, H, W]``."""
    total = pixels[..., ::2, ::2].astype(np.uint16)
    for block in (pixels[..., ::2, 1::2], pixels[..., 1::2, ::2], pixels[..., 1::2, 1::2]):
        total += block
    return torch.from_numpy(((total + 2) >> 2).astype(np.uint8))


def _read_npz(root: Path | None, half: str, eyes: str) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Read as :func:`_read_official` does, with those factors that the files have."""
    needed = dict.fromkeys(("left", *EYES[eyes]))  # the left camera's have the labels
    files = {
        eye: require(_npz_name(half, eye), _NPZ[half, eye], root=root, folder="smallnorb", address="") for eye in needed
    }
    images = []
    for eye in EYES[eyes]:
        with np.load(files[eye]) as arrays:
            images.append(torch.from_numpy(arrays["images"]))
    with np.load(files["left"]) as arrays:
        labels, *factors = (
            torch.from_numpy(arrays[name].astype(np.int64)) for name in ("category", *FACTORS) if name in arrays
        )
        names = [name for name in FACTORS if name in arrays]
    return torch.stack(images, dim=1), labels, dict(zip(names, factors, strict=True))
