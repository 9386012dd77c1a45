"""The networks of the page as ONNX programs, which a browser runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchcaps.layers import Decoder
from torchcaps.models import Scores
from torchcaps.playground.inside import Agreement
from torchcaps.playground.meaning import measure_strokes
from torchcaps.playground.network import Network, probabilities
from torchcaps.playground.parts import Parts, PartsSeen
from torchcaps.playground.segmenter import Segmenter
from torchcaps.training.export import TOLERANCE, plain_copy, quietly


class Decode(nn.Module):
    """Reconstruct a class from each of several poses, and measure the strokes of what comes out."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, poses: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
        """Return images ``[N, C, H, W]`` and measures ``[M, N]`` of poses ``[N, D]`` and one class ``[1]``."""
        chosen = F.one_hot(label, self.decoder.n_classes).to(poses.dtype)  # [1, J]
        images = self.decoder(chosen[..., None] * poses[:, None], chosen.expand(poses.shape[0], -1))
        return images, torch.stack(list(measure_strokes(images).values())).float()


class Probabilities(nn.Module):
    """Turn the scores of a network without capsules into probabilities ``[J]`` of one image."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.scores, self.pairs = Scores(network.model), network.pairs

    def forward(self, images: Tensor) -> Tensor:
        """Look at one image ``[1, C, H, W]``."""
        return probabilities(self.scores(images), pairs=self.pairs)[0]


class Masks(nn.Module):
    """Say of one image what a network that segments says of every pixel, and how long its capsules are."""

    def __init__(self, segmenter: Segmenter) -> None:
        super().__init__()
        self.model = segmenter.model

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Return scores ``[J, H, W]`` of one image ``[1, C, H, W]``, and the lengths ``[T, H', W']`` of each layer."""
        output = self.model(images)
        return output.scores[0].float(), *(each.activation[0].float() for each in output.capsules)


def write_inside(network: Network, images: Tensor, path: Path) -> None:
    """Write what :class:`~torchcaps.playground.inside.Inside` says of one image.

    Raises:
        ValueError: the program differs from the network by more than 1e-5, here as below.
    """
    assert network.inside is not None
    # Which capsules are the most active may change where two are alike, so what hangs on the choice is not compared.
    compared = ("scores", "poses", "lengths", "share", "activity", "activation")
    examples = [{"images": image[None]} for image in images]
    _write(network.inside, examples, Agreement._fields, path, compared)


def write_decoder(network: Network, poses: Tensor, path: Path) -> None:
    """Write the decoder: of N poses ``[N, D]`` and a class, images and measures of their strokes."""
    assert network.decoder is not None
    labels = torch.arange(len(network.classes))
    examples = [{"poses": poses, "label": label[None]} for label in labels]
    examples.append({"poses": poses[:1], "label": labels[:1]})  # of another number
    shapes = {"poses": {0: torch.export.Dim("poses", min=1)}, "label": None}
    _write(Decode(network.decoder), examples, ("images", "strokes"), path, ("images",), shapes)


def write_parts(parts: Parts, images: Tensor, path: Path) -> None:
    """Write what the capsules of an auto-encoder draw of one image."""
    names = PartsSeen._fields
    _write(parts, [{"images": image[None]} for image in images], names, path, names)


def write_probabilities(network: Network, images: Tensor, path: Path) -> None:
    """Write the probabilities of a network without capsules."""
    names = ("probabilities",)
    _write(Probabilities(network), [{"images": image[None]} for image in images], names, path, names)


def write_masks(segmenter: Segmenter, images: Tensor, path: Path) -> None:
    """Write what a network that segments says of one image: its "scores", then its "lengths" layer by layer."""
    n_layers = len(segmenter.lengths(images[0]))
    names = ("scores", *(f"lengths_{k}" for k in range(1, n_layers + 1)))
    _write(Masks(segmenter), [{"images": image[None]} for image in images], names, path, names)


@torch.no_grad()
def _write(
    module: nn.Module,
    examples: Sequence[dict[str, Tensor]],
    outputs: Sequence[str],
    path: Path,
    compared: Sequence[str],
    shapes: dict[str, Any] | None = None,
) -> None:
    """Export a module, run the file on every example, and compare outputs with the module's own."""
    import onnxruntime  # pyright: ignore[reportMissingImports]

    plain, names = plain_copy(module), list(examples[0])
    with quietly():
        program = torch.onnx.export(
            plain,
            tuple(examples[0].values()),
            dynamo=True,
            verbose=False,
            input_names=names,
            output_names=list(outputs),
            dynamic_shapes=shapes,
        )
    assert program is not None
    program.save(path)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for example in examples:
        wanted = plain(**example)
        of_name = dict(zip(outputs, [wanted] if isinstance(wanted, Tensor) else wanted, strict=True))
        given = {name: value.numpy() for name, value in example.items()}
        for name, values in zip(compared, session.run(list(compared), given), strict=True):
            error = (torch.from_numpy(values) - of_name[name]).abs().max().item()
            if not error <= TOLERANCE:  # NaN too
                raise ValueError(f"{path.name} must give the network's {name} to {TOLERANCE}, got a difference {error}")
