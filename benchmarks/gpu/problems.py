"""The problems at which kernels are checked and timed, by name."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.work import Maps, Vectors

Problem = Vectors | Maps

_DYNAMIC = {f"dynamic B={n}": Vectors(batch=n) for n in (1, 64, 128, 512)} | {
    "dynamic 100 classes": Vectors(batch=64, n_out=100),
    "dynamic stacked": Vectors(batch=1024, n_in=72, n_out=16, d_out=8),
}
_CONV1, _CONV2 = Maps(), Maps(size=6, stride=1)
_SMALL = Maps(batch=64, n_types=8, n_out=16, n_iters=2)
_EM = {
    "EM conv1 B=64": replace(_CONV1, batch=64),
    "EM conv2 B=64": replace(_CONV2, batch=64),
    "EM conv1 small B=64": _SMALL,
    "EM conv2 small B=64": replace(_SMALL, n_types=16, size=6, stride=1),
    "EM classes B=64": Maps(batch=64, n_types=512, size=1, n_out=5, kernel_size=1, stride=1),
}
_BAYES = {
    "variational Bayes conv1 B=64": replace(_CONV1, batch=64, routing="variational_bayes"),
    "variational Bayes conv1 small B=64": replace(_SMALL, n_iters=3, routing="variational_bayes"),
}
#: For speed, the most telling first.
SPEED: dict[str, Problem] = {
    name: (_DYNAMIC | _EM | _BAYES)[name]
    for name in (
        "dynamic B=128",
        "EM conv1 B=64",
        "EM conv1 small B=64",
        "variational Bayes conv1 B=64",
        "variational Bayes conv1 small B=64",
        "dynamic 100 classes",
        "dynamic stacked",
        "EM classes B=64",
        "dynamic B=64",
        "dynamic B=512",
        "dynamic B=1",
        "EM conv2 B=64",
        "EM conv2 small B=64",
    )
}
#: For errors: smaller where float64 would take long, and odd sizes besides.
EXACT: dict[str, Problem] = {
    "dynamic B=128": _DYNAMIC["dynamic B=128"],
    "EM conv1 B=8": _CONV1,
    "EM conv1 small B=16": replace(_SMALL, batch=16),
    "EM classes B=64": _EM["EM classes B=64"],
    "dynamic odd": Vectors(batch=67, n_in=31, n_out=3, d_in=3, d_out=1, n_iters=5),
    "dynamic B=1": _DYNAMIC["dynamic B=1"],
    "dynamic B=64": _DYNAMIC["dynamic B=64"],
    "dynamic stacked": _DYNAMIC["dynamic stacked"],
    "dynamic 100 classes": replace(_DYNAMIC["dynamic 100 classes"], batch=16),
    "dynamic 1000 classes": Vectors(batch=16, n_in=288, n_out=1000),
    "EM conv2 B=8": _CONV2,
    "EM conv2 B=8, the paper's settings": replace(_CONV2, settings="paper"),
    "EM odd": Maps(batch=3, n_types=3, size=7, n_out=17, stride=2),
    "variational Bayes conv1 B=8": replace(_CONV1, routing="variational_bayes"),
    "variational Bayes odd": Maps(batch=3, n_types=3, size=7, n_out=17, stride=2, routing="variational_bayes"),
}
SMOKE: dict[str, Problem] = {
    "dynamic tiny": Vectors(batch=3, n_in=7, n_out=3, d_in=4, d_out=4, n_iters=2),
    "EM tiny": Maps(batch=1, n_types=2, size=2, n_out=2, kernel_size=2, stride=1, n_iters=2),
    "variational Bayes tiny": Maps(
        batch=1, n_types=2, size=2, n_out=2, kernel_size=2, stride=1, n_iters=2, routing="variational_bayes"
    ),
}


def routing(problem: Problem) -> str:
    """Its name, as the library has it."""
    return "dynamic" if isinstance(problem, Vectors) else problem.routing
