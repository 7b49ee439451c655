"""What a verified conversion costs beside a plain script that only creates the model and saves it.

    python -m benchmarks.models.convert [--runs 7] [--model resnet50d] [--out benchmarks/results/convert.json]

Both run as whole processes, in turn (A B A B …), from start to exit; the default verification is included. Reported are
medians of wall time and peak memory, and the medians of the ratios run by run, which hold when the machine's speed
drifts.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

from benchmarks.reporting import processor

PLAIN = """
import sys, timm
from safetensors.torch import save_file
save_file(timm.create_model(sys.argv[1]).state_dict(), sys.argv[2])
"""


def measure(command: list[str]) -> tuple[float, float]:
    """Wall seconds and peak memory in MiB of one process."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    if status:
        raise SystemExit(f"{command} failed with status {status}")
    return wall, usage.ru_maxrss / 1024


def compare(model: str, runs: int) -> dict[str, object]:
    walls: dict[str, list[float]] = {"plain": [], "tcnn": []}
    peaks: dict[str, list[float]] = {"plain": [], "tcnn": []}
    with tempfile.TemporaryDirectory() as scratch:
        commands = {
            "plain": [sys.executable, "-c", PLAIN, model, f"{scratch}/plain.safetensors"],
            "tcnn": [
                str(Path(sys.executable).with_name("tcnn")), "convert", model, f"{scratch}/out.safetensors",
                "--no-pretrained", "--force",
            ],
        }  # fmt: skip
        for run in range(runs + 1):
            for name, command in commands.items():
                wall, peak = measure(command)
                if run:  # the first pair only warms the file cache
                    walls[name].append(wall)
                    peaks[name].append(peak)

    def ratio(of: dict[str, list[float]]) -> float:
        return round(statistics.median(b / a for a, b in zip(of["plain"], of["tcnn"], strict=True)), 3)

    return {
        "model": model,
        "runs": runs,
        "wall_seconds": {name: round(statistics.median(values), 3) for name, values in walls.items()},
        "peak_mib": {name: round(statistics.median(values), 1) for name, values in peaks.items()},
        "wall_ratio": ratio(walls),
        "peak_ratio": ratio(peaks),
        "hardware": processor(),
        "versions": {name: version(name) for name in ("tcnn", "torch", "timm", "safetensors")},
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet50d")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results" / "convert.json")
    options = parser.parse_args()
    result = compare(options.model, options.runs)
    options.out.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))
