"""Pages that tell measurements (docs/dashboard.md, results.md, scaling.md, speed.md): their numbers and tables are
what was measured, computed and simulated, and where nothing was, they say so.
"""

import json
import re
import statistics
from types import ModuleType
from typing import Any

import pages
import pytest
from pages import ROOT

from benchmarks.jobqueue import simulation
from benchmarks.layer import gpsa
from benchmarks.models import sizing, throughput

DASHBOARD = (ROOT / "docs/dashboard.md").read_text()
TEN_THOUSAND = json.loads((ROOT / "benchmarks/results/dashboard_scale.json").read_text())


def test_what_ten_thousand_jobs_cost() -> None:
    (said,) = re.findall(r"^With 10,000 jobs in the store .*?\n\n", DASHBOARD, re.MULTILINE | re.DOTALL)
    assert (TEN_THOUSAND["jobs"], TEN_THOUSAND["loads"]) == (10_000, 9)
    views, runs = TEN_THOUSAND["interactive_ms"], TEN_THOUSAND["runs"]
    acts = [runs[name]["median"] for name in ("search_ms", "order_by_metric_ms", "all_again_ms", "next_page_ms")]
    figures = [views["#/"]["median"], views["#/"]["slowest"], views["#/runs"]["median"], views["#/runs"]["slowest"]]
    seconds = [float(one) for one in re.findall(r"\d\.\d\d", said)]
    assert seconds == [round(one / 1000, 2) for one in (*figures, min(acts), max(acts))]
    assert max(figures) < 1000
    assert runs["scrolling_longest_task_ms"]["slowest"] <= 50
    assert f"all {runs['columns']} columns" in said


RESULTS_PAGE = (ROOT / "docs/results.md").read_text()
EARLIER = json.loads((ROOT / "benchmarks/results/reproduce_cifar10.json").read_text())["rows"]


def test_every_picture_of_the_page_is_there_and_every_experiment_named() -> None:
    for part in RESULTS_PAGE.split("](img/")[1:]:
        assert (ROOT / "docs/img" / part.partition(")")[0]).is_file()
    for file in (ROOT / "benchmarks/reproduce/experiments").glob("*.yaml"):
        assert f"`{file.name}`" in RESULTS_PAGE


def test_the_earlier_trials_table_is_its_measurements() -> None:
    for way in dict.fromkeys(row["way"] for row in EARLIER):
        (line,) = re.findall(rf"^\| {re.escape(way)} \| \d \|.*", RESULTS_PAGE, re.MULTILINE)
        for key in ("top1", "corruption_top1"):
            mean = statistics.mean(row[key] for row in EARLIER if row["way"] == way)
            assert f"{100 * mean:.1f}" in line, (way, key)


def test_annealing_has_no_cliff_in_its_first_epoch() -> None:
    """Of all validation images, at every seed."""
    first = {
        way: statistics.mean(row["first_epoch_top1"] for row in EARLIER if row["way"] == way)
        for way in ("CNN, fine-tuned", "T-CNN, annealed")
    }
    assert first["T-CNN, annealed"] >= first["CNN, fine-tuned"] - 0.01


SPEED_PAGE = (ROOT / "docs/speed.md").read_text(encoding="utf-8")


def results(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / f"benchmarks/results/{name}_cpu.json").read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("script", [gpsa, throughput], ids=["gpsa", "throughput"])
def test_the_tables_of_speed_are_the_results(script: ModuleType) -> None:
    name = script.__name__.rpartition(".")[2]
    assert f"<!-- {name} -->\n{script.table(results(name))}\n" in SPEED_PAGE


def test_the_gpus_part_is_what_one_has_measured() -> None:
    measured = ROOT / "benchmarks/results/gpu/README.md"
    shown = SPEED_PAGE.partition("<!-- gpu -->\n")[2].partition("<!-- /gpu -->")[0]
    nothing = "Nothing has been measured on a GPU yet.\n"
    assert shown == (measured.read_text(encoding="utf-8") if measured.exists() else nothing)


SCALING = (ROOT / "docs/scaling.md").read_text()
QUEUE, MEMORY = (
    json.loads((ROOT / "benchmarks/results" / f"{n}.json").read_text()) for n in ("queue_simulation", "sizing")
)


@pytest.mark.parametrize(("script", "results"), [(simulation, QUEUE), (sizing, MEMORY)], ids=["queue", "sizing"])
def test_the_tables_of_scaling_are_the_results(script, results) -> None:  # type: ignore[no-untyped-def]
    assert script.table(results) in SCALING
    assert script.fill(SCALING, results) == SCALING


def test_what_saturates_first_is_what_was_simulated() -> None:
    text = " ".join(SCALING.split())
    over = QUEUE["simulation"]["first_over_a_second"]
    before, now = QUEUE["simulation"]["by_workers"].values()
    assert f"p99 is over a second with {over['workers']['before']:,} workers; now" in text
    assert over["workers"]["now"] is None, "none of those that were simulated"
    largest = max(now, key=lambda row: row["workers"])
    assert f"it is {largest['p99']:.2f} s with {largest['workers']:,}" in text
    assert f"which keep the database busy for {largest['busy']:.0%} of its time".replace("%", " %") in text
    assert "and 4,000 asked more than it could answer" in text
    assert next(row for row in before if row["workers"] == 4000)["busy"] > 0.9
    assert over["length_seconds"] is None and min(row["length"] for row in QUEUE["simulation"]["by_length"]) == 1.0
    thousand = next(row for row in before if row["workers"] == 1000)
    assert "busy for two fifths of its time" in text and thousand["busy"] == pytest.approx(0.4, abs=0.05)


def test_memory_of_a_cnn_grows_as_its_activations_must() -> None:
    """resnet50 keeps the input of every layer: 4 × the pixels are 4 × the activations, in bf16 half of them."""
    rows = {(r["model"], r["stride"], r["size"], r["precision"]): r["activation_bytes"]["64"] for r in MEMORY["rows"]}
    small, large = rows["resnet50", "", 224, "float32"], rows["resnet50", "", 320, "float32"]
    assert large / small == pytest.approx((320 / 224) ** 2, rel=0.03)
    assert 0.45 < rows["resnet50", "", 224, "bf16"] / small < 0.65
    assert rows["t_resnet50", "remove", 224, "float32"] > rows["t_resnet50", "keep", 224, "float32"] > small


def test_commands_are_those_of_compose() -> None:
    lines = [
        line
        for block in pages.blocks("docs/scaling.md")
        if block.language == "bash"
        for line in block.code.splitlines()
    ]
    composed = [line for line in lines if line.startswith("docker compose")]
    assert len(composed) == 5
    assert all("up --build --detach" in line for line in composed)
