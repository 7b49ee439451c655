"""The experiment runner's processes, killed with it, and called again: the rows are those of one process."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy
import yaml
from PIL import Image

ROOT = Path(__file__).parents[2]
EXPERIMENT: dict[str, Any] = {
    "model": "resnet20", "pretrained": False, "preset": "cifar", "reference": "cnn", "seeds": [0, 1],
    "corrupted": {"images": 8, "corruptions": ["fog"], "severities": [3]},
    "recipe": {"size": 8, "epochs": 3, "batch_size": 6, "crop_padding": 1, "checkpoint_steps": 1},
    "adapt": {"epochs": 5},
    "arms": {"cnn": {"convert": False}, "t-cnn": {"control": "cnn"}},
}  # fmt: skip


def draw(root: Path) -> None:
    generator = numpy.random.default_rng(0)
    for split, images in (("train", 15), ("val", 10)):
        for name, red in (("cat", 90), ("dog", 130)):
            (root / split / name).mkdir(parents=True)
            for number in range(images):
                pixels = generator.normal([red, 100, 220 - red], 40, (8, 8, 3)).clip(0, 255).astype(numpy.uint8)
                Image.fromarray(pixels).save(root / split / name / f"{number}.png")


def start(place: Path, out: str, workers: int, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(ROOT / "benchmarks/reproduce/run.py"), str(place / "tiny.yaml"), "--data"]
    command += [str(place / "data"), "--work", str(place / f"work-{out}"), "--out", str(place / f"{out}.json")]
    command += ["--workers", str(workers), "--threads", "1", *more]
    return subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def rows(file: Path) -> list[dict[str, Any]]:
    clock = ("train_seconds", "images_per_second")
    found = json.loads(file.read_text())["rows"]
    return [{key: value for key, value in row.items() if key not in clock} for row in found]


def children(process: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def gone(process: int) -> bool:
    try:
        return "State:\tZ" in Path(f"/proc/{process}/status").read_text()
    except FileNotFoundError:
        return True


def until(what: Any, seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_processes_that_are_killed_with_their_parent_go_on(tmp_path: Path) -> None:
    draw(tmp_path / "data")
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(EXPERIMENT, sort_keys=False))
    alone = start(tmp_path, "alone", 1)
    assert alone.wait(300) == 0, alone.communicate()[0]

    killed = start(tmp_path, "both", 2)
    until(lambda: list((tmp_path / "work-both").glob("adapt-*/resume/step-*")))
    mine = children(killed.pid)
    assert mine
    killed.send_signal(signal.SIGKILL)
    killed.wait(30)
    until(lambda: all(gone(process) for process in mine), 30)

    asked = start(tmp_path, "both", 2)
    until(lambda: list((tmp_path / "work-both").glob("t-cnn-*/resume/step-*")))
    mine = children(asked.pid)
    asked.send_signal(signal.SIGINT)
    said = asked.communicate(timeout=60)[0]
    assert (asked.returncode, "stopped; run it again to go on\n" in said, "Traceback" in said) == (130, True, False), (
        said
    )
    until(lambda: all(gone(process) for process in mine), 5)  # Python's own helper goes a moment after us

    last = start(tmp_path, "both", 2)
    assert last.wait(300) == 0, last.communicate()[0]
    assert rows(tmp_path / "both.json") == rows(tmp_path / "alone.json")
    again = start(tmp_path, "both", 2)
    assert again.communicate(timeout=120)[0] == "every row is there already\n"
