"""The C++ touches no memory but its own, says the address sanitizer."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.backends import needs_cpu
from torchcaps.ops.backends import build as building

pytestmark = needs_cpu


#: Of each library the driver, and the size of a transformation.
DRIVERS = {
    "agreement": ("backends/agreement_sanitized.cpp", 0),
    "dynamic": ("dynamic/sanitized.cpp", 0),
    "dynamic_votes": ("dynamic/votes_sanitized.cpp", 0),
    "elementwise": ("fixed/sanitized.cpp", 0),
    "em": ("em/sanitized.cpp", 16),
    "em_vectors": ("em/sanitized.cpp", 256),
    "few_places": ("backends/sanitized.cpp", 0),
    "variational_bayes": ("variational_bayes/sanitized.cpp", 16),
}


@pytest.mark.parametrize("name", DRIVERS)
def test_addresses(name: str, tmp_path: Path) -> None:
    driver = Path(__file__).parents[1] / DRIVERS[name][0]
    of = [f'-DSOURCE="{name}.cpp"', f"-DNUMBERS={DRIVERS[name][1]}"]
    include = [f"-I{folder}" for folder in building.source_folders(name)]
    flags = [flag for flag in building.FLAGS if flag not in ("-shared", "-O3")]
    sanitize = ["-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-march=native", "-pthread"]
    program = tmp_path / "sanitized"

    def compiled(*source: str) -> subprocess.CompletedProcess[str]:
        command = [*building._compilers()[0], *flags, *sanitize, *source, "-o", str(program)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    (tmp_path / "empty.cpp").write_text("int main() {}\n")
    if compiled(str(tmp_path / "empty.cpp")).returncode or subprocess.run([program], check=False).returncode:
        pytest.skip("the compiler has no address sanitizer")
    done = compiled(*include, *of, str(driver))
    assert done.returncode == 0, done.stderr[-2000:]
    ran = subprocess.run(
        [program], capture_output=True, text=True, check=False, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert ran.stdout.strip() == "clean", ran.stderr[-4000:]
