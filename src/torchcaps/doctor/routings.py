"""What "auto" takes on a device, why, and how near it is to the reference in float64."""

from __future__ import annotations

import time
from typing import Any

import torch

from torchcaps.ops import which_backend
from torchcaps.ops.backends import agreement, native, triton, trust
from torchcaps.ops.backends.errors import in_one_line
from torchcaps.ops.backends.trust import alone

#: Of poses and of matrices: as networks are trained, plainly and under autocast.
FLOAT = (torch.float32, torch.float32)
MIXED = (torch.bfloat16, torch.float32)
ROUTINGS = {"cpu": ("dynamic", "dynamic_votes", "em", "em_vectors", "variational_bayes"), "cuda": ("dynamic", "em")}


def examine_routing(routing: str, device: torch.device, dtypes: tuple[torch.dtype, torch.dtype]) -> dict[str, Any]:
    """Fill one row: what "auto" takes for such tensors, or why not compiled code, and its errors."""
    start = time.monotonic()
    poses, matrices = (torch.empty(1, dtype=dtype, device=device) for dtype in dtypes)
    row: dict[str, Any] = {
        "device": str(device),
        "routing": routing,
        "dtypes": [str(dtype).removeprefix("torch.") for dtype in dtypes],
        "taken": which_backend(routing, "auto", poses, matrices),
    }
    if row["taken"] == "reference":
        row["why"], row["wrong"] = _why_not(routing, device, dtypes)
    try:
        found = _agreement(routing, device, dtypes, row["taken"])
    except Exception as error:
        row["fault"] = f"it did not run: {trust.in_words(error) if device.type == 'cuda' else in_one_line(error)}"
    else:
        if found is not None:
            row["fault"] = found.fault()
            row["error"], row["reference_error"] = found.errors
            row["compared"] = [x._asdict() for x in found.compared]
    return row | {"seconds": round(time.monotonic() - start, 2)}


def _agreement(
    routing: str, device: torch.device, dtypes: tuple[torch.dtype, torch.dtype], taken: str
) -> agreement.Agreement | None:
    """Compared anew, whatever was found before; None where there is nothing to compare."""
    if taken == "triton":
        return trust.agreement(routing, device, dtypes)
    return alone(lambda: agreement.compare(routing, "cpu", device, dtypes)) if taken == "cpu" else None


def _why_not(routing: str, device: torch.device, dtypes: tuple[torch.dtype, torch.dtype]) -> tuple[str, bool]:
    """Return why the reference is taken, and whether something is wrong: else it is merely not there."""
    if device.type == "cpu":
        why = native.why_not(routing) or "unknown"
        return why, "cannot compile" in why or "cannot run" in why or "took longer" in why
    if trust.switch() == "0":
        return f"{trust.SWITCH}=0 says so", False
    why = triton.why_not(routing)
    if why is not None:
        return why, False
    why = trust.why_not_trusted(routing, str(device), *dtypes) or "unknown"
    return why, "are wrong" in why or "broke" in why or ("did not run" in why and "C compiler" not in why)
