"""Which implementation of a routing runs."""

from __future__ import annotations

import logging

import torch
from torch import Tensor
from torch.jit import is_tracing  # pyright: ignore[reportPrivateImportUsage]

from torchcaps.checks import check_choice, check_tensor
from torchcaps.ops.backends import native, triton, trust
from torchcaps.ops.backends.errors import Unavailable
from torchcaps.ops.backends.tracing import constant_when_compiled, have_tangents, in_functorch

_BACKENDS = {"cpu": native, "triton": triton}
#: "reference" is the paper's procedure in plain PyTorch; "auto" takes what ``_FASTEST`` says, where it can be had.
BACKENDS = ("auto", "reference", *_BACKENDS)
#: The routings that are compiled; of vectors by EM routing by "cpu" alone.
_FUSED = ("dynamic", "dynamic_votes", "em", "em_vectors", "variational_bayes")
#: What "auto" takes, by the kind of device and the routing; the reference where nothing is said.
_FASTEST = {
    "cpu": dict.fromkeys(_FUSED, "cpu"),
    # Measured on an H100, forward and backward, beside the best in plain PyTorch, compiled or not
    # (study/results/gpu.jsonl: speed):
    "cuda": {
        # 1152 to 10 capsules, 128 images: 0.42 ms and 41 MB beside 1.4 ms and 572 MB
        "dynamic": "triton",
        # first layer of A=B=C=D=32, 64 images: 6.7 ms and 0.4 GB beside 40 ms and 14 GB
        "em": "triton",
    },
}
_NOTED: set[str] = set()


def which_backend(routing: str, backend: str, *tensors: Tensor) -> str:
    """Tell which implementation a call takes: the same arguments give the same answer.

    On a CUDA device "auto" takes Triton's kernels if they are right there. They are checked the first time that a
    routing meets a GPU and dtypes, forward and every gradient against the reference in float64; this takes 10 to 60
    seconds once on a machine, and is announced. Where they are wrong, or do not run, the log says why and the reference
    is taken. It cannot be done while a CUDA graph is captured: call the layer once before, or the graph has the
    reference in it. The environment variable ``TORCHCAPS_TRITON=0`` keeps "auto" from the kernels, ``1`` takes them
    unchecked; naming ``backend="triton"`` checks nothing.

    Args:
        routing: "dynamic" with a matrix for each pair, "dynamic_votes" of votes that a convolution made and without
            their couplings, "em" of 4×4 matrices, "em_vectors" of 16 numbers, or "variational_bayes" of 4×4 matrices,
            whose code Heinsen's routing of matrices and inverted attention take, too. That they are so many, and that
            no gradient of an offset is asked for, is taken for granted.
        backend: what was asked for, "auto" or a name.
        tensors: all that are routed or route: poses first, then matrices, biases, priors.

    Returns:
        A name other than "auto": on the CPU "cpu", on a CUDA device "triton" for "dynamic" and "em", elsewhere
        "reference". Triton's kernels of "variational_bayes" were not timed on a GPU yet: they are taken where named.
        Only "auto" may fall back to the reference, as it does within ``torch.func``, ``torch.jit.trace`` and
        ``torch.onnx.export``; where a compiler or right kernels are missing, a note of the reason
        is logged once.

    Raises:
        ValueError: an unknown ``routing`` or ``backend``, or one that is not for such tensors; a value of
            ``TORCHCAPS_TRITON`` other than 0 and 1.
        NotImplementedError: the one that was named, within torch.func or with forward derivatives.
        Unavailable: the one that was named cannot be had here; the message says why.

    Example:
        >>> import torch
        >>> which_backend("dynamic", "reference", torch.rand(2, 6, 8))
        'reference'
    """
    check_choice("routing", routing, _FUSED)
    check_choice("backend", backend, BACKENDS)
    for tensor in tensors:
        check_tensor("each of tensors", tensor)
    devices = {str(tensor.device) for tensor in tensors}
    kinds = {tensor.device.type for tensor in tensors}
    if "meta" in kinds and len(kinds) > 1:  # torch 2.13 would give unwritten memory, without a word
        raise ValueError(f"all tensors must be on one device, got some on {', '.join(sorted(devices))}")
    if backend == "reference" or (backend == "auto" and is_read_elsewhere()):
        return "reference"
    chosen = _FASTEST.get("+".join(sorted(kinds)), {}).get(routing, "reference") if backend == "auto" else backend
    if chosen == "reference":
        return chosen
    wrong = _BACKENDS[chosen].wrong_devices(routing, kinds, len(devices))
    if wrong is not None:
        if backend == "auto":
            return "reference"
        raise ValueError(f"backend='{chosen}' wants tensors on {wrong}, got some on {', '.join(sorted(devices))}")
    if _is_transformed(tensors):
        if backend == "auto":
            return "reference"
        raise NotImplementedError(
            f"backend='{chosen}' knows neither torch.func nor forward derivatives: take 'reference'"
        )
    unasked = backend == "auto" and chosen == "triton"  # which are to be right, then, and may be switched off
    if unasked and trust.switch() == "0":
        return "reference"
    reason = _BACKENDS[chosen].why_not(routing)
    if reason is None and unasked:
        reason = trust.why_not_auto(routing, tensors)
    if reason is None:
        return chosen
    if backend == "auto":
        note_reference(reason)
        return "reference"
    raise Unavailable(f"backend='{chosen}' is not available: {reason}")


def is_read_elsewhere() -> bool:
    """Tell whether a program is being exported to ONNX or traced by torch.jit, which do not know these operators."""
    return _writes_onnx() if torch.compiler.is_compiling() else is_tracing()


@constant_when_compiled
def _writes_onnx() -> bool:
    return torch.onnx.is_in_onnx_export()


def _is_transformed(tensors: tuple[Tensor, ...]) -> bool:
    """Tell whether more than backward derivatives is needed: torch would silently take a forward one for 0."""
    if in_functorch():
        return True
    if torch.compiler.is_compiling():
        return False
    return have_tangents(*tensors)


@constant_when_compiled
def note_reference(reason: str) -> None:
    """Log, once for each reason, why the slow reference is taken."""
    if reason not in _NOTED:
        _NOTED.add(reason)
        # Logged, not warned: where warnings are errors, "auto" still falls back.
        logging.getLogger("torchcaps").warning("routing takes the slow reference: %s", reason)
