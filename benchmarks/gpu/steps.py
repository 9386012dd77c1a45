"""Stage ``steps``: whole training steps beside the same networks without routing, and beside ordinary ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from benchmarks.compiled import nothing_compiled
from benchmarks.gpu.ceilings import median
from benchmarks.gpu.graphs import captured
from benchmarks.gpu.session import Session
from benchmarks.peak import measure
from benchmarks.work import Net
from torchcaps.ops import which_backend

_CAPSNET = Net(batch=128, capturable=True)
_EM = Net("matrix_capsnet", batch=64, image_shape=(2, 32, 32), n_classes=5, capturable=True)
#: Networks without routed layers, beside those with them.
PLAIN = {
    "norb_cnn B=64": replace(_EM, model="norb_cnn"),
    "baseline_cnn B=128": replace(_CAPSNET, model="baseline_cnn"),
}
ROUTED = {
    "capsnet B=128": _CAPSNET,
    "matrix_capsnet B=64": _EM,
    "matrix_capsnet_small B=64": replace(_EM, model="matrix_capsnet_small"),
    "capsnet B=64": replace(_CAPSNET, batch=64),
}
PRECISIONS = {"fp32": "32", "bf16": "bf16"}
CONTENDERS = ("floor", "ours", "triton", "reference")


def steps(session: Session) -> None:
    """Time steps of training with Adam, and their memory."""
    record = session.record("steps")
    for precision, given in list(PRECISIONS.items())[: 1 if session.smoke else None]:
        for name, net in (_small(ROUTED) if session.smoke else ROUTED).items():
            for contender in CONTENDERS:
                if contender == "triton" and not _worth(session, net):
                    continue
                if contender == "reference" and session.smoke:
                    continue  # on a CPU the slowest by far
                work = replace(net, contender=contender, precision=given)
                record.row(f"{name}, {precision}, {contender}", lambda work=work: _timed(session, work), 10)
        for name, net in ({} if session.smoke else PLAIN).items():
            work = replace(net, precision=given)
            record.row(f"{name}, {precision}, itself", lambda work=work: _timed(session, work), 8)


def _small(nets: dict[str, Net]) -> dict[str, Net]:
    names = ("capsnet B=128", "matrix_capsnet B=64")
    return {name: replace(nets[name], batch=2, small=True, capturable=False) for name in names}


def _worth(session: Session, net: Net) -> bool:
    """Whether the kernels are another contender than ours: "auto" does not take them by itself."""
    routing = "em" if net.model.startswith("matrix") else "dynamic"
    return session.cuda and which_backend(routing, "auto", torch.empty(1, device=session.device)) != "triton"


def _timed(session: Session, net: Net) -> dict[str, Any]:
    row: dict[str, Any] = {"MB": measure(net, session.device)["step"] / 1e6} if session.cuda else {}
    call = net.prepare(session.device)
    for _ in range(1 if session.smoke else 3):
        call()
    with nothing_compiled():
        seconds = median(session, call)
        row["ms"] = 1e3 * seconds
        row["images a second"] = net.batch / seconds
        if session.cuda:
            try:
                replay, n = captured(call, seconds)
                row["graph ms"] = 1e3 * median(session, replay) / n
            except RuntimeError as error:
                torch.cuda.synchronize()
                row["no graph"] = f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]
    return row
