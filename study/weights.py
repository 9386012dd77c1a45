"""The weights that come with the library, made of finished runs."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch

from torchcaps.models.pretrained import FOLDER, Card
from torchcaps.training.batches import split
from torchcaps.training.checkpoint import data_for, load_model
from torchcaps.training.files import write_atomically
from torchcaps.training.objective import evaluate
from torchcaps.training.run import Run, with_data_in

#: The licence of the weights, and what is known of the data's.
LICENCES = {
    "mnist": "Apache-2.0; trained on MNIST (Yann LeCun, Corinna Cortes), CC BY-SA 3.0",
    "smallnorb": "Apache-2.0; trained on small NORB (Fu Jie Huang, Yann LeCun), which is for research alone",
}
#: How far half precision may move an error, and a loss as a share of it.
_MOST = 1e-4
#: Tensors of so many numbers stay in single precision.
_FEW = 6_000


def publish(run: Run, name: str, *, root: str | None = None, to: Path = FOLDER) -> Card:
    """Write the weights of a finished run in half precision, with their card; return the card.

    Args:
        run: Of a recipe whose data are known.
        name: Of the weights.
        root: Where the data lie.
        to: The folder of the weights.

    Raises:
        ValueError: The run is not finished, or half precision moves its error by more than one image in ten thousand,
            or its loss by such a share.
    """
    from safetensors.torch import save

    config, trained, result = with_data_in(run.experiment(), root), load_model(run), run.read_result("commit")
    dataset = data_for(config, trained, run.path)
    batches = split(config, dataset, "test", torch.device("cpu"))
    before = evaluate(config, trained.model, batches, classes=dataset.classes)
    weights = {key: _halved(value) for key, value in trained.model.state_dict().items()}
    trained.model.load_state_dict(weights)
    after = evaluate(config, trained.model, batches, classes=dataset.classes)
    measured = "error" if "error" in after else "loss"
    if abs(after[measured] - before[measured]) > _MOST * max(1.0, before[measured]):
        raise ValueError(f"half precision must leave the {measured} at {before[measured]}, got {after[measured]}")
    content = save(weights)
    classes = trained.classes if config.data.task.classifies else ()
    card = Card(
        name=name,
        model=config.model.name,
        options=config.model.options,
        image_shape=trained.image_shape,
        classes=classes,
        uncropped=trained.uncropped,
        preprocessing=_preprocessing(trained.image_shape, trained.uncropped),
        recipe=config.recipe,
        data=f"{config.data.name}: {dataset.note}" if dataset.note else config.data.name,
        result={f"test_{measured}": after[measured]},
        record=f"study/results/runs.jsonl: {config.recipe}-{config.seed}, commit {result['commit']}; "
        f"test {measured} in float32 {before[measured]:.6g}",
        licence=LICENCES[config.data.name],
        sha256=hashlib.sha256(content).hexdigest(),
        size=len(content),
    )
    write_atomically(to / f"{name}.safetensors", lambda path: path.write_bytes(content))
    card.write(to)
    return card


def _halved(value: torch.Tensor) -> torch.Tensor:
    """Return weights in half precision, but few ones as they are.

    Few weigh nothing in a file and much in the result: the 160 of a first convolution moved 8 of 10,000 errors.
    """
    return (value.half() if value.dtype == torch.float32 and value.numel() > _FEW else value).contiguous()


def _preprocessing(shape: tuple[int, int, int], uncropped: tuple[int, int]) -> str:
    size = f"resized to {uncropped[0]}×{uncropped[1]}"
    window = "" if uncropped == shape[1:] else f", of which the central {shape[1]}×{shape[2]} are taken"
    return f"grey values 0 … 1, light on dark, {size}{window}; channels: {shape[0]}"
