"""Bundle ES modules into one script; the charts' bundle has a hash for a page's policy, styles, and the palette, too.

A browser then asks once and not for each module, and each stays in a scope of its own. The modules of tcnn's pages also
run as they lie. Of the language's forms they use these, each on a line of its own, and no others are known here:
``import { a, b as c } from "./x.js";``, ``import * as x from "./x.js";``, ``export { a } from "./x.js";``, and
``export`` before a function, a class or a constant; and addresses beside a module as
``new URL("./x.js", import.meta.url)``.

A report has the charts' bundle inside of its page; the dashboard has the same files in a script of its own.
"""

import base64
import hashlib
import posixpath
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

SHARED = ("dom", "numbers")
"""Modules of the attention viewer's page that charts are made with, too."""
OWN = ("scale", "points", "saving", "chart", "curves", "edges", "report")

IMPORT = re.compile(r'^import (\{.*\}|\* as \w+) from "(\..*)";$', re.MULTILINE)
EXPORT_FROM = re.compile(r'^export \{(.*)\} from "(\..*)";$', re.MULTILINE)
EXPORT = re.compile(r"^export ((?:async )?function\*? |class |const )(\w+)", re.MULTILINE)
BESIDE = re.compile(r'new URL\("(\..*?)", import\.meta\.url\)')
OTHER = re.compile(r"^(?:import|export)\b.*|.*import\.meta\b.*", re.MULTILINE)


def concatenate(modules: Mapping[str, str], entry: str) -> str:
    """The module `entry` and all that it imports, as one script to be run as a module or inside a strict function.

    Args:
        modules: sources by path, among them all that are imported.
        entry: the path of the first one.

    Raises: `ValueError` for a form of import or export that is not known, a module that is not there, or a circle.
    """
    done: dict[str, str] = {}
    _add(entry, modules, done, ())
    return "".join(done.values())


def _add(path: str, modules: Mapping[str, str], done: dict[str, str], above: tuple[str, ...]) -> str:
    """Add a module after those that it imports, unless it is there; returns the name of what it exports."""
    if path in above or path not in modules:
        raise ValueError(f"{' → '.join((*above, path))}: {'a circle' if path in above else 'there is no such module'}")
    if path not in done:
        text = modules[path]
        exported: dict[str, str] = {}

        def of(other: str) -> str:
            return _add(_beside(path, other), modules, done, (*above, path))

        def imported(found: re.Match[str]) -> str:
            names = found[1].removeprefix("* as ").replace(" as ", ": ")
            return f"const {names} = {of(found[2])};"

        for found in EXPORT_FROM.finditer(text):
            module = of(found[2])
            exported |= {name: f"{module}.{name}" for name in re.findall(r"\w+", found[1])}
        text = IMPORT.sub(imported, EXPORT_FROM.sub("", text))
        exported |= {found[2]: found[2] for found in EXPORT.finditer(text)}
        text = EXPORT.sub(r"\1\2", text)
        text = BESIDE.sub(lambda found: f'new URL("./{_beside(path, found[1])}", import.meta.url)', text)
        if other := OTHER.search(BESIDE.sub("", text)):
            raise ValueError(f"{path}: expected a form of import or export that is known, found {other[0]!r}")
        given = ", ".join(f"get {name}() {{ return {value}; }}" for name, value in exported.items())
        name = f"module{len(done)}"
        done[path] = f"// {path}\nconst {name} = (() => {{\n{text}\nreturn {{ {given} }};\n}})();\n"
    return f"module{list(done).index(path)}"


def _beside(path: str, other: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), other))


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
