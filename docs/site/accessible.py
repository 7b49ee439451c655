"""What the theme leaves undone for those who read with a keyboard or by ear, mended in the pages that were built.

Each rule is one that axe-core knows: https://dequeuniversity.com/rules/axe.
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

RULES: tuple[tuple[str, str], ...] = (
    # What scrolls sideways is reached by the keyboard.
    (r"<pre>", r'<pre tabindex="0">'),
    (r'<div class="(math|table)-wrapper', r'<div tabindex="0" class="\1-wrapper'),
    (r'<p class="caption" role="heading">', r'<p class="caption" role="heading" aria-level="2">'),
    # Landmarks of one kind have names.
    (r'<aside class="sidebar-drawer">', r'<aside class="sidebar-drawer" aria-label="Pages">'),
    (r'<aside class="toc-drawer([^"]*)">', r'<aside class="toc-drawer\1" aria-label="On this page">'),
    # A table's empty corner heads nothing.
    (r'<th class="([^"]*)"><p></p></th>', r'<td class="\1"></td>'),
    # A signature's lines are no list of definitions.
    (r'<dl>\n((?:<dd><em class="sig-param">.*?</dd>\n)+)</dl>', r'<span class="sig-lines">\n\1</span>'),
    (r'<dd>(<em class="sig-param">.*?)</dd>', r'<span style="display: block; margin-left: 2em">\1</span>'),
)  # fmt: skip
TITLE = '<article role="main" id="furo-main-content">'
"""Where a page's content begins: that of the search has no title."""


def accessible(text: str) -> str:
    """A page with everything that the rules mend."""
    for pattern, replacement in RULES:
        text = re.sub(pattern, replacement, text, flags=re.DOTALL)
    return text if "<h1" in text else text.replace(TITLE, f"{TITLE}<h1>Search</h1>")


def mend(app: "Sphinx", exception: Exception | None) -> None:
    """Rewrite every page of a site that was built."""
    if exception is None:
        for page in Path(app.outdir).rglob("*.html"):
            page.write_text(accessible(page.read_text(encoding="utf-8")), encoding="utf-8")


def setup(app: "Sphinx") -> dict[str, bool]:
    """Sphinx's entry point."""
    app.connect("build-finished", mend)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
