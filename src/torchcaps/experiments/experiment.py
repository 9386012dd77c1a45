"""One frozen dataclass: what is trained, on what, how."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Precision = Literal["32", "bf16"]


@dataclass(frozen=True)
class Data:
    """What is trained on.

    Attributes:
        name: one of ``torchcaps.data.DATASETS``.
        root: folder that has the files; None downloads into the cache.
        image_size: (height, width) to resize to; None keeps the data set's own.
        n_train: take only the first so many training images (of the fixed order); None takes all.
        pairs: train on pairs of overlapping images of different classes.
        n_pairs: pairs in an epoch, and in validation and test.
        blend: how two images of a pair are laid over each other, "sum" or "max".
        shift: largest random shift of a training image in pixels. (Both images of a pair are shifted by up
            to 4 on a canvas 8 larger, as in the paper.)
        degrees: largest random rotation in training.
        scale: largest relative change of size in training.
        shear: largest horizontal shear in training.
    """

    name: str = "digits"
    root: str | None = None
    image_size: tuple[int, int] | None = None
    n_train: int | None = None
    pairs: bool = False
    n_pairs: tuple[int, int] = (10_000, 1_000)
    blend: Literal["sum", "max"] = "sum"
    shift: int = 2
    degrees: float = 0.0
    scale: float = 0.0
    shear: float = 0.0


@dataclass(frozen=True)
class Model:
    """What is trained.

    Attributes:
        name: one of ``torchcaps.models.MODELS``.
        options: keyword arguments of that model.
    """

    name: str = "capsnet_small"
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Optim:
    """How it is trained: Adam, and a schedule of its learning rate.

    Attributes:
        lr: learning rate at its highest.
        schedule: "exponential" (the paper's decay), "cosine" (down to ``floor`` at the end of the
            run) or "constant".
        warmup: fraction of the run in which the rate rises linearly from 0.
        decay: exponential: factor …
        decay_steps: … for every so many steps; 0.96 every 2000 in the authors' code, or as a
            fraction of the run where below 1.
        floor: lowest learning rate; the authors' 1e-6.
        eps: Adam's ε.
        clip: largest norm of the gradient; 0 leaves it alone.
    """

    lr: float = 1e-3
    schedule: Literal["exponential", "cosine", "constant"] = "exponential"
    warmup: float = 0.0
    decay: float = 0.96
    decay_steps: float = 2000
    floor: float = 1e-6
    eps: float = 1e-8
    clip: float = 0.0


@dataclass(frozen=True)
class Experiment:
    """An experiment. Recipes make them; the command line overrides their fields.

    Attributes:
        recipe: the recipe's name.
        data: what is trained on.
        model: what is trained.
        optim: how.
        loss: "margin" on lengths, or "cross_entropy" on logits (binary for pairs).
        reconstruction: weight of the summed squared error of the reconstruction: 0.0005 in the
            paper, 0.01 in its authors' code (on the paper's scale).
        epochs: passes over the training images.
        batch_size: images in a step.
        precision: "32", or "bf16" for autocast.
        compile: compile the capsule layers (takes half a minute, then routing is faster).
        threads: threads on a CPU; 0 takes all cores.
        device: "auto" takes a GPU where there is one.
        seed: of everything random.
    """

    recipe: str = "custom"
    data: Data = Data()
    model: Model = Model()
    optim: Optim = Optim()
    loss: Literal["margin", "cross_entropy"] = "margin"
    reconstruction: float = 0.0005
    epochs: int = 10
    batch_size: int = 128
    precision: Precision = "32"
    compile: bool = False
    threads: int = 0
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name, value in (
            ("reconstruction", self.reconstruction),
            ("threads", self.threads),
            ("seed", self.seed),
            ("data.shift", self.data.shift),
            ("optim.warmup", self.optim.warmup),
            ("optim.floor", self.optim.floor),
            ("optim.clip", self.optim.clip),
        ):
            if value < 0:
                raise ValueError(f"{name} must not be negative, got {value}")
        if not self.optim.lr > 0:
            raise ValueError(f"optim.lr must be positive, got {self.optim.lr}")
        if self.data.n_train is not None and self.data.n_train < 1:
            raise ValueError(f"data.n_train must be at least 1, got {self.data.n_train}")

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts, lists and numbers, as in ``config.json``."""
        return asdict(self)
