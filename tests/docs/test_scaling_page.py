"""docs/scaling.md: its tables are what was computed and simulated, its commands and links are true."""

import json
import re
import sys

import pages
import pytest
from pages import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))

import queue_simulation
import sizing

PAGE = (ROOT / "docs/scaling.md").read_text()
QUEUE, MEMORY = (
    json.loads((ROOT / "benchmarks/results" / f"{n}.json").read_text()) for n in ("queue_simulation", "sizing")
)


@pytest.mark.parametrize(("script", "results"), [(queue_simulation, QUEUE), (sizing, MEMORY)], ids=["queue", "sizing"])
def test_tables_are_the_results(script, results) -> None:  # type: ignore[no-untyped-def]
    assert script.table(results) in PAGE
    assert script.fill(PAGE, results) == PAGE


def test_a_fleet_of_a_thousand_is_what_was_simulated() -> None:
    before, now = QUEUE["simulation"]["by_workers"].values()
    assert next(row for row in before if row["workers"] == 2000)["p99"] > 1.0, "seconds, as the page says"
    assert next(row for row in now if row["workers"] == 1000)["p99"] < 1.0


def test_what_saturates_first_is_what_was_simulated() -> None:
    text = " ".join(PAGE.split())
    over = QUEUE["simulation"]["first_over_a_second"]
    assert f"with {over['workers']['before']:,} workers, now with {over['workers']['now']:,}" in text
    by_length = {row["length"]: row["p99"] for row in QUEUE["simulation"]["by_length"]}
    assert by_length[2.0] < 1.0 <= by_length[over["length_seconds"]]


def test_memory_of_a_cnn_grows_as_its_activations_must() -> None:
    """resnet50 keeps the input of every layer: 4 × the pixels are 4 × the activations, in bf16 half of them."""
    rows = {(r["model"], r["stride"], r["size"], r["precision"]): r["activation_bytes"]["64"] for r in MEMORY["rows"]}
    small, large = rows["resnet50", "", 224, "float32"], rows["resnet50", "", 320, "float32"]
    assert large / small == pytest.approx((320 / 224) ** 2, rel=0.03)
    assert 0.45 < rows["resnet50", "", 224, "bf16"] / small < 0.65
    assert rows["t_resnet50", "remove", 224, "float32"] > rows["t_resnet50", "keep", 224, "float32"] > small


def test_links() -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", PAGE):
        if not target.startswith("https://"):
            path, _, anchor = target.partition("#")
            file = ROOT / "docs" / (path or "scaling.md")
            assert file.exists(), target
            headings = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE) if anchor else [anchor]
            slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in slugs, target


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
