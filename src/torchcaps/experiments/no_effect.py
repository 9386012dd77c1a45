"""Settings that would do nothing, refused before a run begins: who sets a field takes it to do something."""

from __future__ import annotations

from torch import nn

from torchcaps.experiments.experiment import Data, Experiment, Optim
from torchcaps.layers.base import RoutedLayer
from torchcaps.optim import layouts


def refuse_what_does_nothing(config: Experiment, model: nn.Module) -> None:
    """See that every field that is not as by default has an effect on training this model.

    Not asked of runs that began already: older ones may have such fields, which did nothing then too.

    Raises:
        ValueError: a field that has none.
    """
    data, name, default = config.data, config.model.name, Experiment.reconstruction
    if config.margin != "linear" and config.loss != "spread":
        raise ValueError(
            f"margin must be linear with loss {config.loss}, as it is the spread loss's; got {config.margin}"
        )
    if data.pairs and data.shift != Data.shift:
        raise ValueError(f"data.shift must be left at {Data.shift} with data.pairs, which shift by 4; got {data.shift}")
    for field in () if data.pairs else ("n_pairs", "blend"):
        if getattr(data, field) != getattr(Data(), field):
            raise ValueError(f"data.{field} must be left alone without data.pairs, got {getattr(data, field)}")
    if config.optim.schedule != "exponential":
        for field in ("decay", "decay_steps"):
            if getattr(config.optim, field) != getattr(Optim(), field):
                raise ValueError(
                    f"optim.{field} must be left alone with the schedule {config.optim.schedule}, got "
                    f"{getattr(config.optim, field)}"
                )
    if config.optim.schedule == "constant" and config.optim.floor != Optim.floor:
        raise ValueError(f"optim.floor must be left alone with the schedule constant, got {config.optim.floor}")
    if config.optim.name == "muon" and not layouts(model):
        raise ValueError(f"optim.name must be adam for {name}, which has neither convolutions nor capsules; got muon")
    has_decoder = getattr(model, "decoder", None) is not None and not data.transformed
    if config.reconstruction not in (0, default) and not has_decoder:
        raise ValueError(
            f"reconstruction must be 0 (or {default}, which recipes have) for {name} with the loss {config.loss}, "
            f"which reconstructs nothing beside it; got {config.reconstruction}"
        )
    if config.compile and not any(isinstance(layer, RoutedLayer) for layer in model.modules()):
        raise ValueError(f"compile must be false for {name}, which routes nothing; got {config.compile}")
