"""A trained network as a file that runs where torchcaps is not installed."""

from __future__ import annotations

import copy
import functools
import importlib
import json
import logging
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchcaps import __version__
from torchcaps.checks import check_choice, check_positive, check_shapes
from torchcaps.data import Dataset
from torchcaps.models import Scores
from torchcaps.training.batches import split
from torchcaps.training.checkpoint import Trained, data_for, load_model
from torchcaps.training.files import write_atomically
from torchcaps.training.run import Run, with_data_in
from torchcaps.typed import typed

#: The largest difference from the network's own scores with which a file is written, beside 1 or the largest of them.
TOLERANCE = 1e-5
#: Images that it is compared on.
_COMPARED = 64
Metadata = dict[str, Any]


class Exported(NamedTuple):
    """What was written.

    Attributes:
        path: the file.
        error: the largest difference between a score of the file and the network's own.
        n_images: how many images they were compared on.
        images_of: the data set that these come from, or "the caller".
    """

    path: Path
    error: float
    n_images: int
    images_of: str


class _Content(NamedTuple):
    """What goes into a file: a network of scores, images to compare on, and what is said of them."""

    model: Scores
    images: Tensor
    metadata: Metadata

    def program(self) -> torch.export.ExportedProgram:
        """Export with any number of images, though an example of one would fix it."""
        return torch.export.export(self.model, (self.example(),), dynamic_shapes=_any_number())

    def example(self) -> Tensor:
        return self.images[:1].repeat(2, 1, 1, 1)

    def as_json(self) -> str:
        return json.dumps(self.metadata)


def _any_number() -> tuple[dict[int, Any]]:
    return ({0: torch.export.Dim("batch", min=0)},)


class _Format(NamedTuple):
    """How a format is written and read.

    Attributes:
        suffixes: of its files, in the order in which they are put in place.
        packages: that it needs.
        write: puts the content into the file of this path, the last of the suffixes.
        read: returns the scores that the file gives for the content's images.
    """

    suffixes: tuple[str, ...]
    packages: tuple[str, ...]
    write: Callable[[_Content, Path], None]
    read: Callable[[_Content, Path], Tensor]


@typed
def export(
    source: nn.Module | Run | str | Path,
    path: str | Path,
    *,
    format: str,  # noqa: A002
    images: Tensor | None = None,
    classes: Sequence[str] = (),
    root: str | Path | None = None,
    overwrite: bool = False,
    tolerance: float = TOLERANCE,
) -> Exported:
    """Write a network's scores as a program, or its weights; compare them with the network's before that.

    The file takes images ``[B, C, H, W]`` in float32, 0 … 1, of the network's own size, and any number of them, none
    too. It returns the scores of the classes, ``[B, J]``, or those of every pixel, ``[B, J, H, W]``, where it segments.
    What else is done to images, such as standardisation, is within it. Its metadata says so, under the name
    "torchcaps", as JSON.

    Args:
        source: a network that returns scores, a finished run, its folder, or "pretrained:mnist-small", weights that
            come with the library.
        path: the file; its ending must be the format's. OpenVINO puts its weights beside it, in a ``.bin``.
        format: "onnx", "pt2" (a program of :mod:`torch.export`), "openvino", or "safetensors" (weights alone).
        images: ``[B, C, H, W]``, to compare on. Without them these are 64 test images: of a run its own, of the
            library's weights those of their data in ``root``; without one, digits of scikit-learn for those of MNIST.
        classes: names of the scores; of a run its own.
        root: of a run's data, where they lie elsewhere by now, or of those of the library's weights.
        overwrite: replace a file that is there.
        tolerance: the largest difference from the network's scores, where these are within ±1. Of larger ones, as
            logits may be, it is the difference over the largest. Networks that amplify rounding need more.

    Returns:
        What was written, and how far its scores are from the network's.

    Raises:
        ValueError: an unknown format, another ending, a file that is there, a package that is not, no scores, no
            images of a network, or scores that differ by more. Nothing is written then.

    Example:
        >>> import tempfile, torch
        >>> from torchcaps import build, export
        >>> model = build("capsnet_small", (1, 20, 20), 3, channels=4)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     done = export(model, f"{folder}/model.pt2", format="pt2", images=torch.rand(4, 1, 20, 20))
        >>> done.n_images, done.error < 1e-5
        (4, True)
    """
    check_choice("format", format, FORMATS)
    check_positive("tolerance", tolerance)
    form, path = FORMATS[format], Path(path).expanduser()
    check_place(path, format, overwrite)
    check_packages(f"format {format}", form.packages)
    extra: Metadata = {}
    images_of = "the caller"
    if isinstance(source, nn.Module):
        if images is None:
            raise ValueError("images must be given with a network, to compare its scores on; got None")
        model = source
    else:
        trained, extra, data = _of_run(source, root)
        model, classes = trained.model, trained.classes
        if images is None:
            images, images_of = data.test_images(), data.name
    check_shapes(images=(images, "B C H W"))
    if len(images) == 0:
        raise ValueError("images must hold at least one image to compare on, got 0")
    plain, images = plain_copy(Scores(model)), images.detach().float().cpu()
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        wanted, made = plain(images), Path(folder) / f"model{form.suffixes[-1]}"
        content = _Content(plain, images, _metadata(plain, images, wanted, classes) | extra)
        form.write(content, made)
        found = form.read(content, made)
        error = (found - wanted).abs().max().item()
        largest = max(1.0, wanted.abs().max().item())
        if not error <= tolerance * largest:  # NaN too
            raise ValueError(
                f"format {format} must give the network's scores to {tolerance * largest:.1e}, got a difference of "
                f"{error:.1e}: a tolerance above {error / largest:.1e} writes the file"
            )
        for suffix in form.suffixes:
            write_atomically(path.with_suffix(suffix), functools.partial(shutil.copyfile, made.with_suffix(suffix)))
    return Exported(path, error, len(images), images_of)


