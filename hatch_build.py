"""Compile the C++ for the wheel of one platform; hatchling runs this.

    TORCHCAPS_WHEEL=1 pip wheel . --no-deps       # for this machine, with CXX or c++
    TORCHCAPS_WHEEL=win_amd64 CXX="..." ...       # for another platform, with a compiler for it

Without TORCHCAPS_WHEEL the wheel is of Python alone, and the code is compiled on first use.
"""

from __future__ import annotations

import os
import runpy
import shlex
import subprocess
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

OPS = Path(__file__).parent / "src" / "torchcaps" / "ops"


class CompiledAhead(BuildHookInterface[Any]):
    """Put libraries for every variant of the processor into the wheel, and name the wheel after its platform."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile them all; whatever the compiler says against it ends the build."""
        platform = os.environ.get("TORCHCAPS_WHEEL", "")
        if platform in ("", "0") or version == "editable":
            return
        if platform == "1":
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        variants = runpy.run_path(str(OPS / "backends" / "variants.py"))
        kind = next((kind for end, kind in variants["KINDS"].items() if platform.endswith(end)), None)
        if kind is None:
            raise ValueError(
                f"TORCHCAPS_WHEEL must be 1 or a platform that ends in {', '.join(variants['KINDS'])}, got {platform!r}"
            )
        self._folder = tempfile.TemporaryDirectory()
        compiler = shlex.split(os.environ.get("CXX") or "c++")
        commands = variants["commands"](compiler, kind, platform.startswith("win"), OPS, Path(self._folder.name))
        for library, command in commands.items():
            self.app.display_info(shlex.join(command))
            subprocess.run(command, check=True)
            build_data["force_include"][str(library)] = f"torchcaps/ops/{variants['SHIPPED']}/{library.name}"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was compiled."""
        if hasattr(self, "_folder"):
            self._folder.cleanup()
