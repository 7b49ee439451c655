"""docs/architecture.md: its rooms are today's, and every name on the way through the house is there."""

import ast
import re
from pathlib import Path

from benchmarks.drawing import architecture

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")


def test_the_rooms_are_those_of_the_code() -> None:
    assert architecture.fill(PAGE) == PAGE, "python -m benchmarks.drawing.architecture"
    assert "tcnn/layers/backends/" in PAGE


def test_every_step_names_what_is_there() -> None:
    """`file` `name`: the name is defined in the file, or is a method of a class in it."""
    named = re.findall(r"`((?:tcnn|tcnn_jobs|tcnn_api)/[\w/]+\.py)` `(\w+)`", PAGE)
    assert len(named) > 25
    for file, name in named:
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        assert name in {node.name for node in ast.walk(tree) if isinstance(node, kinds)}, (file, name)
    for path in re.findall(r"`((?:tcnn|tcnn_jobs|tcnn_api)/[\w/]+?(?:/|\.py))`", PAGE):
        assert (ROOT / path).exists(), path