def check_place(path: Path, format: str, overwrite: bool) -> None:  # noqa: A002
    """Refuse a file of another ending, and one that is there."""
    suffixes = FORMATS[format].suffixes
    if path.suffix != suffixes[-1]:
        raise ValueError(f"path must end in {suffixes[-1]} for {format}, got {path}")
    for file in (path.with_suffix(suffix) for suffix in suffixes):
        if file.exists() and (file.is_dir() or not overwrite):
            raise ValueError(f"path must not exist, got {file}: overwrite=True replaces a file")


def check_packages(what: str, names: Sequence[str]) -> None:
    """Refuse what needs packages that are not installed."""
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise ValueError(f"{what} needs {name}: pip install 'torchcaps[export]' ({error})") from error


class _Data(NamedTuple):
    """Images to compare on, read once they are asked for."""

    name: str
    test_images: Callable[[], Tensor]


def _of_run(source: Run | str | Path, root: str | Path | None) -> tuple[Trained, Metadata, _Data]:
    """Return what was trained, further metadata, and images of its test data (of a trial's validation data).

    Nothing is downloaded for the library's own weights: without a root the bundled digits serve for those of MNIST.
    """
    run = source if isinstance(source, Run) else Run(source)
    before = run.scorer()
    config = with_data_in(before, root)
    if run.pretrained is not None and root is None:
        if config.data.name != "mnist":
            raise ValueError(
                f"root must name the folder of {config.data.name}, whose images the file's scores are compared on, for "
                f"the weights {run.pretrained}; got None"
            )
        config = replace(config, data=replace(config.data, name="digits", options={}))
    trained = load_model(run)
    shown_to = trained if config.data.name == before.data.name else trained._replace(data="")

    def test_images() -> Tensor:
        data: Dataset = data_for(config, shown_to, run.path)
        batches = split(config, data, "val" if config.trial else "test", torch.device("cpu"))
        return next(iter(batches)).images[:_COMPARED]

    further = {
        "recipe": before.recipe,
        "resized_to": list(trained.uncropped),
        "central_window": trained.image_shape[1:],
    }
    return trained, further, _Data(config.data.name, test_images)


def plain_copy(module: nn.Module) -> Any:
    """Return a copy on the CPU, in evaluation mode, that routes by plain PyTorch, which every runtime reads."""
    plain = copy.deepcopy(module).cpu().float().eval()
    for layer in plain.modules():
        routing: Any = getattr(layer, "routing", None)
        if hasattr(routing, "backend"):
            layer.routing = replace(routing, backend="reference")
    return plain.requires_grad_(False)


