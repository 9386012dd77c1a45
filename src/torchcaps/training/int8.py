"""A trained classifier as an ONNX file whose convolutions and products are of 8-bit integers."""

from __future__ import annotations

import functools
import json
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchcaps.training.batches import split
from torchcaps.training.checkpoint import data_for, load_model
from torchcaps.training.examples import Batch
from torchcaps.training.export import FORMATS, check_packages, check_place, export, run_onnx
from torchcaps.training.files import write_atomically
from torchcaps.training.objective import wrong
from torchcaps.training.run import Run, with_data_in
from torchcaps.types import as_output

#: Validation images that the ranges of the activations are measured on.
_CALIBRATED = 256
#: Test images that both files are compared on.
_COMPARED = 1000
#: What is quantised. Routing stays in float32: its sums and softmaxes are a small part of the time.
_OPERATORS = ["Conv", "Gemm", "MatMul"]


class Quantized(NamedTuple):
    """What was written.

    Attributes:
        path: the file.
        size: its bytes, and those of the file in float32.
        test_error: the share of test images that it gets wrong, and that of the file in float32.
        difference: the largest difference of a score between the two.
        n_images: how many test images they were compared on.
    """

    path: Path
    size: tuple[int, int]
    test_error: tuple[float, float]
    difference: float
    n_images: int


def export_int8(
    source: Run | str | Path, path: str | Path, *, root: str | Path | None = None, overwrite: bool = False
) -> Quantized:
    """Write a classifier's scores as ONNX of 8-bit integers, and compare its test error with that in float32.

    Weights have a scale for each channel. Activations have one range each, measured on 256 validation images, so that
    an image's scores do not depend on others in its batch. The file is otherwise as :func:`torchcaps.export` writes it.

    Args:
        source: a finished run, its folder, or "pretrained:mnist-small", weights that come with the library.
        path: the file, which must end in ``.onnx``.
        root: of a run's data, where they lie elsewhere by now, or of those of the library's weights.
        overwrite: replace a file that is there.

    Returns:
        What was written, with both errors on up to 1,000 test images.

    Raises:
        ValueError: no classifier, data that are not at hand, a file that is there, or a package that is not.
    """
    path = Path(path).expanduser()
    check_place(path, "onnx", overwrite)
    check_packages("int8", FORMATS["onnx"].packages)
    run = source if isinstance(source, Run) else Run(source)
    config = with_data_in(run.classifier(), root)
    if run.pretrained is not None and root is None:
        raise ValueError(
            f"root must name the folder of {config.data.name} for the weights {run.pretrained}: 8-bit ranges are "
            "measured on its images; got None"
        )
    trained = load_model(run)
    data = data_for(config, trained, run.path)

    def some(part: str, n: int) -> tuple[Tensor, Tensor]:
        return _some(split(config, data, part, torch.device("cpu")), n)

    shown, labels = some("val" if config.trial else "test", _COMPARED)
    with torch.no_grad():
        threshold = 0.5 if as_output(trained.model(shown[:1])).capsules else 0.0  # of activations, or of logits
    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder) / "float32.onnx", Path(folder) / "int8.onnx"
        export(run, before, format="onnx", root=root)
        _quantize(before, after, some("val", _CALIBRATED)[0])
        scores = [run_onnx(file, shown) for file in (after, before)]
        errors = [_error(each, labels, threshold) for each in scores]
        _tell(after, before, {"test_error": errors[0], "in_float32": errors[1], "of_images": len(shown)})
        sizes = after.stat().st_size, before.stat().st_size
        write_atomically(path, functools.partial(shutil.copyfile, after))
    difference = (scores[0] - scores[1]).abs().max().item()
    return Quantized(path, sizes, (errors[0], errors[1]), difference, len(shown))


def _some(batches: Iterable[Batch], n: int) -> tuple[Tensor, Tensor]:
    """Return the first images and labels of batches, at most n."""
    images, labels = [], []
    for batch in batches:
        images.append(batch.images.float().cpu())
        labels.append(batch.labels.cpu())
        if sum(map(len, images)) >= n:
            break
    return torch.cat(images)[:n], torch.cat(labels)[:n]


def _quantize(before: Path, after: Path, images: Tensor) -> None:
    from onnxruntime.quantization import (  # pyright: ignore[reportMissingImports]
        CalibrationDataReader,
        QuantFormat,
        QuantType,
        quantize_static,
    )
    from onnxruntime.quantization.shape_inference import quant_pre_process  # pyright: ignore[reportMissingImports]

    class Shown(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.batches = iter(images.split(64))

        def get_next(self) -> Any:
            batch = next(self.batches, None)
            return None if batch is None else {"images": batch.numpy()}

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


def _error(scores: Tensor, labels: Tensor, threshold: float) -> float:
    mistaken = wrong(scores, labels, threshold)
    return (mistaken if mistaken.dim() == 1 else mistaken.any(dim=1)).double().mean().item()


def _tell(after: Path, before: Path, found: dict[str, Any]) -> None:
    """Keep in the file what the one in float32 says of itself, and what quantising cost."""
    import onnx  # pyright: ignore[reportMissingImports]

    said = {each.key: each.value for each in onnx.load(str(before)).metadata_props}
    proto = onnx.load(str(after))
    onnx.helper.set_model_props(proto, {"torchcaps": json.dumps(json.loads(said["torchcaps"]) | {"int8": found})})
    onnx.save_model(proto, str(after))
