"""affine-MNIST: pixels that are the same everywhere, by digits small enough to work out."""

from __future__ import annotations

import hashlib
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from study.data import affine_mnist
from study.data.affine_mnist import SHA256, uniform, variants
from torchcaps.data import Images, load


def blobs(n: int = 12) -> np.ndarray:
    """Images of noise with black around it, of various sizes of ink."""
    random = np.random.PCG64(7)
    digits = np.zeros((n, 28, 28), np.uint8)
    for k in range(n):
        noise = (uniform(random, (20, 20)) * 255).astype(np.uint8) + 1
        digits[k, 4 : 24 - k, 4 + k // 2 : 24] = noise[: 20 - k, k // 2 :]
    return digits


def drawn(n: int) -> np.ndarray:
    return uniform(np.random.PCG64(3), (n, 6))


def test_no_change_puts_the_ink_in_the_middle() -> None:
    digits = np.zeros((1, 28, 28), np.uint8)
    digits[0, 4:8, 5:11] = np.arange(1, 25).reshape(4, 6)
    middle = variants(digits, np.full((1, 6), 0.5))[0]
    assert middle[18:22, 17:23].tolist() == digits[0, 4:8, 5:11].tolist()
    assert middle.sum() == digits.sum()


def test_the_largest_shift_leaves_all_ink_on_the_canvas() -> None:
    digits = np.zeros((1, 28, 28), np.uint8)
    digits[0, 4:8, 5:11] = np.arange(1, 25).reshape(4, 6)
    corner = variants(digits, np.array([[0.5, 0.5, 0.5, 0.5, 0, 1.0]]))[0]
    # A pixel of the edge stays free: interpolation could have spread ink to it.
    assert corner[35:39, 1:7].tolist() == digits[0, 4:8, 5:11].tolist() and corner.sum() == digits.sum()


def test_each_draw_does_what_it_is_named_for() -> None:
    """By the moments of a bar's ink, upright, 8 wide and 16 long; rotation is clockwise as seen, y pointing down."""
    bar = np.zeros((1, 28, 28), np.uint8)
    bar[0, 6:22, 10:18] = 255

    def moments(**of: float) -> tuple[float, float, float]:
        draws = [of.get(name, 0.5) for name in ("rotation", "shear", "width", "height", "x", "y")]
        ink = variants(bar, np.array([draws]))[0].astype(np.float64)
        y, x = np.mgrid[:40, :40] - 19.5
        return tuple((ink * m).sum() / ink.sum() for m in (x * x, x * y, y * y))  # type: ignore[return-value]

    xx, xy, yy = moments()
    assert xy == pytest.approx(0, abs=1e-9) and yy == pytest.approx(255 / 12, rel=0.01)
    assert moments(width=1.0)[0] == pytest.approx(xx * 1.2**2, rel=0.06)
    assert moments(width=1.0)[2] == pytest.approx(yy, rel=0.01)
    assert moments(height=0.0)[2] == pytest.approx(yy * 0.8**2, rel=0.02)
    assert moments(shear=1.0)[1] == pytest.approx(0.2 * yy, rel=0.02)
    assert moments(shear=1.0)[2] == pytest.approx(yy, rel=0.01)
    angle = np.radians(20)
    assert moments(rotation=1.0)[1] == pytest.approx((xx - yy) * np.sin(angle) * np.cos(angle), rel=0.03)


def test_as_torch_interpolates() -> None:
    """The same map by affine_grid and grid_sample; only roundings at the half may differ."""
    digits, draws = blobs(), drawn(12)
    draws[:, 4:] = 0.5  # in the middle, where the map needs no room
    swing = 2 * torch.from_numpy(draws) - 1
    angle, lean = torch.deg2rad(20 * swing[:, 0]), 0.2 * swing[:, 1]
    zero, one = torch.zeros(12), torch.ones(12)

    def matrix(*rows: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return torch.stack([torch.stack([value.double() for value in row], dim=1) for row in rows], dim=1)

    turn = matrix((angle.cos(), -angle.sin()), (angle.sin(), angle.cos()))
    size = matrix((1 + 0.2 * swing[:, 2], zero), (zero, 1 + 0.2 * swing[:, 3]))
    back = (turn @ matrix((one, lean), (zero, one)) @ size).inverse() * 40 / 28
    ends = [[(int(d.any(axis).argmax()), int(28 - d.any(axis)[::-1].argmax())) for axis in (0, 1)] for d in digits]
    centre = (torch.tensor(ends).double().mean(dim=2) - 14) / 14  # [12, 2] in half images
    grid = F.affine_grid(torch.cat((back, centre[:, :, None]), dim=2), [12, 1, 40, 40], align_corners=False)
    wanted = F.grid_sample(torch.from_numpy(digits).double()[:, None], grid, align_corners=False)[:, 0]
    difference = torch.from_numpy(variants(digits, draws)).double() - wanted
    assert difference.abs().max() <= 0.5 + 1e-6


def test_all_ink_stays() -> None:
    """However it is turned: twenty pixels of ink are the most that MNIST has."""
    digits = np.zeros((64, 28, 28), np.uint8)
    digits[:, 4:24, 4:24] = 255
    corners = np.array(np.meshgrid(*[[0.0, 1.0]] * 6)).reshape(6, 64).T
    made = variants(digits, corners)
    edge = np.ones((40, 40), bool)
    edge[1:-1, 1:-1] = False
    assert not made[:, edge].any()
    area = made.reshape(64, -1).sum(axis=1) / (255 * 400)
    np.testing.assert_allclose(
        area, (1 + 0.2 * (2 * corners[:, 2] - 1)) * (1 + 0.2 * (2 * corners[:, 3] - 1)), rtol=0.01
    )


def test_the_generator_is_frozen() -> None:
    """These numbers stand for the 320,000 images: if they change, so do those."""
    assert uniform(np.random.PCG64(0), (1, 2)).tolist() == [[0.6369616873214543, 0.2697867137638703]]
    made = variants(blobs(), drawn(12))
    assert (
        hashlib.sha256(made.tobytes()).hexdigest() == "9ffa91d8a27a8bcdca12875745ce9918bd1eccf006549bf5ba88681376093d8a"
    )


@pytest.fixture
def digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Images:
    """Digits with an empty cache; what is made of them has the recorded checksum, once it was refused for another."""
    monkeypatch.setenv("TORCHCAPS_DATA", str(tmp_path))
    digits = Images(torch.from_numpy(blobs())[:, None], torch.arange(12) % 10)
    with pytest.raises(ValueError, match=f"must have the sha256 {SHA256}, but what was made has ([0-9a-f]+)") as error:
        affine_mnist.affine_mnist(digits)
    assert not list((tmp_path / "affine-mnist").glob("*.partial")) + list((tmp_path / "affine-mnist").glob("*.bin"))
    monkeypatch.setattr(affine_mnist, "SHA256", str(error.value).split()[-1])
    return digits


def test_made_once_and_kept(digits: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = affine_mnist.affine_mnist(digits)
    assert made.images.shape == (32 * 12, 1, 40, 40) and made.labels.tolist() == [*range(10), 0, 1] * 32
    again = affine_mnist.variants(blobs(), uniform(np.random.PCG64(0), (12, 6)))
    assert torch.equal(made.images[:12, 0], torch.from_numpy(again))
    (path,) = (tmp_path / "affine-mnist").glob("*.bin")
    monkeypatch.setattr(affine_mnist, "variants", None)  # it is not made again
    monkeypatch.setattr("filelock.FileLock", None)  # nor is anything written, which a shared cache may forbid
    assert torch.equal(affine_mnist.affine_mnist(digits).images, made.images)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match="must have the sha256 .* it is damaged or another file"):
        affine_mnist.affine_mnist(digits)


def test_other_digits_do_not_get_what_was_made_of_these(digits: Images) -> None:
    affine_mnist.affine_mnist(digits)
    other = Images(digits.images.flip(0), digits.labels)
    with pytest.raises(ValueError, match="but what was made has"):
        affine_mnist.affine_mnist(other)


def test_made_once_by_two_at_a_time(digits: Images, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever comes second waits for the first: of one process, or of two that think they have the same number."""
    made: list[int] = []

    def slow(digits: np.ndarray, draws: np.ndarray) -> np.ndarray:
        made.append(1)
        time.sleep(0.005)
        return variants(digits, draws)

    monkeypatch.setattr(affine_mnist, "variants", slow)
    with ThreadPoolExecutor() as pool:
        one, two = pool.map(affine_mnist.affine_mnist, (digits, digits))
    assert torch.equal(one.images, two.images) and len(made) == 32


def test_the_chunks_do_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for chunk in (5, 200):
        monkeypatch.setattr(affine_mnist, "_CHUNK", chunk)
        with pytest.raises(ValueError) as error:
            affine_mnist._make(tmp_path / "a", blobs())
        found.append(str(error.value))
    assert found[0] == found[1]


def test_the_first_images_of_the_real_ones(shared_mnist: Path) -> None:
    """The whole takes minutes to make; its first thousand are checked here, by their own checksum."""
    digits = load("mnist", shared_mnist).test.images[:1000, 0].numpy()
    made = variants(digits, uniform(np.random.PCG64(affine_mnist.SEED), (1000, 6)))
    assert (
        hashlib.sha256(made.tobytes()).hexdigest() == "41e71d422dc02bef5840b68f835e94ba3842a2a63697a52f04eda385bab8d1f5"
    )
