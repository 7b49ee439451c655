"""The files for the paper's tables and figures run from end to end, on a folder of a few tiny images."""

import json
from pathlib import Path
from typing import Any

import pytest
import run as runner
import yaml
from figures import pictures
from tiny_experiment import images

EXPERIMENTS = Path(__file__).parents[2] / "benchmarks" / "reproduce" / "experiments"
PAPERS = ["table1", "table2", "table3", "table4", "table5", "figure4", "figure6", "figure7", "ablations"]
DRAWN = {"table2": "gain-t-cnn", "figure4": "gates-t-cnn", "figure7": "resolution"}
TINY = {"batch_size": 8, "micro_batch": 8, "checkpoint_steps": 50, "drop_path": 0.0}
"""Images take 32 pixels; epochs are divided by 50, and at least one."""

pytestmark = pytest.mark.slow


def short(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings for an instant: as long as a fiftieth, so that what is converted late is still converted on the way."""
    changed = {**settings, **{key: max(1, settings[key] // 50) for key in ("epochs", "convert_at") if key in settings}}
    return changed | ({"size": 32} if "size" in settings else {})


@pytest.mark.parametrize("name", PAPERS)
def test_it_runs_on_a_folder_of_images(name: str, tmp_path: Path) -> None:
    content = yaml.safe_load((EXPERIMENTS / f"{name}.yaml").read_text(encoding="utf-8"))
    content["recipe"] = short({"epochs": 100, "size": 32, **content["recipe"]}) | TINY
    content["arms"] = {arm: short(own) for arm, own in content["arms"].items()}
    if "adapt" in content:
        content["adapt"] = short(content["adapt"]) | {"lr": 1e-3}
    if content["corrupted"]:
        content["corrupted"] = {"images": 6, "corruptions": ["fog", "contrast"], "severities": [1, 5], "size": 32}
    if "sizes" in content:
        content["sizes"] = [24, 40]
    file = tmp_path / "small.yaml"
    file.write_text(yaml.safe_dump({**content, "pretrained": False}, sort_keys=False), encoding="utf-8")
    out = tmp_path / "small-test_resnet.json"
    data = images(tmp_path / "data")
    call = [str(file), "--data", str(data), "--model", "test_resnet", "--work", str(tmp_path / "w"), "--out", str(out)]
    assert runner.main(call) == 0
    found = json.loads(out.read_text())
    assert [row["arm"] for row in found["rows"]] == list(content["arms"])
    assert {entry["arm"] for entry in found["summary"] if "against" in entry} >= {
        arm for arm, own in content["arms"].items() if "control" in own
    }, "each with its interval"
    if name in DRAWN:
        assert pictures(found)[f"results-small-test_resnet-{DRAWN[name]}"][1]() is not None
