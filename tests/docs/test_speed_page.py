"""docs/speed.md: its tables are what was measured, and where nothing was, it says so."""

import json
from types import ModuleType
from typing import Any

import pytest
from pages import ROOT

from benchmarks.layer import gpsa
from benchmarks.models import throughput

PAGE = (ROOT / "docs/speed.md").read_text(encoding="utf-8")


def results(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / f"benchmarks/results/{name}_cpu.json").read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("script", [gpsa, throughput], ids=["gpsa", "throughput"])
def test_the_tables_are_the_results(script: ModuleType) -> None:
    name = script.__name__.rpartition(".")[2]
    assert f"<!-- {name} -->\n{script.table(results(name))}\n" in PAGE


def test_the_gpus_part_is_what_one_has_measured() -> None:
    measured = ROOT / "benchmarks/results/gpu/README.md"
    shown = PAGE.partition("<!-- gpu -->\n")[2].partition("<!-- /gpu -->")[0]
    nothing = "Nothing has been measured on a GPU yet.\n"
    assert shown == (measured.read_text(encoding="utf-8") if measured.exists() else nothing)
