"""Calls of every function that explains a model, or draws what was computed."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from tools.arguments import Maker, Shaped, Sizes, choice, classes, whole
from tools.call import Call
from torchcaps import explain, models

T = partial(Shaped, low=0)
NAMES = choice(("a", "b", "c"), ["a", "b", "c"])


@cache
def _capsnet() -> nn.Module:
    torch.manual_seed(0)
    return models.capsnet_small((1, 12, 12), 3, channels=4, kernel_size=3, d_class=4, decoder=(8,)).eval()


@cache
def _matrices() -> nn.Module:
    return models.MatrixCapsNet((1, 24, 24), 3, A=2, B=2, C=2, D=2).eval()


@cache
def _autoencoder() -> nn.Module:
    return models.affine_autoencoder((1, 8, 8), n_capsules=3, n_recognition=3, n_generation=3).eval()


def _float(make: Maker) -> Maker:
    """Draw in the dtype of the models."""

    def made(sizes: Sizes) -> Any:
        sizes["dtype"] = torch.float32
        return make(sizes)

    return made


def _any(form: str) -> Maker:
    """Draw a tensor whose sizes need not be those of the result."""
    return lambda sizes: T(form)(sizes)  # noqa: PLW0108 (which the check of results knows nothing of)


def _eyes(form: str) -> Maker:
    def made(sizes: Sizes) -> Tensor:
        return torch.eye(3).expand(*(sizes[letter] for letter in form.split()), 3, 3).clone()

    return made


MODEL: dict[str, Maker] = {"model": lambda _: _capsnet()}
MATRICES: dict[str, Maker] = {"model": lambda _: _matrices()}
AUTO: dict[str, Maker] = {"model": lambda _: _autoencoder()}
IMAGES = _float(T("B 1 12 12"))
LABELS = classes("B", 3)


def _of(function: Any, **more: Any) -> Any:
    """Return what a function of the library makes, for one that draws it."""
    return lambda sizes: function(**{name: make(sizes) if callable(make) else make for name, make in more.items()})


_COUPLINGS = _of(explain.coupling_maps, **MODEL, images=lambda _: torch.rand(2, 1, 12, 12))
_TREE = _of(explain.parse_tree, **MODEL, image=lambda _: torch.rand(1, 12, 12))
_PARTS = _of(explain.part_maps, **MODEL, images=lambda _: torch.rand(2, 1, 12, 12))
_VOTES = _of(explain.class_votes, **MATRICES, image=lambda _: torch.rand(1, 24, 24), label=1)
_RECONSTRUCTIONS = _of(
    explain.reconstruct, **MODEL, images=lambda _: torch.rand(2, 1, 12, 12), labels=lambda _: torch.tensor([0, 2])
)


def _segmentation(sizes: Sizes) -> explain.Segmentation:
    del sizes
    images, labels = torch.rand(2, 1, 12, 12), torch.tensor([[0, 1], [1, 2]])
    return explain.segment(_capsnet(), images, labels, torch.rand(2, 2, 1, 12, 12))


def _reliability(sizes: Sizes) -> explain.Reliability:
    del sizes
    return explain.reliability(torch.rand(9), torch.rand(9) > 0.5)


def _metrics(sizes: Sizes) -> Any:
    path = sizes.folder / "metrics.csv"
    path.write_text("epoch,step,train_loss,val_loss,val_error,lr\n1,10,0.5,0.4,0.3,0.001\n")
    return path


def _inside(context: Any) -> Any:
    """Enter and leave a context."""

    def call(model: Any) -> None:
        with context(model):
            pass

    return call


def _decorated(function: Any) -> Any:
    return explain.inspects_model(function)(_capsnet())


_ROW = {"epoch": 1.0, "train_loss": 0.5, "val_loss": 0.4, "val_error": 0.3, "lr": 0.001}

CALLS = {
    # What a model says of its images, it says of its own argument x.
    f"torchcaps.explain.{name}": call._replace(names=("x",) if "model" in call.needed else ())
    for name, call in {
        "perturb": Call(
            explain.perturb, {**MODEL, "images": IMAGES, "classes": LABELS}, {"offsets": choice((-0.1, 0.1), [0.5])}
        ),
        "draw_perturbations": Call(
            explain.draw_perturbations, {"grid": _float(T("D 2 1 4 5")), "offsets": choice((-0.1, 0.1))}
        ),
        "dimension_strengths": Call(explain.dimension_strengths, {"grids": _any("B D K 1 4 5")}),
        "draw_strongest": Call(
            explain.draw_strongest,
            {
                "grids": _any("2 D 2 1 4 5"),
                "names": choice(("a", "b")),
                "offsets": choice((-0.1, 0.1)),
            },
            {"n": whole(1, 3)},
        ),
        "coupling_maps": Call(
            explain.coupling_maps, {**MODEL, "images": IMAGES}, {"n_iters": whole(1, 3), "extent": choice(None)}
        ),
        "draw_couplings": Call(
            explain.draw_couplings,
            {"image": _float(T("1 12 12")), "couplings": _COUPLINGS, "classes": NAMES},
            {"index": choice(0, 1), "n_classes": whole(1, 3)},
        ),
        "parse_tree": Call(
            explain.parse_tree,
            {**MODEL, "image": _float(T("1 12 12"))},
            {"n_iters": whole(1, 3), "n_capsules": whole(1, 9), "extent": choice(None)},
        ),
        "draw_parse_tree": Call(
            explain.draw_parse_tree,
            {"image": _float(T("1 12 12")), "trees": _TREE, "classes": NAMES},
            {"highlight": choice((), (1,)), "colours": choice(("#d9730d", "#2458b8"))},
        ),
        "part_maps": Call(explain.part_maps, {**MODEL, "images": IMAGES}, {"extent": choice(None)}),
        "draw_parts": Call(
            explain.draw_parts,
            {"images": _float(T("2 1 12 12")), "parts": _PARTS, "labels": classes("2", 3), "classes": NAMES},
        ),
        "map_edges": Call(explain.map_edges, MODEL, {"layer": choice(0, -1)}),
        "map_extent": Call(explain.map_extent, {**MODEL, "images": IMAGES}, {"layer": choice(0, -1)}),
        "trace_routing": Call(explain.trace_routing, {**MODEL, "images": IMAGES}),
        "receptive_fields_of": Call(explain.receptive_fields_of, MODEL, {"layer": choice(0, -1)}),
        "capsule_places": Call(explain.capsule_places, MODEL),
        "class_votes": Call(
            explain.class_votes,
            {**MATRICES, "image": _float(T("1 24 24")), "label": choice(0, 2)},
            {"n_iters": whole(1, 3)},
        ),
        "votes_for_classes": Call(explain.votes_for_classes, {**MATRICES, "pose": _float(T("B 2 1 2 4 4"))}),
        "draw_votes": Call(explain.draw_votes, {"votes": lambda sizes: [_VOTES(sizes)], "names": choice(("a",))}),
        "em_class_caps": Call(explain.em_class_caps, MATRICES),
        "propagate_responsibility": Call(
            explain.propagate_responsibility,
            {
                "amount": T("B K J 2 2"),
                "activation": T("B T 3 4"),
                "coupling": lambda sizes: torch.rand(sizes["B"], 2, 2, 6 * sizes["T"], sizes["J"]),
                "kernel_size": choice((2, 3)),
                "stride": choice((1, 1)),
            },
        ),
        "reconstruct": Call(explain.reconstruct, {**MODEL, "images": IMAGES, "labels": LABELS}),
        "draw_reconstructions": Call(
            explain.draw_reconstructions, {"reconstructions": _RECONSTRUCTIONS, "classes": NAMES}
        ),
        "segment": Call(
            explain.segment,
            {
                **MODEL,
                "images": IMAGES,
                "labels": lambda sizes: torch.tensor([[0, 1]]).expand(sizes["B"], 2).clone(),
                "parts": _float(T("B 2 1 12 12")),
            },
        ),
        "draw_segmentation": Call(explain.draw_segmentation, {"segmentation": _segmentation, "classes": NAMES}),
        "red_and_green": Call(explain.red_and_green, {"parts": _float(T("B 2 1 12 12"))}),
        "view_responses": Call(
            explain.view_responses,
            {
                **MODEL,
                "images": _float(T("4 1 12 12")),
                "label": choice(0, 2),
                "elevation": lambda _: torch.arange(4) % 2,
                "azimuth": lambda _: torch.arange(4) // 2,
            },
            {"batch_size": whole(1, 4)},
        ),
        "draw_views": Call(
            explain.draw_views,
            {
                "views": _of(
                    explain.view_responses,
                    **MODEL,
                    images=lambda _: torch.rand(4, 1, 12, 12),
                    label=1,
                    elevation=lambda _: torch.arange(4) % 2,
                    azimuth=lambda _: torch.arange(4) // 2,
                ),
                "images": _float(T("4 1 12 12")),
                "elevation": lambda _: torch.arange(4) % 2,
                "azimuth": lambda _: torch.arange(4) // 2,
                "name": choice("a"),
            },
            {"trained": lambda _: torch.tensor([[True, False], [True, True]])},
        ),
        "mean_by_view": Call(
            explain.mean_by_view,
            {
                "values": T("4 K"),
                "elevation": lambda _: torch.arange(4) % 2,
                "azimuth": lambda _: torch.arange(4) // 2,
            },
        ),
        "generative_units": Call(explain.generative_units, AUTO),
        "draw_generative_units": Call(
            explain.draw_generative_units,
            {"units": T("J G 1 4 5")},
            {"n_capsules": whole(1, 3), "n_units": whole(1, 3)},
        ),
        "part_reconstructions": Call(explain.part_reconstructions, {**AUTO, "image": _float(T("1 8 8"))}),
        "transformation_sweep": Call(
            explain.transformation_sweep, {**AUTO, "image": _float(T("1 8 8")), "matrices": _eyes("K")}
        ),
        "draw_transformation_sweep": Call(
            explain.draw_transformation_sweep,
            {
                "true": _float(T("2 1 8 8")),
                "reconstructions": _float(T("2 1 8 8")),
                "titles": choice(("a", "b")),
                "within": choice((True, False)),
            },
        ),
        "transformation_consistency": Call(
            explain.transformation_consistency,
            {
                **AUTO,
                "images": _float(T("B 1 8 8")),
                "transformation": _eyes("B"),
                "transformed": _float(T("B 1 8 8")),
            },
        ),
        "recover_transformation": Call(
            explain.recover_transformation,
            {**AUTO, "images": _float(T("B 1 8 8")), "transformed": _float(T("B 1 8 8"))},
            can_be_endless=True,
        ),
        "affine_parameters": Call(explain.affine_parameters, {"matrix": _eyes("B")}, can_be_endless=True),
        "regression_fit": Call(explain.regression_fit, {"true": T("7"), "predicted": T("7")}, can_be_endless=True),
        "unwrap": Call(explain.unwrap, MODEL),
        "unwrap_rotation": Call(explain.unwrap_rotation, {"true": _any("N 6"), "predicted": _any("N 6")}),
        "draw_pose_recovery": Call(
            explain.draw_pose_recovery,
            {"panels": lambda _: [explain.RecoveryPanel("x", torch.rand(5), torch.rand(5))]},
            {"unit": choice("px")},
        ),
        "confusion_matrix": Call(
            explain.confusion_matrix,
            {"labels": classes("B", 3), "predicted": classes("B", 3), "n_classes": choice(3)},
        ),
        "draw_confusion": Call(
            explain.draw_confusion, {"matrix": lambda _: torch.randint(9, (3, 3)), "classes": NAMES}
        ),
        "colour_masks": Call(
            explain.colour_masks,
            {"images": lambda _: torch.rand(2, 1, 4, 5), "masks": lambda _: torch.rand(2, 3, 4, 5)},
        ),
        "draw_masks": Call(
            explain.draw_masks,
            {
                "images": lambda _: torch.rand(2, 1, 4, 5),
                "masks": lambda _: torch.rand(2, 3, 4, 5),
                "predicted": lambda _: torch.rand(2, 3, 4, 5),
                "classes": lambda _: ["a", "b", "c"],
            },
        ),
        "draw_misclassified": Call(
            explain.draw_misclassified,
            {"images": IMAGES, "labels": LABELS, "predicted": LABELS, "classes": NAMES},
            {"n": whole(1, 5)},
        ),
        "reliability": Call(
            explain.reliability,
            {"confidence": T("N"), "right": lambda sizes: torch.rand(sizes["N"]) > 0.5},
            {"n_bins": whole(1, 5)},
            can_be_endless=True,
        ),
        "draw_reliability": Call(
            explain.draw_reliability, {"found": _reliability}, {"x": choice("a"), "y": choice("b")}
        ),
        "co_occurrence": Call(
            explain.co_occurrence, {"labels": lambda sizes: torch.rand(sizes["N"], 3) > 0.5}, can_be_endless=True
        ),
        "draw_co_occurrence": Call(
            explain.draw_co_occurrence, {"panels": lambda _: [("a", torch.rand(3, 3))], "classes": NAMES}
        ),
        "draw_labels": Call(
            explain.draw_labels,
            {
                "images": IMAGES,
                "labels": lambda sizes: torch.rand(sizes["B"], 3) > 0.5,
                "predicted": lambda sizes: torch.rand(sizes["B"], 3) > 0.5,
                "classes": NAMES,
            },
        ),
        "draw_curves": Call(
            explain.draw_curves, {"runs": choice({"a": [_ROW]}, {"a": [_ROW, {**_ROW, "epoch": 2.0}]})}
        ),
        "read_metrics": Call(explain.read_metrics, {"path": _metrics}),
        "draw_sweep": Call(
            explain.draw_sweep,
            {"errors": choice({"a": [0.1, 0.2]}, {"a": (0.5,), "b": [0.1]})},
            {"measure": choice("validation error")},
        ),
        "draw_image_rows": Call(
            explain.draw_image_rows,
            {"rows": lambda _: [("a", torch.rand(2, 1, 4, 5)), ("b", torch.rand(2, 1, 4, 5))]},
            {"titles": choice((), ("x", "y"))},
        ),
        "extract_features": Call(explain.extract_features, {**MODEL, "images": IMAGES}, {"batch_size": whole(1, 4)}),
        "principal_components": Call(
            explain.principal_components,
            {"points": _any("9 4")},
            {"weight": _any("9"), "k": whole(1, 3)},
            can_be_endless=True,
        ),
        "class_capsules": Call(explain.class_capsules, {**MODEL, "images": IMAGES}),
        "scores_of": Call(explain.scores_of, {**MODEL, "images": IMAGES}),
        "decoder_of": Call(explain.decoder_of, MODEL),
        "as_capsnet": Call(explain.as_capsnet, MODEL),
        "as_autoencoder": Call(explain.as_autoencoder, AUTO),
        "eval_mode": Call(_inside(explain.eval_mode), MODEL),
        "full_gradient": Call(_inside(explain.full_gradient), MODEL),
        "inspects_model": Call(_decorated, {"function": choice(str)}),
    }.items()
}
