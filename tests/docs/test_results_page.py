"""The tables of docs/results.md are what was measured, and what its sentences claim is in them."""

import importlib.util
import json
import statistics

from pages import ROOT

PAGE = (ROOT / "docs/results.md").read_text()
RESULTS = json.loads((ROOT / "benchmarks/results/reproduce_cifar10.json").read_text())


def test_tables_are_the_measurements() -> None:
    spec = importlib.util.spec_from_file_location("page", ROOT / "benchmarks/reproduce/page.py")
    assert spec is not None
    assert spec.loader is not None
    page = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(page)
    for name in page.tables(RESULTS):
        assert f"<!-- {name} -->\n|" in PAGE, name
    assert page.fill(PAGE, RESULTS) == PAGE


def test_annealing_has_no_cliff_in_its_first_epoch() -> None:
    """Of all validation images, at every seed."""
    first = {
        way: statistics.mean(row["first_epoch_top1"] for row in RESULTS["rows"] if row["way"] == way)
        for way in ("CNN, fine-tuned", "T-CNN, annealed")
    }
    assert first["T-CNN, annealed"] >= first["CNN, fine-tuned"] - 0.01
