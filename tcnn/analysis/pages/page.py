"""Pages of analysis as one HTML file: the template's environment and filters, and figures inside of the page."""

import base64
from collections.abc import Iterable
from functools import cache
from typing import Any

import jinja2
from markupsafe import Markup

from tcnn.analysis.charts import bundle
from tcnn.analysis.plots import gallery, style
from tcnn.characters import visible
from tcnn.errors import shorten
from tcnn.formatting import plural, share

SVG_LIMIT = 400_000
"""Characters; a larger SVG is embedded as PNG."""


@cache
def template(name: str) -> jinja2.Template:
    """A template of this room, which escapes all that it is given; compiled once: that takes a tenth of a second."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("tcnn.analysis.pages", "."), autoescape=True, undefined=jinja2.StrictUndefined,
        finalize=_visible, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= FILTERS
    environment.globals["colours"] = Markup(bundle.colours())  # noqa: S704 - ours
    return environment.get_template(name)


def pictures(drawn: Iterable[gallery.NamedPlot]) -> list[dict[str, str]]:
    """Figures for the page, as SVG; those with photographs have letters and ground in the page's colours."""
    made = []
    for each in drawn:
        body = style.svg(each.figure)
        body = body[body.find("<svg") :]
        if each.name.startswith("attention"):
            body = _inked(body)
        elif len(body) > SVG_LIMIT:
            body = _img(style.png(each.figure))
        width = round(96 * each.figure.get_figwidth())  # a drawing is not blown up beyond its letters' size
        body = body.replace("<svg", f'<svg style="max-width: {width}px"', 1).replace(
            "<img", f'<img style="max-width: {width}px"', 1
        )
        # Inline drawings share the page's names: those of one must not be taken for another's.
        body = _own_names(body, each.name)
        part = next((part for part in ("content", "positional") if f"-{part}" in each.name), "")
        made.append({"part": part, "caption": each.caption, "body": Markup(body)})  # noqa: S704 - made here
    return made


def _img(png: bytes) -> str:
    return f'<img alt="" src="data:image/png;base64,{base64.b64encode(png).decode()}">'  # what is around it has a name


def _inked(svg: str) -> str:
    """A drawing whose letters and ground are the page's, light or dark: a photograph in it cannot be turned around."""
    for colour, own in ((style.INK, "var(--ink)"), (style.GREY, "var(--soft)"), ("#ffffff", "none")):
        svg = svg.replace(f"fill: {colour.lower()}", f"fill: {own}")
    return svg.replace("<svg", '<svg class="inked"', 1)


def _own_names(svg: str, prefix: str) -> str:
    if not svg.startswith("<svg"):
        return svg
    return (
        svg.replace(' id="', f' id="{prefix}-')
        .replace('xlink:href="#', f'xlink:href="#{prefix}-')
        .replace("url(#", f"url(#{prefix}-")
    )


def _visible(value: Any) -> Any:
    """`characters.visible` of names; other values unchanged."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _percent(value: Any) -> str:
    return share(value) if isinstance(value, int | float) else "–"


def _number(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"


def _some(count: int, noun: str) -> str:
    """As `some`, with separators of thousands as in all numbers of a page."""
    return f"{_number(count)} {plural(count, noun)}"


FILTERS = {
    "percent": _percent, "number": _number, "some": _some, "two": "{:.2f}".format,
    "brief": lambda text: shorten(str(text), 400),
}  # fmt: skip
"""Template filters for numbers, counts and long texts."""
