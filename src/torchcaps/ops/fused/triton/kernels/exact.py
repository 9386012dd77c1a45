"""Division and root that are rounded once, as torch's are: Triton's own are approximations in float32."""

import triton
import triton.language as tl


@triton.jit
def over(a, b):
    """a / b."""
    return tl.div_rn(a, b) if b.dtype == tl.float32 else a / b


@triton.jit
def root(x):
    """The square root."""
    return tl.sqrt_rn(x) if x.dtype == tl.float32 else tl.sqrt(x)
