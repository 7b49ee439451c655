"""docs/dashboard.md: what it says of 10,000 jobs is what was measured, and what was promised."""

import json
import re

from pages import ROOT

TEXT = (ROOT / "docs/dashboard.md").read_text()
FOUND = json.loads((ROOT / "benchmarks/results/dashboard_scale.json").read_text())


def test_what_ten_thousand_jobs_cost() -> None:
    (said,) = re.findall(r"^With 10,000 jobs in the store .*?\n\n", TEXT, re.MULTILINE | re.DOTALL)
    assert (FOUND["jobs"], FOUND["loads"]) == (10_000, 9)
    views, runs = FOUND["interactive_ms"], FOUND["runs"]
    acts = [runs[name]["median"] for name in ("search_ms", "order_by_metric_ms", "all_again_ms", "next_page_ms")]
    figures = [views["#/"]["median"], views["#/"]["slowest"], views["#/runs"]["median"], views["#/runs"]["slowest"]]
    seconds = [float(one) for one in re.findall(r"\d\.\d\d", said)]
    assert seconds == [round(one / 1000, 2) for one in (*figures, min(acts), max(acts))]
    assert max(figures) < 1000
    assert runs["scrolling_longest_task_ms"]["slowest"] <= 50
    assert f"all {runs['columns']} columns" in said