def _metadata(model: nn.Module, images: Tensor, scores: Tensor, classes: Sequence[str]) -> Metadata:
    standardized = any(type(part).__name__ == "Standardize" for part in model.modules())
    return {
        "version": __version__,
        "image_shape": list(images.shape[1:]),
        "scale": "0 to 1: 8 bits divided by 255",
        "standardisation": "each image, within the program" if standardized else "none",
        "classes": list(classes),
        "scores": "of each class" if scores.dim() == 2 else "of each class at each pixel: it is there above 0.5",
    }


def _write_pt2(content: _Content, path: Path) -> None:
    torch.export.save(content.program(), path, extra_files={"torchcaps": content.as_json()})


def _read_pt2(content: _Content, path: Path) -> Tensor:
    return torch.export.load(path).module()(content.images)


def _write_onnx(content: _Content, path: Path) -> None:
    import onnx  # pyright: ignore[reportMissingImports]

    names: dict[str, Any] = {"input_names": ["images"], "output_names": ["scores"]}
    with quietly():
        program = torch.onnx.export(
            content.model, (content.example(),), dynamo=True, verbose=False, dynamic_shapes=_any_number(), **names
        )
    assert program is not None
    proto = program.model_proto
    onnx.helper.set_model_props(proto, {"torchcaps": content.as_json()})
    onnx.save_model(proto, str(path))


@contextmanager
def quietly() -> Iterator[None]:
    """Let torch's exporter not warn of its own parts, nor of torchvision, which is not needed."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        log.setLevel(level)


def _read_onnx(content: _Content, path: Path) -> Tensor:
    run = open_onnx(path)
    return torch.cat([run(images) for images in content.images.split(100)])


def open_onnx(path: Path) -> Callable[[Tensor], Tensor]:
    """Return the function that gives the scores of images by a file."""
    import onnxruntime  # pyright: ignore[reportMissingImports]

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return lambda images: torch.from_numpy(session.run(None, {"images": images.numpy()})[0])


def _write_openvino(content: _Content, path: Path) -> None:
    import openvino  # pyright: ignore[reportMissingImports]

    graph = path.with_suffix(".onnx")
    _write_onnx(content, graph)  # of EM routing OpenVINO makes no model out of torch.export's program in ten minutes
    converted = openvino.convert_model(graph)
    converted.set_rt_info(content.as_json(), ["torchcaps"])
    openvino.save_model(converted, str(path), compress_to_fp16=False)


def _read_openvino(content: _Content, path: Path) -> Tensor:
    import openvino  # pyright: ignore[reportMissingImports]

    core = openvino.Core()  # without the hint it computes in bfloat16 where the processor can
    compiled = core.compile_model(core.read_model(str(path)), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return torch.from_numpy(compiled(content.images.numpy())[0].copy())


def _write_safetensors(content: _Content, path: Path) -> None:
    from safetensors.torch import save_model  # pyright: ignore[reportMissingImports]

    save_model(content.model.model, str(path), {"torchcaps": content.as_json()})


def _read_safetensors(content: _Content, path: Path) -> Tensor:
    from safetensors.torch import load_model as load_weights  # pyright: ignore[reportMissingImports]

    empty = copy.deepcopy(content.model)
    for value in empty.parameters():
        value.zero_()  # so that what is compared comes from the file
    load_weights(empty.model, str(path))
    return empty(content.images)


FORMATS = {
    "onnx": _Format((".onnx",), ("onnx", "onnxscript", "onnxruntime"), _write_onnx, _read_onnx),
    "pt2": _Format((".pt2",), (), _write_pt2, _read_pt2),
    "openvino": _Format((".bin", ".xml"), ("openvino", "onnx", "onnxscript"), _write_openvino, _read_openvino),
    "safetensors": _Format((".safetensors",), ("safetensors",), _write_safetensors, _read_safetensors),
}


def default_path(run: str | Path, format: str) -> Path:  # noqa: A002
    """Return where ``torchcaps export`` puts a file that is not named: in the run's folder, else here."""
    check_choice("format", format, FORMATS)
    name, suffix = Run(run).pretrained, FORMATS[format].suffixes[-1]
    return Run(run).path / f"model{suffix}" if name is None else Path(f"{name}{suffix}")
