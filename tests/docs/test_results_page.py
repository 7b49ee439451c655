"""The pictures and experiments of docs/results.md are there, and the earlier trial's numbers are its measurements."""

import json
import re
import statistics

from pages import ROOT

PAGE = (ROOT / "docs/results.md").read_text()
EARLIER = json.loads((ROOT / "benchmarks/results/reproduce_cifar10.json").read_text())["rows"]


def test_every_picture_of_the_page_is_there_and_every_experiment_named() -> None:
    for part in PAGE.split("](img/")[1:]:
        assert (ROOT / "docs/img" / part.partition(")")[0]).is_file()
    for file in (ROOT / "benchmarks/reproduce/experiments").glob("*.yaml"):
        assert f"`{file.name}`" in PAGE


def test_the_earlier_trials_table_is_its_measurements() -> None:
    for way in dict.fromkeys(row["way"] for row in EARLIER):
        (line,) = re.findall(rf"^\| {re.escape(way)} \| \d \|.*", PAGE, re.MULTILINE)
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
