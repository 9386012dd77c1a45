"""How the poses of an auto-encoder follow its images, in the numbers of a result."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from torchcaps.models.pose_recovery import (
    AFFINE_PARAMETERS,
    affine_parameters,
    recover_transformation,
    regression_fit,
    transformation_consistency,
    unwrap_rotation,
)
from torchcaps.training.examples import Batch
from torchcaps.training.processes import ALONE, World

#: A capsule counts as active if it is active in at least this many pairs of images.
LEAST_PAIRS = 30
#: Less variation than this is rounding.
_VARIES = 1e-3


@torch.no_grad()
def pose_metrics(model: nn.Module, batches: Iterable[Batch], world: World = ALONE) -> dict[str, Any]:
    """Compare the transformations of the images with those recovered from the capsules.

    Args:
        model: a transforming auto-encoder, in evaluation mode.
        batches: batches of transformed images.
        world: the processes, of which each has batches of its own.

    Returns:
        ``follows``: slope and R² of each parameter that varies, as all capsules recover it together. ``capsules``: the
        same as single capsules recover it in the images where they are active: lowest, median and highest slope and R²
        over the capsules, and how many capsules these are. ``consistency``:
        transformation-consistency error, as a fraction of the error of the same model with T ignored; None where no
        image was transformed.
    """
    true, together, each, active, errors = [], [], [], [], []
    for batch in batches:
        if not len(batch.images):
            continue
        assert batch.transformation is not None
        transformed = batch.parts.squeeze(1)
        recovered = recover_transformation(model, batch.images, transformed)
        consistency = transformation_consistency(model, batch.images, batch.transformation, transformed)
        true.append(affine_parameters(batch.transformation).cpu())
        together.append(affine_parameters(recovered.together).cpu())
        each.append(affine_parameters(recovered.each).cpu())
        active.append(recovered.active.cpu())
        both = torch.stack((consistency.error, consistency.baseline)).sum(dim=1)
        errors.append(both.cpu().double())  # there, for Macs' GPUs have no float64
    true, together, each, active, errors = (
        [x for one in world.gathered(own) for x in one] for own in (true, together, each, active, errors)
    )
    error, baseline = torch.stack(errors).sum(dim=0).tolist()
    target = torch.cat(true)
    # Poses without inverse give numbers that are not finite.
    joint, single = (x.nan_to_num(0, 0, 0) for x in (torch.cat(together), torch.cat(each)))
    joint, single = unwrap_rotation(target, joint), unwrap_rotation(target.unsqueeze(1), single)
    varying = [k for k in range(len(AFFINE_PARAMETERS)) if target[:, k].std(correction=0) > _VARIES]
    return {
        "follows": {AFFINE_PARAMETERS[k]: regression_fit(target[:, k], joint[:, k])._asdict() for k in varying},
        "capsules": _single_capsules(target, single, torch.cat(active), varying),
        "consistency": error / baseline if baseline else None,
    }


def _single_capsules(true: Tensor, predicted: Tensor, active: Tensor, varying: list[int]) -> dict[str, Any]:
    """Summarize how well each capsule alone predicts ``[N, J, 6]`` the true parameters ``[N, 6]``."""
    chosen = (active.sum(dim=0) >= LEAST_PAIRS).nonzero().flatten().tolist()
    summary: dict[str, Any] = {"n": active.shape[1], "active": len(chosen)}
    for k in varying if chosen else ():
        fits = [regression_fit(true[active[:, j], k], predicted[active[:, j], j, k]) for j in chosen]
        slopes, r2s = zip(*fits, strict=True)
        summary[AFFINE_PARAMETERS[k]] = {
            name: [min(v), median(v), max(v)] for name, v in (("slope", slopes), ("r2", r2s))
        }
    return summary
