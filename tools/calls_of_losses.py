"""Calls of every loss, and of the measures that stand beside them."""

from __future__ import annotations

from typing import Any

from tools.arguments import FLAG, Maker, choice, classes, real
from tools.call import Call, returns
from tools.calls_of_ops import T, maybe, multi_hot
from torchcaps import ops

_MASKS: dict[str, Maker] = {"lengths": T("B J H W", low=0), "target": T("B J H W", low=0)}


def _loss(name: str) -> Any:
    def right(sizes: Any, arguments: Any, result: Any) -> str | None:
        del sizes
        wanted = arguments[name].shape[:1] if arguments.get("reduction") == "none" else ()
        return None if tuple(result.shape) == tuple(wanted) else f"of shape {list(result.shape)}"

    return right


def _number(sizes: Any, arguments: Any, result: Any) -> str | None:
    del sizes, arguments
    return None if isinstance(result, float) and 0.1 < result < 1 else f"{result!r}"


#: Options of margin losses, of images and of masks.
_MARGINS = {
    "positive": real(0, 1),
    "negative": real(0, 1),
    "absent_weight": real(0, 1),
    "weight": T("J", low=0),
    "reduction": choice("mean", "sum", "none"),
}

CALLS = {
    "torchcaps.ops.margin_loss": Call(
        ops.margin_loss,
        {"lengths": T("B J", low=0), "target": maybe(classes("B", "J"), multi_hot)},
        _MARGINS,
        right=_loss("lengths"),
    ),
    "torchcaps.ops.spread_loss": Call(
        ops.spread_loss,
        {"activations": T("B J", low=0), "target": classes("B", "J"), "margin": real(0.1, 1)},
        {"weight": T("J", low=0.1), "reduction": choice("mean", "sum", "none")},
        right=_loss("activations"),
    ),
    "torchcaps.ops.spread_margin": Call(
        ops.spread_margin, {"progress": real(0, 1)}, {"schedule": choice("linear", "sigmoid")}, right=_number
    ),
    "torchcaps.ops.reconstruction_loss": Call(
        ops.reconstruction_loss,
        {"reconstruction": T("B C H W", low=0), "image": T("B C H W", low=0)},
        right=returns(""),
    ),
    "torchcaps.ops.mixture_likelihood": Call(
        ops.mixture_likelihood,
        {"x": T("B M D"), "votes": T("B M C D"), "weight": T("B M C", low=0), "scale": T("B M C", low=0.1)},
        {"dummy": real(0.001, 1)},
        right=returns("B M", "B M C"),
    ),
    "torchcaps.ops.dice_loss": Call(
        ops.dice_loss,
        _MASKS,
        {"smooth": real(1e-5, 1), "reduction": choice("mean", "sum", "none")},
        right=_loss("lengths"),
    ),
    "torchcaps.ops.weighted_cross_entropy": Call(
        ops.weighted_cross_entropy,
        _MASKS,
        {"positive_weight": real(0.1, 10), "reduction": choice("mean", "sum", "none")},
        right=_loss("lengths"),
    ),
    "torchcaps.ops.pixel_margin_loss": Call(
        ops.pixel_margin_loss,
        _MASKS,
        _MARGINS,
        right=_loss("lengths"),
    ),
    "torchcaps.ops.dice_score": Call(
        ops.dice_score,
        {"scores": T("B J H W", low=0), "target": T("B J H W", low=0)},
        {"threshold": real(0, 1), "per_image": FLAG},
        right=lambda _, a, r: None if r.shape[-1] == a["scores"].shape[1] else f"of shape {list(r.shape)}",
    ),
    "torchcaps.ops.pose_loss": Call(
        ops.pose_loss,
        {"found": T("B J 2"), "wanted": T("B J 2")},
        {"unit": real(0.1, 10)},
        right=returns(""),
        can_be_endless=True,
    ),
    "torchcaps.ops.pose_loss (matrices)": Call(
        ops.pose_loss,
        {"found": T("B J 3 3"), "wanted": T("B J 3 3")},
        {"unit": real(0.1, 10)},
        right=returns(""),
        can_be_endless=True,
    ),
}
