"""The benchmark's runner: shards, resumption, limits, and the page that it writes."""

import csv
import json
from pathlib import Path

import pytest
import timm
from forked import processes

from benchmarks.zoo import sweep as zoo
from benchmarks.zoo.check import FAILED, NOT_RUN, REFUSED, VERIFIED, Row
from benchmarks.zoo.summary import summarise


@pytest.fixture
def started_at_once(monkeypatch):
    """Children are forked from a process that has torch loaded, where the benchmark has fresh ones."""
    monkeypatch.setattr(zoo.multiprocessing, "get_context", lambda kind: processes)


@pytest.mark.usefixtures("started_at_once")
def test_child_that_overruns_its_time_is_not_run(tmp_path):
    options = _options(tmp_path, "test_resnet", timeout=0.001)
    zoo.run(options)
    row = zoo.read(options.csv)["test_resnet"]
    assert row.status == NOT_RUN
    assert "not done after" in row.reason


@pytest.mark.usefixtures("started_at_once")
def test_run_writes_rows_and_resumes(tmp_path):
    options = _options(tmp_path, "test_vit[23]", timeout=300.0)
    names = zoo.pending(options)
    assert set(names) == set(timm.list_models("test_vit[23]"))
    halves = [zoo.pending(_options(tmp_path, "test_vit[23]", shard=f"{i}/2")) for i in (1, 2)]
    assert sorted([*halves[0], *halves[1]]) == sorted(names)
    zoo.run(_options(tmp_path, "test_vit[23]", shard="1/2"))
    assert zoo.pending(options) == halves[1]
    zoo.run(options)
    assert zoo.pending(options) == []
    assert zoo.pending(_options(tmp_path, "test_vit[23]", redo="failed")) == []
    assert set(zoo.pending(_options(tmp_path, "test_vit[23]", redo=REFUSED))) == set(names)
    with options.csv.open(newline="", encoding="utf-8") as file:
        assert [line["status"] for line in csv.DictReader(file)] == [REFUSED] * len(names)


def _options(folder: Path, only: str, shard: str = "1/1", redo: str = "", timeout: float = 300.0):
    arguments = ["--csv", str(folder / "zoo.csv"), "--only", only, "--shard", shard, "--redo", redo]
    return zoo.parse([*arguments, "--timeout", str(timeout)])


def test_summary_counts_and_names_everything(tmp_path):
    verified = Row(
        "a_net", "nets", VERIFIED, "", 2, "3×3 7×7", 9, "64×64", 10, 20, "1.0e-07", "1.0e-16", "2.0e-07", "2.0e-16",
        "3.0e-02", "1", "0.5",
    )  # fmt: skip
    rows = [
        verified,
        verified._replace(name="b_net", error32="9.0e-06"),
        Row("c_vit", "vits", REFUSED, "c_vit: it reads the image itself, as a stem", spatial_convolutions=1),
        Row("d_net", "nets", FAILED, "RuntimeError: no"),
        Row("e_net", "nets", NOT_RUN, "too large: it needs about 40 GiB, the limit is 8 GiB"),
    ]
    csv_path, page = tmp_path / "zoo.csv", tmp_path / "zoo.md"
    writer = zoo.Writer(csv_path, len(rows))
    for row in [rows[0]._replace(status=FAILED), *rows]:
        writer.write(row)
    zoo.tidy(csv_path)
    zoo.describe_machine(tmp_path / "zoo.json")
    summarise(zoo.read(csv_path).values(), tmp_path / "zoo.json", page)
    text = page.read_text(encoding="utf-8")
    for status, count in ((VERIFIED, 2), (REFUSED, 1), (FAILED, 1), (NOT_RUN, 1)):
        assert f"| {status} | {count} |" in text
    assert "| nets | 4 | 2 | – | 1 | 1 | 3×3 7×7 | 9.0e-06 | 1.0e-16 | 3.0e-02 |" in text
    assert "`c_vit`" in text.split("## Refused")[1]
    assert "`d_net`: RuntimeError: no" in text.split("## Failed")[1]
    assert "`e_net`: too large" in text.split("## Not run")[1]
    assert json.loads((tmp_path / "zoo.json").read_text(encoding="utf-8"))["processor"] in text
