"""The directive `public`: document the public names of a module in groups, and miss none."""

from __future__ import annotations

import inspect
from importlib import import_module
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.pycode import ModuleAnalyzer
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

logger = logging.getLogger(__name__)


class Public(SphinxDirective):
    """Show a table of the names in its content, then what the docstring of each says."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        """Write the table, and the directives that show each docstring."""
        module = self.arguments[0]
        names = " ".join(self.content).split()
        page = self.env.metadata[self.env.docname]
        page["public_names"] = " ".join([page.get("public_names", ""), *(f"{module}.{name}" for name in names)])
        values = {name: getattr(import_module(module), name) for name in names}
        table = [f"   {name}" for name, value in values.items() if callable(value)]
        lines = [] if module in _domain_modules(self) else [f".. py:module:: {module}", ""]
        lines += [f".. currentmodule:: {module}", ""]
        if len(table) > 1:
            lines += [".. autosummary::", "   :nosignatures:", "", *table, ""]
        for name, value in values.items():
            lines += [*_directive(module, name, value), ""]
        return self.parse_text_to_nodes("\n".join(["```{eval-rst}", *lines, "```"]))


def _domain_modules(directive: SphinxDirective) -> set[str]:
    """Return the modules that have an anchor on some page already."""
    return set(directive.env.get_domain("py").data["modules"])


def _directive(module: str, name: str, value: Any) -> list[str]:
    """Return the lines of autodoc that document one name."""
    if inspect.isclass(value):
        return [f".. autoclass:: {name}", "   :members:"]
    if callable(value):
        return [f".. autofunction:: {name}"]
    return [f".. py:data:: {name}", "", *(f"   {line}" for line in _comment(module, name))]


def _comment(module: str, name: str) -> list[str]:
    """Return the `#:` comment of a constant, from where it is written down."""
    root = Path(import_module("torchcaps").__path__[0])
    home = str(root / module.partition(".")[2])
    for file in sorted(root.rglob("*.py"), key=lambda file: not str(file).startswith(home)):
        comments = ModuleAnalyzer.for_string(file.read_text(encoding="utf-8"), str(file)).find_attr_docs()
        if ("", name) in comments:
            return comments["", name]
    raise ValueError(f"{module}.{name} must have a comment `#: What it is.` where it is written down, and has none")


def _miss_none(app: Sphinx, env: Any) -> None:
    """Warn of a public name that no page documents, and of a module that no page shows."""
    documented = {name for page in env.metadata.values() for name in str(page.get("public_names", "")).split()}
    for module in app.config.public_modules:
        for name in import_module(module).__all__:
            here = {f"{module}.{name}"}
            value = getattr(import_module(module), name)
            if inspect.isclass(value) or callable(value):
                here |= {each for each in documented if _value(each) is value}
            if not here & documented:
                logger.warning("no page of the reference documents %s.%s", module, name)


def _value(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


def _readable(_app: Sphinx, _what: str, _name: str, _value: Any, _options: Any, signature: Any, returns: Any) -> Any:
    """Write `...` for a default that is made anew in each call; Python's own text is no Python."""
    return (signature.replace("<factory>", "..."), returns) if signature else None


def _without_fields(_app: Sphinx, _what: str, name: str, value: Any, _skip: bool, _options: Any) -> bool | None:
    """Leave out the fields of named tuples, which the docstring of their class tells of, and hooks of torch."""
    is_field = str(getattr(value, "__doc__", "")).startswith("Alias for field number")
    return True if is_field or name == "extra_repr" else None


def _without_torch(_app: Sphinx, _what: str, _name: str, _value: Any, _options: Any, lines: list[str]) -> None:
    """Leave out what torch says of every `forward`: the docstring of the class says what goes in and out."""
    if lines and lines[0].startswith("Define the computation performed at every call"):
        lines.clear()


def _without_types(_app: Sphinx, _what: str, _name: str, _value: Any, _options: Any, lines: list[str]) -> None:
    """Mark what is returned as having no type in front: annotations say it, and a colon in the text is none."""
    for i, line in enumerate(lines[:-1]):
        if line.strip() in ("Returns:", "Yields:", "Output:"):
            text = lines[i + 1].lstrip()
            lines[i + 1] = f"{lines[i + 1][: -len(text)]}: {text}"


def setup(app: Sphinx) -> dict[str, Any]:
    """Enter the directive, and the check that it missed no name."""
    app.add_config_value("public_modules", [], "env")
    app.add_directive("public", Public)
    app.connect("autodoc-process-signature", _readable)
    app.connect("autodoc-skip-member", _without_fields)
    app.connect("autodoc-process-docstring", _without_torch)
    app.connect("autodoc-process-docstring", _without_types, priority=400)  # before napoleon reads the sections
    app.connect("env-check-consistency", _miss_none)
    return {"version": "1", "parallel_read_safe": True}
