"""Kernels of EM routing between 4×4 matrix capsules; the algebra is in ``ops/fused/em.py``."""

import triton

from torchcaps.ops.fused.triton.kernels.em_gradients import pose_pass, weight_pass
from torchcaps.ops.fused.triton.kernels.em_sums import child_pass, parent_pass

__all__ = ["INTERPRETED", "child_pass", "parent_pass", "pose_pass", "weight_pass"]

INTERPRETED = not isinstance(child_pass, triton.JITFunction)
