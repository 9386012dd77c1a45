"""How the site is built: `make docs`. A warning, a broken link or a missing name fails."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "extensions"), str(HERE.parent / "src")]

import torchcaps  # noqa: E402

project = "torchcaps"
author = "The torchcaps contributors"
project_copyright = "the torchcaps contributors, Apache-2.0"
version = release = torchcaps.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "command_output",
    "offline",
    "public_names",
    "repository_pages",
    "weights_table",
]
exclude_patterns = ["build", "jupyter_execute", "extensions", "figures", "**.ipynb_checkpoints"]
nitpicky = True
# What torchcaps stands on has its own sites; the build asks none of them. The last are names within annotations.
_OTHERS = "torch(?!caps)|numpy|np|nn|matplotlib|lightning|collections|abc|pathlib|typing|Path|Tensor|Figure|Module"
nitpick_ignore_regex = [
    ("py:.*", rf"({_OTHERS})\b.*"),
    (
        "py:.*",
        r"optional|callable|Loss|Logger|Progress|Decode|Extent|Task|(.*\.)?(World|Share|Seen)|Unavailable|OutOfTime|.*\._[A-Z]\w*",
    ),
]

# Pages
myst_enable_extensions = ["dollarmath", "colon_fence", "deflist", "attrs_inline"]
myst_heading_anchors = 4
nb_execution_mode = "auto"  # runs notebooks that were stored without their outputs
nb_execution_raise_on_error = True
nb_execution_timeout = 300

# Docstrings and code
highlight_language = "text"
default_role = "code"
add_module_names = False
autosummary_generate = False
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 80
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_attr_annotations = True
napoleon_use_rtype = False
napoleon_custom_sections = [("Input", "params_style"), ("Output", "returns_style"), ("Shape", "params_style")]

# Looks: everything that a page loads lies beside it.
html_theme = "pydata_sphinx_theme"
html_title = "torchcaps"
html_show_sourcelink = False
html_favicon = "static/icon.svg"
html_context = {"default_mode": "auto"}
html_css_files = ["site.css"]
html_theme_options = {
    "header_links_before_dropdown": 7,
    "pygments_dark_style": "github-dark",
    "navigation_with_keys": False,
    "show_nav_level": 2,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "logo": {"text": "torchcaps"},
}
copybutton_prompt_text = r">>> |\.\.\. "
copybutton_prompt_is_regexp = True

# One file with all glyphs, out of the package that holds it. The usual one is fetched from elsewhere at view time.
_MATHJAX = find_spec("sphinx-mathjax-offline")
if _MATHJAX is None or _MATHJAX.origin is None:
    raise ModuleNotFoundError(
        "sphinx-mathjax-offline is not installed: it is of the extra docs, and make docs installs it"
    )
html_static_path = ["static", str(Path(_MATHJAX.origin).parent / "static" / "mathjax" / "tex-svg-full.js")]
mathjax_path = "tex-svg-full.js"

_PUBLIC = ("data", "doctor", "explain", "layers", "models", "ops", "optim", "report", "testing", "training")
public_modules = [f"torchcaps.{name}" for name in _PUBLIC]
