"""docs/scaling.md: its tables are what was computed and simulated, its commands are true."""

import json

import pages
import pytest
from pages import ROOT

from benchmarks.jobqueue import simulation
from benchmarks.models import sizing

PAGE = (ROOT / "docs/scaling.md").read_text()
QUEUE, MEMORY = (
    json.loads((ROOT / "benchmarks/results" / f"{n}.json").read_text()) for n in ("queue_simulation", "sizing")
)


@pytest.mark.parametrize(("script", "results"), [(simulation, QUEUE), (sizing, MEMORY)], ids=["queue", "sizing"])
def test_tables_are_the_results(script, results) -> None:  # type: ignore[no-untyped-def]
    assert script.table(results) in PAGE
    assert script.fill(PAGE, results) == PAGE


def test_what_saturates_first_is_what_was_simulated() -> None:
    text = " ".join(PAGE.split())
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
