"""The rooms of docs/architecture.md, drawn from the code: what each is for, and which imports which.

    python -m benchmarks.drawing.architecture      # writes between the marks on the page

An arrow that follows from others is left out, so that the picture can be read from bottom to top.
"""

import ast
import re
from pathlib import Path

import grimp
import networkx

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "architecture.md"
WINGS = ("tcnn", "tcnn_jobs", "tcnn_api")
MARK = re.compile(r"(<!-- rooms:(\w+) -->\n).*?(<!-- /rooms -->)", re.DOTALL)


def rooms(wing: str) -> dict[Path, str]:
    """Every room of a wing, a package or a file beside them, and the first sentence of what it says of itself."""
    packages = [path.parent for path in (ROOT / wing).rglob("__init__.py") if "versions" not in path.parts]
    files = [path for path in (ROOT / wing).glob("*.py") if not path.name.startswith("__")]
    return {path: said(path) for path in sorted([*packages, *files]) if path != ROOT / wing}


def said(room: Path) -> str:
    """Its first sentence."""
    source = room / "__init__.py" if room.is_dir() else room
    words = (ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or "").split("\n\n")[0]
    return re.split(r"(?<=[.;]) ", " ".join(words.split()))[0].rstrip(".;")


def arrows(wing: str) -> list[tuple[str, str]]:
    """Which room imports which, without those arrows that follow from others."""
    graph = grimp.build_graph(wing, cache_dir=None)
    between = networkx.DiGraph()
    for module in graph.modules:
        for other in graph.find_modules_directly_imported_by(module):
            ours, theirs = (name.split(".")[1] if "." in name else "" for name in (module, other))
            if ours and theirs and ours != theirs:
                between.add_edge(ours, theirs)
    return sorted(networkx.transitive_reduction(between).edges)


def section(wing: str) -> str:
    """A picture and a table."""
    drawn = [f"    {ours}({ours}) --> {theirs}({theirs})" for ours, theirs in arrows(wing)]
    table = []
    for room, purpose in rooms(wing).items():
        files = len([path for path in room.glob("*.py") if path.name != "__init__.py"]) if room.is_dir() else 1
        name = room.relative_to(ROOT).as_posix() + ("/" if room.is_dir() else "")
        table.append(f"| [`{name}`](../{name}) | {purpose} | {files} |")
    return "\n".join(
        ["```mermaid", "graph BT", *drawn, "```", "", "| room | what it is for | files |", "|---|---|---|", *table, ""]
    )


def fill(page: str) -> str:
    """The page with every wing's part replaced."""
    return MARK.sub(lambda found: found[1] + section(found[2]) + found[3], page)


if __name__ == "__main__":
    PAGE.write_text(fill(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
