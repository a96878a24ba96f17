"""Sphinx, of the pages as they lie in the repository: `sphinx-build -c docs . site`."""

project = "espnet-fastformer"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "docs/index"
include_patterns = ["docs/*.md", "egs/README.md", "egs/librispeech/README.md"]
html_theme = "furo"
# Its index.html leads to docs/.
html_extra_path = ["root"]
myst_heading_anchors = 3
# Below the title of a results page, its commands write headings of other levels.
suppress_warnings = ["myst.header"]
# Signatures of forty options are read in the list below them.
autodoc_typehints = "description"
autodoc_member_order = "bysource"
