"""One image file: what it shows, as cameras and tools write it, and a digest of that."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from torchcaps.checks import check_at_least, check_choice
from torchcaps.data.dicom import read_dicom
from torchcaps.data.medical import Window, check_window, is_dicom

if TYPE_CHECKING:
    from PIL import Image

#: What happens to a file of several pictures: it is refused, or its first picture is taken.
Frames = Literal["one", "first"]
FRAMES = get_args(Frames)

#: EXIF's number for how the camera was held.
_ORIENTATION = 0x0112
#: Of a TIFF: whether a page is a smaller copy, bits of each channel, what its greys mean, whether its channels lie one
#: behind the other (2), and whether its numbers are signed (2).
_SUBFILE, _BITS, _PHOTOMETRIC, _PLANAR, _SAMPLES = 254, 258, 262, 284, 339
#: White in 16 bits.
_WHITE = 65535


class Shown(NamedTuple):
    """Hold what a file shows.

    Attributes:
        pixels: ``[C, H, W]`` uint8.
        digest: a number drawn from the content, the same for copies with other metadata (of PNG, BMP and JPEG).
        brightest: the largest value of a file of 16 bits, on the scale of 65535; None for one of 8 bits.
    """

    pixels: Tensor
    digest: bytes
    brightest: int | None


class _OfTheFile(ValueError):
    """Say what is wrong with which file."""


def read_image(
    path: Path,
    size: tuple[int, int],
    channels: int = 3,
    *,
    max_value: int | None = None,
    frames: Frames = "one",
    window: Window = None,
) -> Tensor:
    """Read one image as ``[C, H, W]`` uint8, resized to (height, width); transparency becomes white.

    Args:
        path: the file.
        size: (height, width).
        channels: 3 for colour, 1 for grey.
        max_value: the value that is white in files of grey with more than 8 bits, such as 4095 where 12 bits lie in 16;
            by default 65535 of 16 bits.
        frames: "one" refuses files of several pictures, "first" takes the first.
        window: the values of a DICOM file that are shown (:func:`~torchcaps.data.dicom.read_dicom`).

    Raises:
        ValueError: the file is missing, not an image, of several pictures, brighter than ``max_value``, or one of
            which is not known what is white (floats and 32 bits without ``max_value``).
    """
    if is_dicom(path):
        return as_pixels(read_dicom(path, window, first=frames == "first")[0], size, channels)
    with opened(path) as file:
        return _pixels(path, file, size, channels, max_value, frames)[0]


def read_shown(
    path: Path,
    size: tuple[int, int],
    *,
    max_value: int | None = None,
    frames: Frames = "one",
    window: Window = None,
) -> Shown:
    """Read one image in colour with its digest; arguments and errors are those of :func:`read_image`."""
    if is_dicom(path):
        picture, digest = read_dicom(path, window, first=frames == "first")
        return Shown(as_pixels(picture, size, 3), digest, None)
    with opened(path) as file:
        pixels, brightest = _pixels(path, file, size, 3, max_value, frames)
        return Shown(pixels, hashlib.sha256(_content(path, file)).digest(), brightest)


def as_pixels(picture: np.ndarray | Image.Image, size: tuple[int, int], channels: int) -> Tensor:
    """Return a picture of 8 bits ``[H, W]`` or ``[H, W, 3]`` as ``[C, H, W]`` uint8, resized to (height, width)."""
    from PIL import Image

    image = Image.fromarray(picture) if isinstance(picture, np.ndarray) else picture
    resized = image.convert("RGB" if channels == 3 else "L").resize((size[1], size[0]), Image.Resampling.BICUBIC)
    return torch.from_numpy(np.array(resized)).view(*size, channels).permute(2, 0, 1)


def check_reading(max_value: object, frames: object, window: object = None) -> None:
    """Refuse options of :func:`read_image` that are none.

    Raises:
        ValueError: ``max_value`` is no integer above 0, ``frames`` is unknown, or ``window`` is none.
    """
    check_window(window)
    if max_value is not None:
        check_at_least("data.options.max_value", max_value, 1)  # type: ignore[arg-type]
    check_choice("data.options.frames", frames, FRAMES)


def _pixels(
    path: Path, file: Image.Image, size: tuple[int, int], channels: int, max_value: int | None, frames: Frames
) -> tuple[Tensor, int | None]:
    n = _n_pictures(file)
    if n > 1 and frames == "one":
        raise _OfTheFile(
            f"{path} must hold one picture, got {n}: save each as a file, or data.options.frames=first takes the first"
        )
    is_deep = _is_deep_colour(file)  # asked first: Pillow forgets it as it decodes
    _refuse_misread(path, file, is_deep=is_deep)
    if is_deep and max_value is not None:  # of 12 bits in 16, Pillow leaves four
        raise _OfTheFile(f"{path} must be grey for data.options.max_value, got colours of 16 bits a channel")
    image, brightest = _in_8_bits(path, file, upright(file), max_value)
    if is_deep:
        brightest = _WHITE // 255 * _brightest(image)
    return as_pixels(without_transparency(image), size, channels), brightest


def without_transparency(image: Image.Image) -> Image.Image:
    """Lay an image on white; grey stays grey, of 16 bits too, and all else becomes RGB."""
    from PIL import Image

    if image.has_transparency_data:
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
    if image.mode in ("L", "F", "I") or image.mode.startswith("I;16"):
        return image
    return image.convert("L" if image.mode == "1" else "RGB")


def _refuse_misread(path: Path, file: Image.Image, *, is_deep: bool) -> None:
    """Refuse a TIFF that Pillow reads as other numbers than it holds (findings/pillow-tiff-planar.sh)."""
    tags = getattr(file, "tag_v2", {})
    if is_deep and tags.get(_PLANAR) == 2:
        raise _OfTheFile(f"{path} must have its 16-bit channels pixel by pixel, got them one behind the other (planar)")
    if 2 in tags.get(_SAMPLES, ()) and tags.get(_BITS, (1,))[0] == 8:
        raise _OfTheFile(f"{path} must have 8-bit values 0 … 255, got signed ones, −128 … 127")


def _n_pictures(file: Image.Image) -> int:
    """Count the pictures that a file holds of their own, and turn to the first.

    Smaller copies for a preview, and a stereo photo's right, are none.

    (Pillow counts a TIFF's previews.)
    """
    n = getattr(file, "n_frames", 1)
    if file.format == "MPO" or n == 1:
        return 1
    if file.format == "TIFF":
        own = []
        for k in range(n):
            file.seek(k)
            own += [] if file.tag_v2.get(_SUBFILE, 0) & 1 else [k]  # type: ignore[attr-defined]
        file.seek(own[0] if own else 0)
        return len(own)
    file.seek(0)
    return n


def _in_8_bits(
    path: Path, file: Image.Image, image: Image.Image, max_value: int | None
) -> tuple[Image.Image, int | None]:
    """Return the image with 8 bits a channel, and its brightest value of 16 bits."""
    from PIL import Image

    if image.mode in ("I", "F"):
        if max_value is None:
            raise _OfTheFile(
                f"{path} must have 8 or 16 bits a channel, got Pillow's mode {image.mode}: data.options.max_value says "
                "what is white"
            )
        return Image.fromarray(_scaled(path, np.array(image), max_value)), None
    if image.mode.startswith("I;16"):  # Pillow would clip all 16-bit greys above 255
        grey, clear = np.array(image), image.info.get("transparency")
        bits, black_is_zero = _of_a_tiff(file)
        eight = grey >> (bits - 8) if max_value is None else _scaled(path, grey, max_value)
        eight = eight if black_is_zero else 255 - eight
        image = Image.fromarray(np.where(grey == clear, 255, eight).astype(np.uint8))
        return image, int(grey.max()) if bits == 16 and black_is_zero else None
    return image, None


def _brightest(image: Image.Image) -> int:
    """Return the largest value of its colours, which are of 8 bits by now."""
    return int(np.array(image.convert("RGBA"))[..., :3].max())


def _scaled(path: Path, values: np.ndarray, max_value: int) -> np.ndarray:
    """Scale values 0 … ``max_value`` to uint8 0 … 255."""
    least, most = values.min(), values.max()
    if not (least >= 0 and most <= max_value):  # NaN too
        raise _OfTheFile(f"{path} must hold 0 … {max_value}, as data.options.max_value says; got {least} … {most}")
    return (values.astype(np.float64) * (255 / max_value)).round().astype(np.uint8)


def _is_deep_colour(file: Image.Image) -> bool:
    """Return whether a file has 16 bits for each of several channels, of which Pillow keeps the upper 8."""
    if file.format == "PNG":
        return any(tile[3] in ("RGB;16B", "RGBA;16B", "LA;16B") for tile in getattr(file, "tile", ()))
    bits = getattr(file, "tag_v2", {}).get(_BITS, (8,))
    return len(bits) > 1 and bits[0] == 16


def _of_a_tiff(file: Image.Image) -> tuple[int, bool]:
    """Bits of a grey, and whether 0 is black; Pillow reads 12 bits as if they were the lowest of 16, and white as 0."""
    tags = getattr(file, "tag_v2", {})
    return tags.get(_BITS, (16,))[0], tags.get(_PHOTOMETRIC, 1) != 0


def _content(path: Path, image: Image.Image) -> bytes:
    """Return what a viewer that adds a rating leaves alone.

    Of a JPEG these are not its pixels, which other decoders round otherwise.
    """
    if image.format in ("JPEG", "MPO"):
        return _without_metadata(path.read_bytes())
    if image.format in ("PNG", "BMP"):
        flat = image.convert("RGBA") if image.mode == "P" else image
        return f"{flat.mode} {flat.width}×{flat.height} ".encode() + flat.tobytes()
    return path.read_bytes()


def _without_metadata(jpeg: bytes) -> bytes:
    """Strip a JPEG file of its segments for applications (EXIF, colour profiles, previews) and comments."""
    kept, at = [], 2
    while at + 4 <= len(jpeg) and jpeg[at] == 0xFF and jpeg[at + 1] != 0xDA:  # up to the scan
        if jpeg[at + 1] == 0xFF:  # before a marker any number of these may stand
            at += 1
            continue
        end = at + 2 + int.from_bytes(jpeg[at + 2 : at + 4])
        if not 0xE0 <= jpeg[at + 1] <= 0xEF and jpeg[at + 1] != 0xFE:
            kept.append(jpeg[at:end])
        at = end
    return b"".join(kept) + jpeg[at:]


def upright(image: Image.Image) -> Image.Image:
    """Turn an image as its camera was held.

    (Pillow's ``exif_transpose`` writes all of EXIF anew, and fails where a tag is odd.)
    """
    from PIL import Image

    image.load()  # a TIFF is turned by that, and then no longer says that it wants to be
    turn = Image.Transpose
    turns = (turn.FLIP_LEFT_RIGHT, turn.ROTATE_180, turn.FLIP_TOP_BOTTOM, turn.TRANSPOSE)
    turns = dict(enumerate((*turns, turn.ROTATE_270, turn.TRANSVERSE, turn.ROTATE_90), 2))
    orientation = orientation_of(image)
    return image.transpose(turns[orientation]) if orientation in turns else image


def orientation_of(image: Image.Image) -> int | None:
    """Return EXIF's number for how the camera was held, 1 … 8, or None where it is not said."""
    return image.getexif().get(_ORIENTATION)


@contextmanager
def opened(path: Path) -> Iterator[Image.Image]:
    """Open an image while it is read: whatever is broken in it is named."""
    from PIL import Image, UnidentifiedImageError

    try:
        # Opened here: a file that Pillow opens itself it may map into memory, and then turns an oblong TIFF wrongly.
        with path.open("rb") as raw, Image.open(raw) as file:
            yield file
    except (_OfTheFile, MemoryError):
        raise
    except UnidentifiedImageError as error:  # whose text names the open file once more
        what = "its format is not known" if path.stat().st_size else "it is empty"
        raise ValueError(f"{path} cannot be read as an image: {what}") from error
    except Exception as error:  # Pillow raises whatever the broken bytes lead it to: TypeError, IndexError, …
        raise ValueError(f"{path} cannot be read as an image: {error}") from error
