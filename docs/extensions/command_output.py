"""The directive `command`: what a command of torchcaps prints, asked for while the site is built."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


class Command(SphinxDirective):
    """Show a command and its output."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        """Run the command, and return its text as a block."""
        line = self.arguments[0]
        words = [sys.executable, "-m", "torchcaps", *shlex.split(line)]
        environment = os.environ | {"COLUMNS": "78", "NO_COLOR": "1"}
        text = subprocess.run(words, env=environment, check=True, capture_output=True, text=True).stdout
        return [nodes.literal_block(text, f"$ torchcaps {line}\n{text}", language="text")]


def setup(app: Sphinx) -> dict[str, Any]:
    """Enter the directive."""
    app.add_directive("command", Command)
    return {"version": "1", "parallel_read_safe": True}
