"""Matrix capsules with EM routing on images of small NORB's size: the whole step of training."""

from __future__ import annotations

from dataclasses import replace

import torch

from benchmarks.check import relative_errors, require_agreement
from benchmarks.conditions import Conditions
from benchmarks.floor import conv_equal_votes
from benchmarks.result import Found, Row
from benchmarks.work import Net
from torchcaps.ops import conv_em_routing

#: The networks, with what has to be reached and what is hoped for: eager step over ours, ours over the CNN's.
NETS = {
    "matrix_capsnet": ("A=B=C=D=32", (8, 20), (20, 8)),
    "matrix_capsnet_small": ("A64 B8 C16 D16", (6, 15), (2.5, 1.0)),
}


def em(conditions: Conditions) -> Found:
    """Matrix capsules' training step, batch 8, Adam included, beside the CNN's of their paper."""
    net = Net("matrix_capsnet", batch=8, image_shape=(2, 32, 32), n_classes=5)
    net = replace(net, batch=2, small=True) if conditions.smoke else net
    found = Found(f"Matrix capsules on 2×32×32, batch {net.batch}", errors={"floor": _check_floor()})
    works: dict[str, Net] = {}
    contenders = ("ours", "stored_votes", *conditions.others("em"))
    found.notes += conditions.left_out("em")
    for model, (size, _, _) in NETS.items():
        works |= {f"{size}: {name}, step": replace(net, model=model, contender=name) for name in contenders}
    found.errors |= conditions.checked(works, batch=1)
    works |= {f"{size}: floor, step": replace(net, model=m, contender="floor") for m, (size, _, _) in NETS.items()}
    cnn = "the paper's CNN, 4.2 M parameters, step"
    yardstick = "CapsNet's floor, 28×28, batch 64, step"
    works |= {
        cnn: replace(net, model="norb_cnn", small=False),
        yardstick: Net(contender="floor", batch=4 if net.small else 64, small=net.small),
    }
    found.seconds = conditions.seconds(works)
    median = {name: measured.median for name, measured in found.seconds.items()}
    for size, eager, over_cnn in NETS.values():
        ours, stored = median[f"{size}: ours, step"], median[f"{size}: stored_votes, step"]
        found.rows += [
            Row(f"EM net {size}, step: eager with stored votes over ours", stored / ours, *eager, at_least=True),
            Row(f"EM net {size}, step: ours over the 4.2 M CNN's", ours / median[cnn], *over_cnn),
            Row(f"EM net {size}, step: ours over the floor's", ours / median[f"{size}: floor, step"], None),
        ]
    eager = median["A=B=C=D=32: stored_votes, step"]
    found.rows.append(
        Row("honesty: eager EM step, A=B=C=D=32, over CapsNet's floor step", eager / median[yardstick], 8)
    )
    return found


def _check_floor() -> float:
    """The floor's means are those of one iteration of EM routing without damping."""
    random = torch.Generator().manual_seed(0)
    pose, weight = torch.randn(2, 3, 6, 6, 4, 4, generator=random), torch.randn(3, 3, 3, 5, 4, 4, generator=random)
    activation, offset = torch.rand(2, 3, 6, 6, generator=random), torch.randn(3, 3, 3, 4, 4, generator=random)
    inputs = pose, activation, weight, torch.zeros(5), torch.zeros(5)
    exact = conv_em_routing(
        *(x.double() for x in inputs), offset=offset, n_iters=1, settings="released", damping=0.0, backend="reference"
    )
    got = conv_equal_votes(*inputs, offset=offset)
    return require_agreement("floor", relative_errors({"pose": got.pose}, {"pose": exact.pose}))
