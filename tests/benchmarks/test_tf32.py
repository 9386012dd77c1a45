"""TF32 is off while results are checked, and afterwards as the caller left it, by whichever interface."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import pytest
import torch

from benchmarks.conditions import Conditions
from benchmarks.tf32 import without_tf32
from benchmarks.work import Vectors
from torchcaps.training.environment import device_in_words, tf32

NEW = hasattr(torch.backends.cudnn, "conv")


def switches() -> dict[str, object]:
    """Everything that can be read of both interfaces, or that it cannot be."""
    readers: dict[str, Callable[[], object]] = {
        "old convolutions": lambda: torch.backends.cudnn.allow_tf32,
        "old products": lambda: torch.backends.cuda.matmul.allow_tf32,
        "by name": torch.get_float32_matmul_precision,
    }
    if NEW:
        readers |= {
            "convolutions": lambda: torch.backends.cudnn.conv.fp32_precision,
            "recurrent": lambda: torch.backends.cudnn.rnn.fp32_precision,
            "products": lambda: torch.backends.cuda.matmul.fp32_precision,
        }
    state: dict[str, object] = {}
    for name, read in readers.items():
        try:
            state[name] = read()
        except RuntimeError:
            state[name] = "raises"
    return state


@pytest.fixture
def _restored() -> Iterator[None]:
    yield
    if NEW:
        torch.backends.cuda.matmul.fp32_precision = "none"
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = True
    if NEW:
        torch.backends.cuda.matmul.fp32_precision = "none"


def by_new_products() -> None:
    torch.backends.cuda.matmul.fp32_precision = "tf32"


def by_new_convolutions() -> None:
    torch.backends.cudnn.rnn.fp32_precision = "ieee"
    torch.backends.cudnn.conv.fp32_precision = "tf32"


def by_old_products() -> None:
    torch.backends.cuda.matmul.allow_tf32 = True


def by_no_convolutions() -> None:
    torch.backends.cudnn.allow_tf32 = False


def by_new_without_convolutions() -> None:
    torch.backends.cudnn.conv.fp32_precision = "ieee"


OLD_WAYS: list[tuple[Callable[[], object], tuple[str, ...]]] = [
    (lambda: None, ("convolutions",)),
    (lambda: torch.set_float32_matmul_precision("high"), ("convolutions", "products")),
    (lambda: torch.set_float32_matmul_precision("medium"), ("convolutions", "products")),
    (by_old_products, ("convolutions", "products")),
    (by_no_convolutions, ()),
]
NEW_WAYS: list[tuple[Callable[[], object], tuple[str, ...]]] = [
    (by_new_products, ("convolutions", "products")),
    (by_new_convolutions, ("convolutions",)),
    (by_new_without_convolutions, ()),
]


@pytest.mark.usefixtures("_restored")
@pytest.mark.parametrize(("way", "on"), [*OLD_WAYS, *(NEW_WAYS if NEW else [])])
def test_tf32_is_off_within_and_as_before_after(way: Callable[[], object], on: tuple[str, ...]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of its older interface
        way()
        before = switches()
        assert tf32() == on
        with without_tf32():
            assert tf32() == ()
        assert switches() == before
        with pytest.raises(KeyError), without_tf32():
            raise KeyError
        assert switches() == before


def test_contenders_are_checked_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, ...]] = []
    prepare = Vectors.prepare

    def watched(self: Vectors, *arguments: object) -> object:
        seen.append(tf32())
        return prepare(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Vectors, "prepare", watched)
    assert tf32() == ("convolutions",)
    Conditions().checked({"ours": Vectors(n_in=6)}, batch=2)
    assert seen and set(seen) == {()} and tf32() == ("convolutions",)


@pytest.mark.parametrize(("capability", "words"), [((9, 0), "NVIDIA H100, TF32 convolutions"), ((7, 5), "NVIDIA H100")])
def test_a_gpu_says_what_runs_in_it(capability: tuple[int, int], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H100")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert device_in_words(torch.device("cuda")) == words
    with without_tf32():
        assert device_in_words(torch.device("cuda")) == ("NVIDIA H100, no TF32" if capability >= (8, 0) else words)
