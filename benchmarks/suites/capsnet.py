"""CapsNet on images of MNIST's size: the whole step of training, and the forward pass."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.conditions import Conditions
from benchmarks.result import Found, Row
from benchmarks.work import Net, Vectors, Work


def capsnet(conditions: Conditions) -> Found:
    """CapsNet's training step and forward pass, batch 64, decoder and Adam included."""
    net = Net(batch=4, small=True) if conditions.smoke else Net()
    textbook = ("few_at_a_time", "einsum")
    fp32 = ("floor", "ours", *textbook, *conditions.others("dynamic"))
    steps = {f"{name}, step": replace(net, contender=name) for name in fp32}
    steps |= {f"{name}, step in bf16": replace(net, contender=name, precision="bf16") for name in ("floor", "ours")}
    by_torch = {"step": "32", "step in bf16": "bf16"} if conditions.device.type == "cpu" else {}
    steps |= {
        f"ours with torch's convolutions, {step}": replace(net, precision=precision, frequencies=False)
        for step, precision in by_torch.items()
    }
    errors = conditions.checked(steps, batch=2 if conditions.smoke else 16)  # so many go by frequencies
    forwards = {f"{name}, forward": replace(net, contender=name, train=False) for name in fp32}
    routing = Vectors(batch=net.batch, n_in=72 if net.small else 1152)
    others: dict[str, Work] = {"routing alone, forward + backward": routing}
    if not conditions.smoke:
        others["the paper's CNN, 35.4 M parameters, step"] = replace(net, model="baseline_cnn")
    found = Found(f"CapsNet on 28×28, batch {net.batch}", errors=errors)
    found.notes += conditions.left_out("dynamic")
    found.seconds = conditions.seconds(steps | others | forwards)
    median = {name: measured.median for name, measured in found.seconds.items()}
    floor, bf16 = median["floor, step"], median["ours, step in bf16"]
    found.rows = [
        Row("CapsNet step, fp32, over the floor", median["ours, step"] / floor, 1.06, 1.02, least=0.99),
        Row(
            "CapsNet forward, fp32, over the floor",
            median["ours, forward"] / median["floor, forward"],
            None,
            least=0.99,
        ),
        Row("CapsNet step in bf16, over the fp32 floor", bf16 / floor, 0.50, 0.35),
        Row("CapsNet step in bf16, over the bf16 floor", bf16 / median["floor, step in bf16"], None),
        Row(
            "routing's share of the step in bf16",
            100 * median["routing alone, forward + backward"] / bf16,
            10,
            unit=" %",
        ),
    ]
    for step in by_torch:
        slower = median[f"ours with torch's convolutions, {step}"] / median[f"ours, {step}"]
        found.rows.append(Row(f"CapsNet {step}: torch's convolutions over ours", slower, None))
    if conditions.device.type == "cuda":
        for name in ("ours, step", "ours, step in bf16"):
            epoch = 60_000 / net.batch * median[name]
            found.rows.append(Row(f"an epoch of MNIST, {name}, batch {net.batch}", epoch, None, 2, unit=" s"))
    return found
