"""How the poses of an auto-encoder follow its images, in the numbers of a result."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from torchcaps.analysis.painted import told
from torchcaps.analysis.recover import QUANTITIES, line, quantities, recover, unwound
from torchcaps.experiments.batches import Batch

#: A capsule counts as active if it is so in so many pairs of images.
LEAST_PAIRS = 30
#: Less variation than this is rounding.
_VARIES = 1e-3


@torch.no_grad()
def following(model: nn.Module, batches: Iterable[Batch]) -> dict[str, Any]:
    """What was done to the images, beside what the capsules say, and how much being told it helps.

    Args:
        model: a transforming auto-encoder, in evaluation mode.
        batches: of transformed images.

    Returns:
        ``follows``: slope and R² of each quantity that varies, as all capsules say it together. ``capsules``: the same
        as single capsules say it in the images where they are active: lowest, median and highest slope and R² over
        the capsules, and how many these are. ``told``: squared error of what is painted for (x, T) against what is
        painted for (T x, identity), as a fraction of that of the same model with T ignored; None where nothing was
        done.
    """
    true, together, each, active, errors = [], [], [], [], []
    for batch in batches:
        assert batch.transformation is not None
        transformed = batch.parts.squeeze(1)
        found = recover(model, batch.images, transformed)
        error = told(model, batch.images, batch.transformation, transformed)
        true.append(quantities(batch.transformation).cpu())
        together.append(quantities(found.together).cpu())
        each.append(quantities(found.each).cpu())
        active.append(found.active.cpu())
        both = torch.stack((error.itself, error.ignoring)).sum(dim=1)
        errors.append(both.cpu().double())  # there, for Macs' GPUs have no float64
    itself, ignoring = torch.stack(errors).sum(dim=0).tolist()
    done = torch.cat(true)
    # What is not finite is of poses without inverse.
    said, alone = (x.nan_to_num(0, 0, 0) for x in (torch.cat(together), torch.cat(each)))
    said, alone = unwound(done, said), unwound(done.unsqueeze(1), alone)
    varying = [k for k in range(len(QUANTITIES)) if done[:, k].std(correction=0) > _VARIES]
    return {
        "follows": {QUANTITIES[k]: line(done[:, k], said[:, k])._asdict() for k in varying},
        "capsules": _alone(done, alone, torch.cat(active), varying),
        "told": itself / ignoring if ignoring else None,
    }


def _alone(true: Tensor, got: Tensor, active: Tensor, varying: list[int]) -> dict[str, Any]:
    """Of quantities ``[N, 6]`` and what each capsule says of them ``[N, J, 6]``."""
    chosen = (active.sum(dim=0) >= LEAST_PAIRS).nonzero().flatten().tolist()
    summary: dict[str, Any] = {"n": active.shape[1], "active": len(chosen)}
    for k in varying if chosen else ():
        lines = [line(true[active[:, j], k], got[active[:, j], j, k]) for j in chosen]
        slopes, r2s = zip(*lines, strict=True)
        summary[QUANTITIES[k]] = {name: [min(v), median(v), max(v)] for name, v in (("slope", slopes), ("r2", r2s))}
    return summary
