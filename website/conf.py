"""Settings of Sphinx for the site. `scripts/site` writes the pages to build/site_pages and builds them with these."""

import sys
from importlib import metadata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from docstrings import as_markdown_spans

project = "anytpu"
author = "the authors of anytpu"
version = release = metadata.version("anytpu")
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["README.md"]

myst_enable_extensions = ["deflist"]
myst_heading_anchors = 4
highlight_language = "none"
smartquotes = False  # Quotes and dashes in a text may be those of a program.

# A docstring's single backticks are code, as in Markdown.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # A signature has them.
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 80
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
add_module_names = False

html_theme = "furo"
html_title = f"anytpu {release}"
html_static_path = [str(Path(__file__).with_name("style.css"))]
html_css_files = ["style.css"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_theme_options = {"navigation_with_keys": False}


def setup(app):
    """Connect the change of docstrings."""
    app.connect("autodoc-process-docstring", as_markdown_spans, priority=400)
