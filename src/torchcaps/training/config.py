"""An experiment: what is trained on what, and how; what does not fit is refused before any work."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal, get_args

from torchcaps.checks import check_at_least, check_choice, check_flag, check_two, single

if TYPE_CHECKING:
    from torchcaps.training.tasks import Task

Blend = Literal["sum", "max"]
Fill = Literal["zeros", "border", "reflection"]
Optimizer = Literal["adam", "muon"]
Schedule = Literal["exponential", "cosine", "constant"]
Loss = Literal["margin", "spread", "cross_entropy", "dice", "dice_cross_entropy", "squared_error", "own"]
Margin = Literal["linear", "sigmoid"]
Precision = Literal["32", "bf16"]
Device = Literal["auto", "cpu", "cuda", "mps"]
Progress = Literal["bar", "lines", "none"]
TestCrops = Literal[1, 13]
BLENDS, SCHEDULES, LOSSES, MARGINS = get_args(Blend), get_args(Schedule), get_args(Loss), get_args(Margin)
PRECISIONS, DEVICES, TEST_CROPS = get_args(Precision), get_args(Device), get_args(TestCrops)
OPTIMIZERS, PROGRESS, FILLS = get_args(Optimizer), get_args(Progress), get_args(Fill)


#: Options of a CapsNet without the factors that its layers have by default, as in the papers. Results of before there
#: were factors do not name them: they had these.
NO_FACTORS = {"primary_scale": 1.0, "vote_scale": 1.0}


@dataclass(frozen=True)
class Data:
    """What is trained on.

    Attributes:
        name: one of ``torchcaps.data.DATASETS``.
        root: folder that has the files, as text or a path; None downloads into the cache. (Commands that train also
            take the folder of the data sets' folders.)
        image_size: (height, width) to resize to, whatever that does to an image's proportions; None keeps the data
            set's own, and makes those of a folder 28×28.
        n_train: take only the first so many training images (of the fixed order); None takes all.
        n_shown: images shown in an epoch. More than the training set: it is repeated; fewer: drawn anew each epoch;
            None: each once.
        n_eval: validate and test on at most so many images each, which are drawn once for all seeds; None takes all.
        pairs: train on pairs of overlapping images of different classes.
        n_pairs: pairs in an epoch, and in validation and test.
        blend: how two images of a pair are laid over each other, "sum" or "max".
        transformed: show an image, a transformation, and as what is to be reconstructed the transformed image, for
            auto-encoders. Both are transformed at random within shift, degrees, scale and shear, in
            evaluation too, where every run with this batch_size sees the same; T leads from one to the
            other.
        multi_label: images have none, one or several labels each, as a table of labels or an array ``[N, J]`` of 0 and
            1 gives them. An image counts as an error unless all of its labels are found and no other.
        masks: say of every pixel which classes are there, by the masks of the data set (digit-masks, mask-folder).
            Shifts, warps, mirroring and crops move image and masks together.
        balance: draw training images so that every class is shown equally often, rare ones again and again; as many in
            an epoch as without.
        shift: largest random shift of a training image in pixels. (Both images of a pair are shifted by up
            to 4 on a canvas 8 larger, as in the paper.)
        degrees: largest random rotation in training.
        scale: largest relative change of size in training.
        shear: largest horizontal shear in training.
        fill: what shifts and warps of training images bring in: "zeros" are black, as in the papers, "border" repeats
            the nearest pixel, "reflection" mirrors the image at its edges. (The command line takes "reflection" for a
            folder of one's own, whose reconstructions would get black frames.)
        flip: mirror a training image left to right, half of the time; of a stereo pair the eyes change places.
        gamma: largest ``|log γ|`` of the power γ to which a training image is raised, 0 … 1 throughout.
        shading: largest share, as a logarithm, by which a slope of light brightens one side of a training image.
        brightness: largest number that is added to a training image, on the scale of 0 … 1.
        contrast: smallest and largest factor on a training image, about each channel's mean.
        crop: (height, width) of a window that is cut at random in training, last of all, and at the centre
            for validation, test and prediction; None takes the whole image.
        test_crops: 13 averages scores and loss in validation and test after training over the central window
            and those (±1, ±1), (±2, ±2) and (±3, ±3) pixels from it; 1 takes the central one.
        options: keyword arguments of that data set, such as smallnorb's eyes and split, medmnist's subset and size, or
            a folder's groups, labels, split, skip_bad, max_value, frames and store
            (:func:`~torchcaps.data.folder.load_folder`). On the command line one by one, ``--data.options.eyes left``:
            a whole mapping takes the place of the recipe's.
    """

    name: str = "digits"
    root: str | None = None
    image_size: tuple[int, int] | None = None
    n_train: int | None = None
    n_shown: int | None = None
    n_eval: int | None = None
    pairs: bool = False
    n_pairs: tuple[int, int] = (10_000, 1_000)
    blend: Blend = "sum"
    transformed: bool = False
    multi_label: bool = False
    masks: bool = False
    balance: bool = False
    shift: int = 2
    degrees: float = 0.0
    scale: float = 0.0
    shear: float = 0.0
    fill: Fill = "zeros"
    flip: bool = False
    gamma: float = 0.0
    shading: float = 0.0
    brightness: float = 0.0
    contrast: tuple[float, float] = (1.0, 1.0)
    crop: tuple[int, int] | None = None
    test_crops: TestCrops = 1
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Take paths, lists and single numbers of numpy too; ``config.json`` gives lists back."""
        use_plain_numbers(self)
        if self.root is not None:
            object.__setattr__(self, "root", str(self.root))
        for name in ("image_size", "n_pairs", "contrast", "crop"):
            if isinstance(getattr(self, name), list):
                object.__setattr__(self, name, tuple(getattr(self, name)))

    @property
    def task(self) -> Task:
        """Return what a network is trained to do on these data, as ``pairs`` and ``transformed`` say."""
        from torchcaps.training.tasks import task_of  # brings torch, which --help does not wait for

        return task_of(self)


@dataclass(frozen=True)
class Model:
    """What is trained.

    Attributes:
        name: one of ``torchcaps.models.MODELS``.
        options: keyword arguments of that model: numbers, texts, and lists and mappings of such, which files can hold.
            On the command line one by one, ``--model.options.n_iters 2``: a whole mapping takes the place of the
            recipe's.
    """

    name: str = "capsnet_small"
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        use_plain_numbers(self)


@dataclass(frozen=True)
class Optim:
    """How it is trained: an optimizer, and a schedule of its learning rate.

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
        weight_decay: factor of ½‖w‖² over all weights (a batch normalization's too; not biases, β or priors) in the
            loss; the matrix capsules' authors' 2e-7.
        name: "adam", or "muon": orthogonal steps for convolutions and capsules, Adam for the rest
            (:mod:`torchcaps.optim`).
    """

    lr: float = 1e-3
    schedule: Schedule = "exponential"
    warmup: float = 0.0
    decay: float = 0.96
    decay_steps: float = 2000
    floor: float = 1e-6
    eps: float = 1e-8
    clip: float = 0.0
    weight_decay: float = 0.0
    name: Optimizer = "adam"

    def __post_init__(self) -> None:
        use_plain_numbers(self)


@dataclass(frozen=True)
class Experiment:
    """An experiment. Recipes make them; the command line overrides their fields.

    Attributes:
        recipe: the recipe's name, for folders and files; without slashes.
        data: what is trained on.
        model: what is trained.
        optim: how.
        loss: "margin" or "spread" on the class capsules' activations, or "cross_entropy" on logits, or on
            activations as if they were such (binary for pairs); "squared_error" of an auto-encoder's reconstruction,
            summed over the pixels; "own" where a function was handed over to ``train``. With ``data.masks`` "margin"
            and "cross_entropy" are those of every pixel, "dice" is that of each class, and "dice_cross_entropy" the sum
            of "dice" and "cross_entropy".
        margin: how the spread loss's margin grows, "linear" (the paper) or "sigmoid" (the released code).
        reconstruction: weight of the summed squared error of the reconstruction: 0.0005 in the
            paper, 0.01 in its authors' code (on the paper's scale).
        consistency: weight of the squared difference between the poses that an auto-encoder finds in the
            transformed image and the transformed poses, relative to their size; the paper has none.
        epochs: passes over the training images, at most.
        stop_at: validation error, 0 … 1, at or below which training ends with the epoch; None trains to the end. While
            training that error is of this precision: in bf16 it may differ a little from the result's, of float32.
        keep_best: keep the weights of the epoch with the lowest validation error (of equal ones with the lowest
            validation loss, then the earliest; of an auto-encoder by the loss alone, of a segmentation by the highest
            mean Dice score), instead of the last epoch's.
            Training goes on to its end all the same, and the checkpoint holds the last weights. Needs validation images
            that are held out. On the command line ``--keep-best`` will do.
        batch_size: images in a step, of all processes together.
        precision: "32", or "bf16" for autocast.
        compile: compile the capsule layers (takes half a minute, then routing is faster).
        threads: threads on a CPU; 0 leaves torch's number, which is all cores unless it was set, and shares them
            between several processes.
        devices: processes on a machine that train together, one on each of its GPUs or each on a share of its cores.
            torchrun says it itself.
        nodes: machines, of which several are started by torchrun.
        device: "auto" takes a GPU where there is one.
        seed: of everything random.
        trial: look at no test image, but at the validation images alone: for settings that are yet to be chosen.

    Raises:
        ValueError: a value out of range, naming the field.
    """

    recipe: str = "custom"
    data: Data = field(default_factory=Data)
    model: Model = field(default_factory=Model)
    optim: Optim = field(default_factory=Optim)
    loss: Loss = "margin"
    margin: Margin = "linear"
    reconstruction: float = 0.0005
    consistency: float = 0.0
    epochs: int = 10
    stop_at: float | None = None
    keep_best: bool = False
    batch_size: int = 128
    precision: Precision = "32"
    compile: bool = False
    threads: int = 0
    devices: int = 1
    nodes: int = 1
    device: Device = "auto"
    seed: int = 0
    trial: bool = False

    def __post_init__(self) -> None:
        for name, kind in {"data": Data, "model": Model, "optim": Optim}.items():
            if not isinstance(getattr(self, name), kind):
                raise ValueError(f"{name} must be a {kind.__name__}, got {getattr(self, name)!r}")
        use_plain_numbers(self)
        object.__setattr__(self, "precision", str(self.precision))  # of 32 without quotes, too
        check_experiment(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts, lists and numbers, as in ``config.json``."""
        return asdict(self)


def check_experiment(config: Experiment) -> None:
    """Refuse values out of range, and what does not go together.

    Raises:
        ValueError: naming the field.
    """
    data, optim = config.data, config.optim
    if not isinstance(config.recipe, str):
        raise ValueError(f"recipe must be a text, got {config.recipe!r}")
    if not config.recipe or set(config.recipe) & {"/", "\\"}:  # it names folders and files
        raise ValueError(f"recipe must be a name without slashes, got {config.recipe!r}")
    check_choice("loss", config.loss, LOSSES)
    check_choice("margin", config.margin, MARGINS)
    check_choice("precision", config.precision, PRECISIONS)
    check_choice("device", config.device, DEVICES)
    check_choice("data.blend", data.blend, BLENDS)
    check_choice("data.fill", data.fill, FILLS)
    check_choice("optim.name", optim.name, OPTIMIZERS)
    check_choice("optim.schedule", optim.schedule, SCHEDULES)
    for name, least in {"epochs": 1, "batch_size": 1, "threads": 0, "devices": 1, "nodes": 1, "seed": 0}.items():
        check_at_least(name, getattr(config, name), least, below=2**63)
    _within("threads", config.threads, 0, 1024)
    if config.batch_size < config.devices * config.nodes:
        raise ValueError(
            f"batch_size must be at least the {config.devices * config.nodes} processes (devices · nodes), got "
            f"{config.batch_size}"
        )
    _within("seed", config.seed, 0, 2**32 - 1)
    for name in ("compile", "trial", "keep_best"):
        check_flag(name, getattr(config, name))
    for name in ("pairs", "transformed", "multi_label", "masks", "balance", "flip"):
        check_flag(f"data.{name}", getattr(data, name))
    if data.root == "":  # of an empty shell variable, which is not the folder one stands in
        raise ValueError("data.root must name a folder, got an empty text")
    check_at_least("data.shift", data.shift, 0)
    for name in ("image_size", "n_pairs", "crop"):
        if getattr(data, name) is not None:
            check_two(f"data.{name}", getattr(data, name), 1)
    check_two("data.contrast", data.contrast)
    for name in ("n_train", "n_shown", "n_eval"):
        if getattr(data, name) is not None:
            check_at_least(f"data.{name}", getattr(data, name), 1)
    _within("reconstruction", config.reconstruction, 0)
    _within("consistency", config.consistency, 0)
    if config.stop_at is not None:
        _within("stop_at", config.stop_at, 0, 1)
    _within("data.degrees", data.degrees, 0, 180)
    _within("data.scale", data.scale, 0, 0.99)
    _within("data.shear", data.shear, 0)
    _within("data.gamma", data.gamma, 0, 3)
    _within("data.shading", data.shading, 0, 3)
    _within("data.brightness", data.brightness, 0)
    _within("data.contrast[1]", data.contrast[1], 0)
    _within("data.contrast[0]", data.contrast[0], 0, data.contrast[1])
    check_choice("data.test_crops", data.test_crops, TEST_CROPS)
    if data.test_crops > 1 and data.crop is None:
        raise ValueError(f"data.crop must be given for data.test_crops = {data.test_crops}, got None")
    _require_plain("data.options", data.options)
    _require_plain("model.options", config.model.options)
    for name in ("name", "root", "image_size"):
        if name in data.options:
            raise ValueError(f"data.options must not hold {name}, which is data.{name}; got {data.options}")
    for name in ("name", "image_shape", "n_classes"):
        if name in config.model.options:
            raise ValueError(f"model.options must not hold {name}, which follows from model.name and the data")
    _within("optim.lr", optim.lr, 1e-12)
    _within("optim.warmup", optim.warmup, 0, 0.99)
    _within("optim.decay", optim.decay, 1e-12, 1)
    _within("optim.decay_steps", optim.decay_steps, 1e-12)
    _within("optim.floor", optim.floor, 0)
    if optim.lr < optim.floor:
        raise ValueError(f"optim.lr must be at least optim.floor, {optim.floor}, got {optim.lr}")
    _within("optim.eps", optim.eps, 1e-30)  # a weight without a gradient steps by 0 / eps
    _within("optim.clip", optim.clip, 0)
    _within("optim.weight_decay", optim.weight_decay, 0)
    _check_task(config)


#: Losses that masks alone have, and all that networks that segment can be trained with.
_OF_MASKS = ("dice", "dice_cross_entropy")
_OF_PIXELS = (*_OF_MASKS, "cross_entropy", "margin", "own")
#: Fields of :class:`Data` that change the light, and leave all in its place.
_LIGHT = ("gamma", "shading", "brightness", "contrast")


def _check_task(config: Experiment) -> None:
    """Refuse settings that the task has no use for."""
    data = config.data
    if data.masks:
        if config.loss not in _OF_PIXELS:
            raise ValueError(f"loss must be {', '.join(_OF_PIXELS)} with data.masks = True, got {config.loss}")
        _require_default(data, "data.masks", "pairs", "transformed", "multi_label", "balance", "test_crops")
        if config.stop_at is not None:
            raise ValueError(f"stop_at must be None with data.masks, which knows no error; got {config.stop_at}")
    elif config.loss in _OF_MASKS:
        raise ValueError(f"data.masks must be True for the loss {config.loss}, got False")
    if data.transformed:
        if config.loss not in ("squared_error", "own"):
            raise ValueError(f"loss must be squared_error with data.transformed = True, got {config.loss}")
        _require_default(data, "data.transformed", "pairs", "multi_label", "flip", *_LIGHT, "test_crops")
        if config.stop_at is not None:
            raise ValueError(f"stop_at must be None with data.transformed, which knows no error; got {config.stop_at}")
        return
    if config.consistency:
        raise ValueError(f"consistency must be 0 without data.transformed, as nothing moves; got {config.consistency}")
    if config.loss == "squared_error":
        raise ValueError("loss must be another than squared_error with data.transformed = False, got squared_error")
    if data.pairs:
        if config.loss == "spread":
            raise ValueError(
                "loss must be margin or cross_entropy with data.pairs: spread asks for one class; got spread"
            )
        unused = ("n_shown", "multi_label", "balance", "degrees", "scale", "shear", "fill", "flip", *_LIGHT, "crop")
        _require_default(data, "data.pairs", *unused)
    if data.multi_label and config.loss == "spread":
        raise ValueError(
            "loss must be margin or cross_entropy with data.multi_label: spread asks for one class; got spread"
        )


def _require_default(data: Data, kind: str, *names: str) -> None:
    """Refuse what one kind of examples has no use for."""
    for name in names:
        value, default = getattr(data, name), getattr(Data(), name)
        if value != default:
            raise ValueError(f"data.{name} must be {default} with {kind}, got {value}")


def use_plain_numbers(fields: Data | Model | Optim | Experiment) -> None:
    """Make numpy's and torch's single numbers Python's: files hold no others."""
    for name, value in vars(fields).items():
        object.__setattr__(fields, name, _in_python(value))


def _in_python(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [*map(_in_python, value)] if isinstance(value, list) else (*map(_in_python, value),)
    if isinstance(value, dict):
        return {key: _in_python(each) for key, each in value.items()}
    return single(value)


def _require_plain(name: str, options: dict[str, Any]) -> None:
    """Refuse what a file would not give back as it was."""
    if not isinstance(options, dict):
        raise ValueError(f"{name} must be a dict, got {options!r}")
    for key, value in options.items():
        if not _is_plain(value):
            raise ValueError(
                f"{name} must hold finite numbers, texts, and lists and mappings of such, as they are kept in files; "
                f"got {key}={value!r}"
            )


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(each) for key, each in value.items())
    return value is None or isinstance(value, int | str) or (isinstance(value, float) and math.isfinite(value))


def _within(name: str, value: float, least: float, most: float = math.inf) -> None:
    if isinstance(value, bool) or not (isinstance(value, Real) and math.isfinite(value) and least <= value <= most):
        limits = f"at least {least}" if most == math.inf else f"{least} … {most}"
        raise ValueError(f"{name} must be {limits} and finite, got {value!r}")


#: Behind the names of recipes that only show that they run.
_SMOKE = "-smoke"


def smoke(config: Experiment) -> Experiment:
    """Shorten an experiment to seconds: two steps on eight images, to see that it runs. It learns nothing."""
    options = config.data.options | ({"n_each": 12} if config.data.name == "folder" else {})  # not all files
    data = replace(config.data, n_train=None, n_eval=8, options=options, **config.data.task.few)
    return replace(config, recipe=f"{config.recipe}{_SMOKE}", data=data, epochs=1, batch_size=4, compile=False)


def is_smoke(config: Experiment) -> bool:
    """Return whether it is what :func:`smoke` gives."""
    name = config.recipe.removesuffix(_SMOKE)
    return name != config.recipe and config == smoke(replace(config, recipe=name))
