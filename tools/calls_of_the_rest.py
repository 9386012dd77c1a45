"""Calls of what has no page of its own here: data, training, optimizers, tests, reports, the playground."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

import torchcaps
from tools.arguments import FLAG, Maker, Shaped, Sizes, choice, real, whole
from tools.call import Call
from tools.trained import tiny, write_run
from torchcaps import data, doctor, models, optim, playground, report, testing, training
from torchcaps.data.digit_masks import load_digit_masks
from torchcaps.data.folder import load_folder
from torchcaps.data.labels import read_labels
from torchcaps.data.mask_folder import load_mask_folder
from torchcaps.data.pairs import Pairs
from torchcaps.data.splits import find_groups
from torchcaps.memory import keep_memory
from torchcaps.training.callbacks import OutOfTime
from torchcaps.training.run import Run


def _images(sizes: Sizes) -> data.Images:
    return data.Images(torch.randint(256, (sizes["N"] + 1, 1, 28, 28)).byte(), torch.arange(sizes["N"] + 1) % 2)


def _samples(sizes: Sizes) -> list[tuple[torch.Tensor, torch.Tensor]]:
    images = _images(sizes)
    return [images[k] for k in range(len(images))]


def _own(_: Sizes) -> data.Dataset:
    """Return a data set that an experiment of sixteen images can be trained on."""
    images = data.Images(torch.rand(20, 1, 28, 28), torch.arange(20) % 2)
    return data.Dataset("own", ("a", "b"), images, images, images)


def _photos(sizes: Sizes) -> Path:
    for kind in ("cat", "dog"):
        folder = sizes.folder / "photos" / kind
        folder.mkdir(parents=True)
        for k in range(5):
            Image.fromarray(np.full((9, 7), 40 * k, np.uint8)).save(folder / f"{k}.png")
    return sizes.folder / "photos"


def _scans(sizes: Sizes) -> Path:
    for part in ("images", "masks"):
        folder = sizes.folder / "scans" / part
        folder.mkdir(parents=True)
        for k in range(8):
            pixels = (
                np.arange(63, dtype=np.uint8).reshape(9, 7) + 20 * k
                if part == "images"
                else np.eye(9, 7, dtype=np.uint8)
            )
            Image.fromarray(pixels).save(folder / f"{k}.png")
    return sizes.folder / "scans"


def _photo(sizes: Sizes) -> list[str]:
    return [str(_photos(sizes) / "cat" / "0.png")]


def _table(sizes: Sizes) -> Path:
    path = sizes.folder / "labels.csv"
    path.write_text("file,label\na.png,cat\nb.png,dog\n")
    return path


def _run(sizes: Sizes) -> Path:
    return write_run(sizes.folder / "run")


def _network(sizes: Sizes) -> nn.Module:
    del sizes
    return models.capsnet_small((1, 28, 28), 3, channels=4, n_types=2, decoder=None)


def _in(name: str) -> Maker:
    return lambda sizes: sizes.folder / name


def _steps(params: Any, **options: Any) -> None:
    """Make an optimizer and take a step."""
    optim.Muon(params, **options)


def _experiment(**fields: Any) -> Any:
    """Make an experiment, and what of it is a part."""
    parts: dict[str, dict[str, Any]] = {"data": {}, "model": {}, "optim": {}}
    own = {}
    for name, value in fields.items():
        part, _, field = name.partition("__")
        if field:
            parts[part][field] = value
        else:
            own[name] = value
    whole_one = tiny()
    return replace(
        whole_one,
        **{name: replace(getattr(whole_one, name), **given) for name, given in parts.items()},
        **own,
    )


def _train(**fields: Any) -> Any:
    """Train for two steps."""
    return torchcaps.train(tiny(), **fields)


def _write(path: Any) -> None:
    doctor.write({"a": 1}, path)


def _subject(**fields: Any) -> testing.Subject:
    return testing.Subject(**fields)


_FIELDS: dict[str, Maker] = {
    "loss": choice("margin", "spread", "cross_entropy"),
    "margin": choice("linear", "sigmoid"),
    "reconstruction": real(0, 1),
    "consistency": choice(0.0),
    "epochs": whole(1, 5),
    "stop_at": choice(None, 0.5),
    "batch_size": whole(1, 99),
    "precision": choice("32", "bf16"),
    "compile": choice(False),
    "threads": whole(0, 4),
    "devices": choice(1),
    "nodes": choice(1),
    "device": choice("auto", "cpu"),
    "seed": whole(0, 99),
    "trial": FLAG,
    "recipe": choice("mine"),
}
_DATA: dict[str, Maker] = {
    "name": choice("digits", "folder"),
    "root": choice(None, "photos"),
    "image_size": choice(None, (28, 28), [28, 28]),
    "n_train": choice(None, 10),
    "n_shown": choice(None, 10),
    "n_eval": choice(None, 10),
    "pairs": FLAG,
    "n_pairs": choice((10, 10)),
    "blend": choice("sum", "max"),
    "transformed": FLAG,
    "multi_label": FLAG,
    "balance": FLAG,
    "shift": whole(0, 3),
    "degrees": real(0, 10),
    "scale": real(0, 0.5),
    "shear": real(0, 0.5),
    "fill": choice("zeros", "border", "reflection"),
    "flip": FLAG,
    "gamma": real(0, 0.5),
    "shading": real(0, 0.5),
    "brightness": real(0, 0.5),
    "contrast": choice((0.9, 1.1)),
    "crop": choice(None, (20, 20)),
    "test_crops": choice(1, 13),
    "options": choice({}),
}
_OPTIM: dict[str, Maker] = {
    "lr": real(1e-5, 1e-2),
    "schedule": choice("exponential", "cosine", "constant"),
    "warmup": real(0, 0.5),
    "decay": real(0.5, 1),
    "decay_steps": real(1, 1000),
    "floor": real(0, 1e-6),
    "eps": real(1e-9, 1e-7),
    "clip": real(0, 1),
    "weight_decay": real(0, 0.1),
    "name": choice("adam", "muon"),
}

#: An experiment is checked as a whole, when it is made: what fits alone may not fit the rest.
PARTS = {
    **{f"data__{name}": maker for name, maker in _DATA.items()},
    **{f"optim__{name}": maker for name, maker in _OPTIM.items()},
    "model__name": choice("capsnet_small"),
    "model__options": choice({}, {"channels": 4}),
}

CALLS: dict[str, Call] = {
    "torchcaps.data.load": Call(
        data.load,
        {"name": choice("digits")},
        {"image_size": choice(None, (12, 12)), "root": choice(None)},
        names=("data.name", "data.image_size", "data.options", "data.root"),
    ),
    "torchcaps.data.register": Call(
        lambda name, reader, same_everywhere=False, files=True: data.register(
            name, reader, same_everywhere=same_everywhere, files=files
        ),
        {"name": choice("mine"), "reader": choice(_photos)},
        {"same_everywhere": FLAG, "files": FLAG},
    ),
    "torchcaps.data.from_torch": Call(
        data.from_torch,
        {"train": _samples, "test": _samples},
        {"classes": choice(("a", "b")), "name": choice("own"), "image_size": choice((12, 12))},
    ),
    "torchcaps.data.Images": Call(
        data.Images,
        {"images": lambda s: torch.randint(256, (s["N"], 1, 4, 5)).byte(), "labels": lambda s: torch.arange(s["N"])},
        {"factors": lambda s: {"toy": torch.arange(s["N"])}},
        names=("toy",),
    ),
    "torchcaps.data.Dataset": Call(
        data.Dataset,
        {"name": choice("own"), "classes": choice(("a", "b")), **dict.fromkeys(("train", "val", "test"), _images)},
        {
            "further": lambda s: {"more": _images(s)},
            "note": choice("as it is"),
            "held_out": FLAG,
            "mirrored": choice((0,), None),
        },
    ),
    "torchcaps.data.to_float": Call(
        data.to_float, {"images": lambda s: torch.randint(256, (s["N"], 1, 4, 5)).to(s.draw.choice((torch.uint8,)))}
    ),
    "torchcaps.data.Pairs": Call(
        Pairs,
        {"source": lambda s: replace(_images(s), labels=torch.arange(s["N"] + 1))},
        {"seed": whole(0, 9), "most": whole(0, 4), "blend": choice("sum", "max")},
    ),
    "torchcaps.data.transformed_pairs": Call(
        data.transformed_pairs,
        {
            "images": lambda sizes: Shaped("B C 8 9", low=0)(sizes),  # noqa: PLW0108 (of any sizes)
            "limits": lambda _: data.Limits(1.0, 5.0, 0.1, 0.1),
            "generator": lambda _: torch.Generator().manual_seed(0),
        },
        {"size": choice(None, (6, 7)), "fill": choice("zeros", "border")},
        names=("shift", "degrees", "scale", "shear"),
        can_be_endless=True,
    ),
    "torchcaps.data.folder.load_folder": Call(
        load_folder,
        {"root": _photos},
        {
            "image_size": choice(None, (8, 8)),
            "groups": choice(None),
            "labels": choice(None),
            "split": choice(None),
            "skip_bad": FLAG,
            "max_value": choice(None),
            "frames": choice("one"),
            "n_each": choice(None),
        },
        names=("data.root", "data.image_size", "data.options"),
    ),
    "torchcaps.data.mask_folder.load_mask_folder": Call(
        load_mask_folder,
        {"root": _scans},
        {
            "image_size": choice(None, (8, 8)),
            "classes": choice(None, ["spot"]),
            "groups": choice(None),
            "split": choice(None),
            "max_value": choice(None),
            "frames": choice("one"),
            "window": choice(None),
            "empty": choice("keep", "drop"),
        },
        names=("data.root", "data.image_size", "data.options"),
    ),
    "torchcaps.data.digit_masks.load_digit_masks": Call(
        load_digit_masks,
        {},
        {"image_size": choice(None, (8, 8)), "n_classes": whole(1, 10), "n_images": whole(1, 5)},
        names=("data.image_size", "data.options"),
    ),
    "torchcaps.data.splits.find_groups": Call(
        find_groups,
        {
            "groups": choice(r"(\d)"),
            "root": _photos,
            "files": lambda s: [(p, p.parent) for p in (s.folder / "photos").rglob("*.png")],
        },
    ),
    "torchcaps.data.labels.read_labels": Call(read_labels, {"path": _table}),
    "torchcaps.recipe": Call(torchcaps.recipe, {"name": choice("digits", "mnist")}, names=("recipe",)),
    "torchcaps.train": Call(
        _train,
        {"out": _in("new"), "progress": choice("none")},
        {
            "checkpoint_seconds": real(1, 100),
            "until": choice(None),
            "more_epochs": FLAG,
            "dataset": _own,
            "logger": choice(None),
        },
        raises=(OutOfTime,),
        names=("config", "data", "model", "loss", "batch_size", "classes", "progress"),
    ),
    "torchcaps.load_model": Call(torchcaps.load_model, {"run": _run}, {"model": choice(None)}, names=("pretrained",)),
    "torchcaps.predict": Call(
        torchcaps.predict, {"run": _run, "paths": _photo}, {"invert": FLAG, "top": whole(1, 9)}, names=("pretrained",)
    ),
    "torchcaps.export": Call(
        torchcaps.export,
        {"source": _run, "path": _in("out.safetensors"), "format": choice("safetensors")},
        {
            "images": lambda _: torch.rand(2, 1, 28, 28),
            "classes": choice(()),
            "root": choice(None),
            "overwrite": FLAG,
            "tolerance": choice(1e-5, 1.0),
        },
        names=("pretrained", "model", "data.root", "x"),
    ),
    "torchcaps.training.run.Run": Call(Run, {"path": _run}),
    "torchcaps.training.Experiment": Call(_experiment, {}, _FIELDS, names=("config",)),
    "torchcaps.training.Data": Call(training.Data, {}, _DATA),
    "torchcaps.training.Optim": Call(training.Optim, {}, _OPTIM),
    "torchcaps.training.Model": Call(
        training.Model, {}, {"name": choice("capsnet_small"), "options": choice({}, {"channels": 4})}
    ),
    "torchcaps.optim.Muon": Call(
        _steps,
        {"params": lambda s: optim.groups(_network(s))},
        {
            "lr": real(1e-4, 1e-2),
            "betas": choice((0.9, 0.999)),
            "eps": real(1e-9, 1e-7),
            "weight_decay": real(0, 0.1),
            "capturable": FLAG,
        },
        names=("groups", "rows", "swapped"),
    ),
    "torchcaps.optim.groups": Call(optim.groups, {"model": _network}, {"weight_decay": real(0, 0.1)}),
    "torchcaps.testing.Subject": Call(
        _subject,
        {"name": choice("mine"), "shape": choice((3, 4)), "make": choice(nn.Identity)},
        {
            "lengths": FLAG,
            "exact_gradient": FLAG,
            "couplings": choice("one", "less", "other"),
            "permutes": FLAG,
        },
    ),
    "torchcaps.report.write_report": Call(
        report.write_report,
        {"run_path": _run},
        {"beside": choice(()), "root": choice(None)},
        names=("run", "pretrained"),
    ),
    "torchcaps.report.evaluate_run": Call(
        report.evaluate_run, {"run": lambda s: Run(_run(s))}, {"root": choice(None)}, names=("pretrained",)
    ),
    "torchcaps.doctor.write": Call(_write, {"path": _in("doctor.json")}, names=("json",)),
    "torchcaps.doctor.check_place": Call(doctor.check_place, {"path": _in("doctor.json")}, names=("json",)),
    "torchcaps.doctor.anonymous": Call(doctor.anonymous, {"value": choice({"a": ["/home/x"]}, "text", 3)}),
    "torchcaps.memory.keep_memory": Call(keep_memory),
    "torchcaps.playground.load_network": Call(
        playground.load_network, {"run": choice("pretrained:mnist-small")}, names=("pretrained",)
    ),
    "torchcaps.playground.Network": Call(
        playground.Network,
        {
            "name": choice("mine"),
            "model": lambda s: _network(s).eval(),
            "classes": choice(("a", "b", "c")),
            "image_shape": choice((1, 28, 28)),
        },
        {"pairs": FLAG},
    ),
    "torchcaps.playground.fit_drawing": Call(playground.fit_drawing, {"ink": lambda _: torch.rand(30, 31)}),
    "torchcaps.playground.transform_image": Call(
        playground.transform_image,
        {"image": Shaped("C H W", low=0)},
        {"rotate": real(-90, 90), "shift": choice((1.0, -2.0)), "shear": real(-1, 1)},
        can_be_endless=True,
    ),
}


#: Why a public name is not called by itself.
LEFT_OUT = {
    "a named tuple that checks nothing": (
        *("torchcaps.ops.Capsules", "torchcaps.ops.AffineParts", "torchcaps.layers.Init", "torchcaps.layers.Sizes"),
        *("torchcaps.models.ModelOutput", "torchcaps.models.Reconstruction", "torchcaps.data.Limits"),
        *("torchcaps.models.SegmentationOutput", "torchcaps.models.StackedOutput", "torchcaps.ops.MixtureLikelihood"),
        "torchcaps.models.part_capsules.Parts",
        *("torchcaps.data.pairs.PairBatch", "torchcaps.data.transformed.TransformedPair"),
        *(
            "torchcaps.data.labels.Labels",
            "torchcaps.training.export.Exported",
            "torchcaps.training.int8.Quantized",
            "torchcaps.training.examples.Batch",
        ),
        *("torchcaps.training.checkpoint.Trained", "torchcaps.report.EvaluatedRun", "torchcaps.models.Card"),
        *(f"torchcaps.explain.{name}" for name in ("Couplings", "ParseTree", "Parts", "Trace", "RoutedCall", "Votes")),
        *(f"torchcaps.explain.{name}" for name in ("ReceptiveField", "Reconstructions", "Segmentation", "Views")),
        *(f"torchcaps.explain.{name}" for name in ("ConsistencyError", "RecoveredTransformation", "Fit", "Features")),
        *(f"torchcaps.explain.{name}" for name in ("RecoveryPanel", "Reliability", "PrincipalComponents")),
    ),
    "an error": (
        *("torchcaps.ops.backends.errors.Unavailable", "torchcaps.training.callbacks.OutOfTime"),
        "torchcaps.testing.NotApplicable",
    ),
    "a type, and a base class to inherit from": (
        *("torchcaps.layers.Part", "torchcaps.layers.Routing", "torchcaps.models.Transforming"),
    ),
    "runs what it is given, and raises what that raises": (
        *("torchcaps.testing.assert_capsule_properties", "torchcaps.testing.assert_matches_reference"),
    ),
    "takes ten seconds, or does not end; its command is called": (
        *(f"torchcaps.{name}" for name in ("doctor.examine", "playground.serve_playground")),
        "torchcaps.playground.write_playground",
    ),
    "wants a run that segments, which takes long to train; its command is called": (
        *("torchcaps.training.predict_masks.predict_masks", "torchcaps.training.predict_masks.write_masks"),
    ),
    "quantises for half a minute; its command is tried": ("torchcaps.training.int8.export_int8",),
    "takes what examine returns": ("torchcaps.doctor.as_text", "torchcaps.doctor.is_wrong"),
}
