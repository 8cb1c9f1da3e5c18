"""Configuration of the documentation: ``make docs`` writes it to docs/_build."""

from __future__ import annotations

import os
from pathlib import Path

from labkit import __version__

# Cells of the pages import labkit from this tree.
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")])
)

project = "labkit"
author = copyright = "The labkit contributors"
release = version = __version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_click",
]
exclude_patterns = ["_build", "method-rates.md"]

# Pages with a kernel are executed at each build: an output that is typed may be wrong.
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 120
nb_execution_show_tb = True
nb_merge_streams = True
nb_render_markdown_format = "myst"
myst_enable_extensions = ["colon_fence"]
# Anchors as GitHub makes them, so that links work there too.
myst_heading_anchors = 3

autodoc_member_order = "groupwise"
autodoc_typehints = "signature"
# Only numpydoc sections.
napoleon_google_docstring = False
napoleon_use_rtype = False
# Single backquotes name Python objects, as in numpy; without a match they are code.
default_role = "py:obj"

html_theme = "furo"
html_title = f"labkit {__version__}"
html_show_sphinx = False
html_copy_source = False
