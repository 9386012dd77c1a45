"""Arithmetic as exact as torch's, where Triton's own is not: division, root, and products of matrices."""

import triton
import triton.language as tl


@triton.jit
def over(a, b):
    """Divide a by b, rounded once: in float32 Triton's own division is an approximation."""
    return tl.div_rn(a, b) if b.dtype == tl.float32 else a / b


@triton.jit
def root(x):
    """Take the square root, rounded once."""
    return tl.sqrt_rn(x) if x.dtype == tl.float32 else tl.sqrt(x)


INTERPRETED = not isinstance(over, triton.JITFunction)
#: The interpreter multiplies the bits of bfloat16 as if they were integers; the numbers are the same in float32.
FACTOR = tl.constexpr(tl.float32 if INTERPRETED else tl.bfloat16)


@triton.jit
def high(x):
    """Round x to bfloat16."""
    return x.to(tl.bfloat16).to(FACTOR)


@triton.jit
def low(x):
    """Round what :func:`high` leaves to bfloat16: both together have 16 bits of x."""
    return (x - x.to(tl.bfloat16).to(tl.float32)).to(tl.bfloat16).to(FACTOR)


@triton.jit
def product(a, b, total, PRECISION: tl.constexpr):
    """Add the matrix product of a and b to ``total``, in whose dtype it is summed.

    PRECISION is one of ``tl.dot``, or "bfloat16": then a and b may be of bfloat16, and others are taken for the sum of
    two numbers of bfloat16, with errors of 2⁻¹⁷ that rounding to bfloat16 at the end hides.
    """
    if PRECISION != "bfloat16":
        a, b = a.to(total.dtype), b.to(total.dtype)
        total = tl.dot(a, b, total, input_precision=PRECISION, out_dtype=total.dtype)
    elif a.dtype == tl.bfloat16 and b.dtype == tl.bfloat16:
        total = tl.dot(a.to(FACTOR), b.to(FACTOR), total)
    elif a.dtype == tl.bfloat16:
        total = tl.dot(a.to(FACTOR), low(b), total)
        total = tl.dot(a.to(FACTOR), high(b), total)
    elif b.dtype == tl.bfloat16:
        total = tl.dot(low(a), b.to(FACTOR), total)
        total = tl.dot(high(a), b.to(FACTOR), total)
    else:
        total = tl.dot(low(a), high(b), total)
        total = tl.dot(high(a), low(b), total)
        total = tl.dot(high(a), high(b), total)
    return total
