"""Models on the Hugging Face Hub, by its own mixin; the extra ``hub``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import PyTorchModelHubMixin
from torch import Tensor, nn

from torchcaps.layers.shapes import as_image_shape
from torchcaps.models import ModelOutput, Reconstruction, build


class HubModel(
    nn.Module,
    PyTorchModelHubMixin,
    library_name="torchcaps",
    tags=["capsule-network"],
    license="apache-2.0",
):
    """Hold a network of :func:`torchcaps.models.build` in the form that the Hub knows.

    ``save_pretrained(folder)`` writes ``config.json`` and ``model.safetensors``, ``from_pretrained(folder or name)``
    reads them, and ``push_to_hub(name)`` uploads them. The first two need no network.

    Args:
        model_name: One of :data:`torchcaps.models.MODELS`.
        image_shape: (channels, height, width).
        classes: Their names, in the order of the scores; none for an auto-encoder.
        options: Further options of the network, as JSON knows them.

    Raises:
        ValueError: As :func:`torchcaps.models.build`; classes that are one text, or named twice.

    Attributes:
        model: The network.

    Example:
        >>> import tempfile, torch
        >>> mine = HubModel("capsnet_small", (1, 28, 28), ["cat", "dog"], {"channels": 8})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     mine.save_pretrained(folder)
        ...     again = HubModel.from_pretrained(folder)
        Loading weights from local directory
        >>> bool(torch.equal(again.model.conv.weight, mine.model.conv.weight)), again.classes
        (True, ['cat', 'dog'])
    """

    def __init__(
        self,
        model_name: str,
        image_shape: Sequence[int],
        classes: Sequence[str] = (),
        options: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        named = isinstance(classes, Sequence) and all(isinstance(each, str) for each in classes)
        if not named or isinstance(classes, str) or len(set(classes)) < len(classes):
            raise ValueError(f"classes must be a list of different names, got {classes!r}")
        if options is not None and not (isinstance(options, dict) and all(isinstance(each, str) for each in options)):
            raise ValueError(f"options must be a dict of the network's options by name, got {options!r}")
        self.classes = list(classes)
        self.model = build(model_name, as_image_shape(image_shape), len(self.classes) or None, **(options or {}))

    @classmethod
    def from_run(cls, run: str | Path) -> HubModel:
        """Take the network of a finished run.

        Raises:
            ValueError: As :func:`torchcaps.load_model`; a network that was handed over, which no name says.
        """
        from torchcaps.training.checkpoint import load_model
        from torchcaps.training.run import Run

        trained, config = load_model(run), Run(run).experiment()
        made = cls(config.model.name, trained.image_shape, list(trained.classes), dict(config.model.options))
        made.model.load_state_dict(trained.model.state_dict())
        return made.eval()

    @classmethod
    def _load_as_safetensor(cls, model: Any, model_file: str, map_location: str, strict: bool) -> Any:
        """Load all weights or none: the mixin by itself passes over what a file lacks."""
        del strict
        return super()._load_as_safetensor(model, model_file, map_location, True)

    def forward(self, x: Tensor) -> ModelOutput | Reconstruction:
        """Return what the network says of images ``[B, C, H, W]``."""
        return self.model(x)
