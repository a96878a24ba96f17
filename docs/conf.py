"""Sphinx: `sphinx-build -W docs docs/_build`."""

project = "espnet-fastformer"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
html_theme = "furo"
myst_heading_anchors = 3
# Signatures of forty options are read in the list below them.
autodoc_typehints = "description"
autodoc_member_order = "bysource"
