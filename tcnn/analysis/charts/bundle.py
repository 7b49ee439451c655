"""The charts for a page that has everything in it: one script, its hash for the page's policy, styles, and the palette.

The dashboard has the same files in a script of its own.
"""

import base64
import hashlib
import re
from functools import cache
from importlib.resources import files

from tcnn.analysis.charts.modules import concatenate

SHARED = ("dom", "numbers")
"""Modules of the attention viewer's page that charts are made with, too."""
OWN = ("scale", "saving", "chart", "curves", "edges", "report")


def _resource(name: str) -> str:
    """A file of this room, or a module that it shares."""
    shared = name.removesuffix(".js") in SHARED
    folder = files("tcnn.explorer") / "page" if shared else files("tcnn.analysis.charts")
    return (folder / name).read_text(encoding="utf-8")


@cache
def script() -> str:
    """All modules as one script, which draws every element with `data-charts`."""
    modules = concatenate({f"{name}.js": _resource(f"{name}.js") for name in (*SHARED, *OWN)}, "report.js")
    return f'(() => {{\n"use strict";\n{modules}}})();\n'


@cache
def script_source() -> str:
    """What a Content-Security-Policy allows, so that nothing but `script` can run: 'sha256-…'."""
    digest = hashlib.sha256(script().encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


@cache
def style() -> str:
    """How charts look."""
    return _resource("chart.css")


@cache
def colours() -> str:
    """The colours of the dashboard's pages, light and dark, as custom properties: text, grounds, lines, verdicts."""
    found = re.search(
        r":root \{.*?\}", (files("tcnn.explorer") / "page" / "base.css").read_text(encoding="utf-8"), re.DOTALL
    )
    assert found is not None  # noqa: S101 - ours
    return found[0]


@cache
def attention() -> tuple[str, str]:
    """The colours of attention and of the pixel that asks in the attention viewer, as #rrggbb."""
    text = (files("tcnn.explorer") / "page" / "maps.js").read_text(encoding="utf-8")
    heat, query = re.search(r"HEAT = \[(\d+), (\d+), (\d+)\]", text), re.search(r'QUERY = "(#\w{6})"', text)
    assert heat is not None and query is not None  # noqa: S101 - ours
    return "#" + "".join(f"{int(part):02x}" for part in heat.groups()), query[1]


@cache
def palette() -> tuple[str, ...]:
    """The colours of series on a light ground, as #rrggbb."""
    return tuple(re.findall(r"--c\d: light-dark\((#[0-9a-f]{6}),", style()))
