"""How near `tcnn plan` comes to the runs that it plans: peak memory and time per epoch, planned and measured.

    python -m benchmarks.models.plan_accuracy --data photos/ [--device cpu] [--seconds 30]

Each plan and each run has a process of its own, as commands have. Timed is from the first update of an epoch to that of
the next, so neither start-up nor an early end counts; memory is the most that the process had resident, or on a GPU
what PyTorch reserved. Of `--data`, class folders, so many images are taken that an epoch has ten updates.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.reporting import hardware, versions

RESULTS = Path(__file__).parents[1] / "results" / "plan.json"
EPOCHS = 4
UPDATES = 10
"""Of an epoch."""
RUNS: dict[str, dict[str, Any]] = {
    "resnet18": {"size": 96, "batch_size": 64},
    "resnet26d": {"size": 96, "batch_size": 32, "anneal": "warmup", "anneal_epochs": 1},
    "mobilenetv2_100": {"size": 128, "batch_size": 32, "amp": "bfloat16"},
    "regnety_002": {"size": 128, "batch_size": 64, "micro_batch": 32, "conversion": {"stride": "dilate"}},
}
"""By model, over the `quick` preset: a convolution with content heads beside it, an annealed attention, autocast, and
micro-batches of larger maps."""


def run_of(name: str, arguments: argparse.Namespace) -> tuple[Any, Any]:
    """The images and the configuration of one run."""
    from tcnn.config import finetune_config
    from tcnn.data.image_set import class_balanced, open_dataset

    data = open_dataset(arguments.data, "train")
    options = {"epochs": EPOCHS, "workers": 1, "device": arguments.device, "val_split": 0.2, **RUNS[name]}
    images = UPDATES * RUNS[name]["batch_size"] / 0.8
    return class_balanced(data, min(1.0, images / len(data)), seed=0), finetune_config("quick", options=options)


def planned(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """The plan: peak memory, and the seconds of the epochs that are measured."""
    import tcnn

    data, config = run_of(name, arguments)
    made = tcnn.plan(name, data, config=config, seconds=arguments.seconds)
    return {
        "peak_bytes": made.memory.peak, "expected_bytes": made.memory.expected, "computed_bytes": made.memory.computed,
        "seconds": sum(made.epoch_seconds[: EPOCHS - 1]), "steps": made.updates // made.epochs,
    }  # fmt: skip


def measured(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """The run: peak memory, and seconds from the first update to that of the last of the epochs."""
    import torch

    import tcnn
    from tcnn.planning import memory
    from tcnn.training.runs.callbacks import Progress

    data, config = run_of(name, arguments)
    began: dict[int, float] = {}

    def report(now: Progress) -> None:
        if now.epoch:  # what comes before the first is no epoch
            began.setdefault(now.epoch, time.monotonic())
        if len(began) == EPOCHS:
            ended.append(True)

    ended: list[bool] = []
    with tempfile.TemporaryDirectory() as directory:
        try:
            tcnn.finetune(
                name, data, config=config, out=Path(directory) / "run", pretrained=False, report=report,
                stop=lambda: bool(ended),
            )  # fmt: skip
        except tcnn.TcnnError:  # it was told to stop
            if not ended:
                raise
    peak = memory.peak_bytes(torch.device(arguments.device))
    return {"peak_bytes": peak, "seconds": began[EPOCHS] - began[1]}


def compare(arguments: argparse.Namespace) -> dict[str, Any]:
    """Plan and run every model, each in its own process."""
    rows = []
    for name, given in RUNS.items():
        row: dict[str, Any] = {"model": name, **given}
        for what in ("planned", "measured"):
            command = [sys.executable, "-m", "benchmarks.models.plan_accuracy", "--data", arguments.data, "--device",
                       arguments.device, "--seconds", str(arguments.seconds), "--one", what, name]  # fmt: skip
            row[what] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        row["memory_ratio"] = round(row["planned"]["peak_bytes"] / row["measured"]["peak_bytes"], 3)
        row["expected_ratio"] = round(row["planned"]["expected_bytes"] / row["measured"]["peak_bytes"], 3)
        row["time_ratio"] = round(row["planned"]["seconds"] / row["measured"]["seconds"], 3)
        print(json.dumps(row), file=sys.stderr)
        rows.append(row)
    return {"hardware": hardware(arguments.device), "seconds": arguments.seconds, "rows": rows,
            "versions": versions("tcnn", "torch", "timm")}  # fmt: skip


def main() -> None:
    """Compare, and write what came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--one", nargs=2, metavar=("WHAT", "MODEL"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        what, name = arguments.one
        print(json.dumps({"planned": planned, "measured": measured}[what](name, arguments)))
        return
    RESULTS.write_text(json.dumps(compare(arguments), indent=2) + "\n")


if __name__ == "__main__":
    main()
