"""Kernels of EM routing between 4×4 matrix capsules; the algebra is in ``ops/em/operator.py``."""

import triton

from torchcaps.ops.em.triton_gradients import pose_pass, weight_pass
from torchcaps.ops.em.triton_states import fit_pass, level_pass, mean_pass, slopes_pass
from torchcaps.ops.em.triton_sums import begin_pass, child_pass, parent_pass

__all__ = [
    "INTERPRETED",
    "begin_pass",
    "child_pass",
    "fit_pass",
    "level_pass",
    "mean_pass",
    "parent_pass",
    "pose_pass",
    "slopes_pass",
    "weight_pass",
]

INTERPRETED = not isinstance(child_pass, triton.JITFunction)
