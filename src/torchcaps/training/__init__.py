"""The only place that joins models and data: what is trained on what, how, and what came of it.

This package imports neither torch nor Lightning until something is trained, so that the command
line answers at once.
"""

from torchcaps.training.config import Data, Experiment, Model, Optim

__all__ = ["Data", "Experiment", "Model", "Optim"]
