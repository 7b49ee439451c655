"""docs/speed.md: its tables are what was measured."""

import json
import sys
from types import ModuleType
from typing import Any

import pytest
from pages import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))

import gpsa
import throughput

PAGE = (ROOT / "docs/speed.md").read_text(encoding="utf-8")


def results(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / f"benchmarks/results/{name}_cpu.json").read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("script", [gpsa, throughput], ids=["gpsa", "throughput"])
def test_the_tables_are_the_results(script: ModuleType) -> None:
    name = script.__name__
    assert f"<!-- {name} -->\n{script.table(results(name))}\n" in PAGE
