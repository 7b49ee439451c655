"""The documentation as a site, built by `make docs`: these pages as they stand, and the reference made of docstrings.

Sphinx runs from the repository's root, so that every link between pages, and to files beside them, is checked as it is
written. Nothing is taken from elsewhere: no fonts, no scripts; formulas become MathML, which browsers draw themselves.
"""

import re
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

from tcnn.version import __version__

ROOT = Path(__file__).resolve().parents[2]

project = "tcnn"
author = "The tcnn contributors"
copyright = "the tcnn contributors, Apache-2.0"
version = release = __version__

sys.path.insert(0, str(Path(__file__).parent))
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode", "accessible"]
include_patterns = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docs/*.md", "docs/site/*.rst"]
root_doc = "README"
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
default_role = "literal"  # `name` in a docstring is code, as in Markdown
nitpicky = False

myst_heading_anchors = 4
myst_fence_as_directive = ["math"]
myst_links_external_new_tab = False
suppress_warnings = ["myst.header"]  # pages may begin at any level

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
napoleon_google_docstring = True
napoleon_numpy_docstring = False

html_theme = "furo"
html_title = f"tcnn {__version__}"
html_theme_options = {"source_edit_link": "", "top_of_page_buttons": []}
html_show_sphinx = False
html_copy_source = False
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"

CONTENTS = {
    "Use": "tutorial session cli python timm conversion fold export speed",
    "Train": "finetune trainers engines data evaluation inspect",
    "Serve": "dashboard http-api operations storage scaling",
    "Know": "results papers math zoo files architecture tests mutation",
}
"""The pages of docs/ in the order of the site's menu."""


def menu(app: Sphinx, docname: str, source: list[str]) -> None:
    """The site's menu, at the end of its first page, which is README."""
    if docname != root_doc:
        return
    pages = {caption: [f"docs/{name}" for name in names.split()] for caption, names in CONTENTS.items()}
    pages["Use"].append("docs/site/reference")
    pages["Know"] += ["CHANGELOG", "CONTRIBUTING", "SECURITY"]
    for caption, names in pages.items():
        source[0] += "\n".join(["\n```{toctree}", ":hidden:", f":caption: {caption}", "", *names, "```\n"])


def links(app: Sphinx, docname: str, source: list[str]) -> None:
    """Folders beside the pages have no page of their own: what links to one on GitHub is named here."""

    def plain(found: re.Match[str]) -> str:
        text, target = found.groups()
        inside = (ROOT / docname).parent / target.partition("#")[0]
        return text if inside.is_dir() else found[0]

    source[0] = re.sub(r"(?<!!)\[([^][]*)\]\(((?!https?:)[^)\s]+)\)", plain, source[0])


def front(app: Sphinx, exception: Exception | None) -> None:
    """The site's address without a page leads to its first page."""
    if exception is None:
        page = f'<!doctype html><title>tcnn</title><meta http-equiv="refresh" content="0; url={root_doc}/">'
        (Path(app.outdir) / "index.html").write_text(page, encoding="utf-8")


def formula(self: Any, node: nodes.Element) -> None:
    """A formula as MathML."""
    display = "block" if isinstance(node, nodes.math_block) else "inline"
    self.body.append(convert(node.astext(), display=display))
    raise nodes.SkipNode


def setup(app: Sphinx) -> None:
    app.connect("source-read", menu)
    app.connect("source-read", links)
    app.connect("build-finished", front)
    app.add_lexer("mermaid", TextLexer)  # drawn it would need a script of a megabyte; the tables below say the same
    app.add_node(nodes.math, override=True, html=(formula, None))
    app.add_node(nodes.math_block, override=True, html=(formula, None))
