"""docs/finetune.md states every setting with its default and its meaning, and every preset."""

import json
import re
from pathlib import Path

from pages import ROOT
from tiny_runs import TwoConvs, colours, run

from tcnn.config import PRESETS, FinetuneConfig

PAGE = (ROOT / "docs/finetune.md").read_text()


def test_every_setting_stands_in_the_table() -> None:
    shown = re.findall(r"^\| `(\w+)` \| (.+?) \| (.+) \|$", PAGE[PAGE.index("## Settings") :], re.MULTILINE)
    fields = FinetuneConfig.model_fields
    assert [name for name, _, _ in shown] == list(fields)
    for name, default, meaning in shown:
        assert meaning == fields[name].description, name
        value = fields[name].default
        if value is None:
            assert default == "–", name
        elif name not in ("conversion", "ratio"):
            assert default == f"`{value!r}`", name


def test_every_preset_stands_in_the_table() -> None:
    assert re.findall(r"^\| `(\w+)` \| [^|]+ \|$", PAGE, re.MULTILINE) == list(PRESETS)


def test_keys_of_the_metrics(tmp_path: Path) -> None:
    """Those of a run that is made, and no others."""
    run(TwoConvs(), colours(tmp_path / "colours"), tmp_path / "run", epochs=1, log_steps=1)
    real: dict[str, set[str]] = {}
    for line in (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        real.setdefault(row["kind"], set()).update(row)
        if row["kind"] == "epoch":
            assert set(row["val"]) == {"top1", "top5", "loss", "images"}
    told: dict[str, set[str]] = {"train": set(), "epoch": set()}
    table = PAGE.partition("| key | in | value |")[2].partition("\n\n")[0]
    for keys, kinds in re.findall(r"^\| (`[^|]+`) \| ([^|]+) \|", table, re.MULTILINE):
        for kind in told if kinds == "both" else re.findall(r"`(\w+)`", kinds):
            told[kind].update(re.findall(r"`(\w+)`", keys))
    assert told == real
