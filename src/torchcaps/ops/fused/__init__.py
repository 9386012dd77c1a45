"""Routings that never store the votes: the same functions, computed in another way.

The reference files say what is computed; what stands here computes it again in registers, and is held to
the reference by ``tests/ops/fused``. One folder for each backend.
"""

from torchcaps.ops.fused.choose import IMPLS, which_impl

__all__ = ["IMPLS", "which_impl"]
