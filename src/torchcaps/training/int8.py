"""A trained network as an ONNX file whose convolutions and products are of 8-bit integers."""

from __future__ import annotations

import functools
import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from torchcaps.training.batches import split
from torchcaps.training.checkpoint import data_for, load_model
from torchcaps.training.dice import THRESHOLD
from torchcaps.training.examples import Batch
from torchcaps.training.export import FORMATS, check_packages, check_place, export
from torchcaps.training.file_scores import compare_files
from torchcaps.training.files import write_atomically
from torchcaps.training.logits import are_logits
from torchcaps.training.run import Run, with_data_in
from torchcaps.types import as_output

#: Validation images that the ranges of the activations are measured on.
_CALIBRATED = 256
#: Test images that both files are compared on.
_COMPARED = 1000
#: What is quantised. Routing stays in float32: its sums and softmaxes are a small part of the time.
_OPERATORS = ["Conv", "ConvTranspose", "Gemm", "MatMul"]


class Quantized(NamedTuple):
    """What was written.

    Attributes:
        path: the file.
        size: its bytes, and those of the file in float32.
        test_error: the share of test images that it gets wrong, and that of the file in float32. Of a network that
            segments it is the share of pixels at which any class is wrong.
        test_dice: of a network that segments the Dice score of each class, by both files; empty of a classifier.
        difference: the largest difference of a score between the two.
        n_images: how many test images they were compared on.
    """

    path: Path
    size: tuple[int, int]
    test_error: tuple[float, float]
    test_dice: tuple[dict[str, float], dict[str, float]]
    difference: float
    n_images: int


def export_int8(
    source: Run | str | Path, path: str | Path, *, root: str | Path | None = None, overwrite: bool = False
) -> Quantized:
    """Write a network's scores as ONNX of 8-bit integers, and compare them on test images with those in float32.

    Weights have a scale for each channel. Activations have one range each, measured on 256 validation images, so that
    an image's scores do not depend on others in its batch. The file is otherwise as :func:`torchcaps.export` writes it.

    Args:
        source: a finished run, its folder, or "pretrained:mnist-small", weights that come with the library.
        path: the file, which must end in ``.onnx``.
        root: of a run's data, where they lie elsewhere by now, or of those of the library's weights.
        overwrite: replace a file that is there.

    Returns:
        What was written, with the error of a classifier, or the Dice scores of masks, on up to 1,000 test images.

    Raises:
        ValueError: an auto-encoder, data that are not at hand, a file that is there, or a package that is not.
    """
    path = Path(path).expanduser()
    check_place(path, "onnx", overwrite)
    check_packages("int8", FORMATS["onnx"].packages)
    run = source if isinstance(source, Run) else Run(source)
    config = with_data_in(run.scorer(), root)
    if run.pretrained is not None and root is None:
        raise ValueError(
            f"root must name the folder of {config.data.name} for the weights {run.pretrained}: 8-bit ranges are "
            "measured on its images; got None"
        )
    trained = load_model(run)
    data = data_for(config, trained, run.path)

    def some(part: str, n: int) -> Iterator[Batch]:
        return _first(split(config, data, part, torch.device("cpu")), n)

    with torch.no_grad():
        logits = are_logits(config.loss, trained.model, as_output(trained.model(next(some("val", 1)).images)))
    threshold = 0.0 if logits and not config.data.task.segments else THRESHOLD
    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder) / "float32.onnx", Path(folder) / "int8.onnx"
        export(run, before, format="onnx", root=root, tolerance=1e-2)  # 8 bits change scores by more
        _quantize(before, after, some("val", _CALIBRATED))
        found = compare_files(after, before, some("val" if config.trial else "test", _COMPARED), threshold)
        sizes = after.stat().st_size, before.stat().st_size
        of_classes = [dict(zip(trained.classes, scores)) for scores in found.dice]
        done = Quantized(path, sizes, found.error, (of_classes[0], of_classes[1]), found.difference, found.n_images)
        _tell(after, before, done)
        write_atomically(path, functools.partial(shutil.copyfile, after))
    return done


def _first(batches: Iterable[Batch], n: int) -> Iterator[Batch]:
    """Take the first n images of batches."""
    for batch in batches:
        if n <= 0:
            return
        yield batch.take(slice(n))
        n -= len(batch.images)


def _quantize(before: Path, after: Path, batches: Iterator[Batch]) -> None:
    """Quantise a file, by the ranges that its activations have on these images."""
    from onnxruntime.quantization import (  # pyright: ignore[reportMissingImports]
        CalibrationDataReader,
        QuantFormat,
        QuantType,
        quantize_static,
    )
    from onnxruntime.quantization.shape_inference import quant_pre_process  # pyright: ignore[reportMissingImports]

    class Shown(CalibrationDataReader):  # type: ignore[misc]
        def get_next(self) -> Any:
            batch = next(batches, None)
            return None if batch is None else {"images": batch.images.float().numpy()}

    prepared = before.with_name("prepared.onnx")
    quant_pre_process(str(before), str(prepared), skip_symbolic_shape=True)
    quantize_static(
        str(prepared),
        str(after),
        Shown(),
        quant_format=QuantFormat.QDQ,
        op_types_to_quantize=_OPERATORS,
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
    )


def _tell(after: Path, before: Path, done: Quantized) -> None:
    """Keep in the file what the one in float32 says of itself, and what quantising cost."""
    import onnx  # pyright: ignore[reportMissingImports]

    said = {each.key: each.value for each in onnx.load(str(before)).metadata_props}
    sides = [
        {"wrong_pixels": error, "test_dice": dice} if dice else {"test_error": error}
        for error, dice in zip(done.test_error, done.test_dice, strict=True)
    ]
    cost = {**sides[0], "in_float32": sides[1], "of_images": done.n_images}
    proto = onnx.load(str(after))
    onnx.helper.set_model_props(proto, {"torchcaps": json.dumps(json.loads(said["torchcaps"]) | {"int8": cost})})
    onnx.save_model(proto, str(after))
