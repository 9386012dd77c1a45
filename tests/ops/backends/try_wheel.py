"""Try an installed wheel: every set of instructions of this processor, with no compiler within reach.

    python tests/ops/backends/try_wheel.py    # in an environment with the wheel, pytest and hypothesis

Each is trained with for a step, and held to the reference by the tests of the operators.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
TESTS = [
    "tests/ops/dynamic/test_pairing.py",
    "tests/ops/dynamic/test_operator.py",
    "tests/ops/em/test_pairing.py",
    "tests/ops/em/test_operator.py",
]
STEP = """
import torch
from torchcaps import DenseCaps, margin_loss
from torchcaps.ops import which_backend
from torchcaps.ops.backends.shipped import shipped
for routing, d in (("dynamic", 8), ("em", 16)):
    assert which_backend(routing, "auto", torch.zeros(1)) == "cpu"
    assert shipped(routing) is not None
    layer = DenseCaps(32, 10, d, 16, routing=routing)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    before = [x.detach().clone() for x in layer.parameters()]
    pose, activation = torch.randn(4, 32, d), torch.rand(4, 32)
    from torchcaps import Capsules
    found = layer(Capsules(pose, activation))
    margin_loss(found.activation, torch.arange(4)).backward()
    optimizer.step()
    assert all(x.isfinite().all() for x in layer.parameters())
    assert any((x != y).any() for x, y in zip(before, layer.parameters()))
    print(routing, "trained with", shipped(routing).name, "of torch", torch.__version__)
"""


def main() -> int:
    """Return how many of the variants failed."""
    sys.path = [place for place in sys.path if Path(place).resolve() != ROOT / "src"]
    import torchcaps
    from torchcaps.ops.backends.shipped import runnable

    if Path(torchcaps.__file__).is_relative_to(ROOT / "src"):
        raise ValueError(f"torchcaps must be the wheel's, got {torchcaps.__file__}")
    names = [variant.name for variant in runnable()]
    print("variants of this processor:", *names)
    return sum(not _is_right(name) for name in names)


def _is_right(variant: str) -> bool:
    with tempfile.TemporaryDirectory() as empty:
        environment = os.environ | {"TORCHCAPS_CPU": variant, "PATH": empty, "XDG_CACHE_HOME": empty}
        environment.pop("CXX", None)
        environment.pop("PYTHONPATH", None)
        step = subprocess.run([sys.executable, "-c", STEP], check=False, env=environment, cwd=empty)
        tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS]
        held = subprocess.run(tests, check=False, env=environment, cwd=ROOT)
        compiled = [path.name for path in Path(empty).rglob("*.so")]
    print(variant, "step", step.returncode, "tests", held.returncode, "compiled here", compiled)
    return step.returncode == 0 and held.returncode == 0 and not compiled


if __name__ == "__main__":
    sys.exit(main())
