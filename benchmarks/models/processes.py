"""What a second process brings to training on one host: images per second of one and of two, each with as many threads.

    python -m benchmarks.models.processes [--model resnet18] [--size 96] [--threads 1] [--pairs 3] [--device cpu]

Both are `tcnn finetune` with the same settings and one batch, which two processes share, in like parts. Each does all
of its work, decoding included, in its threads. What does not get less by sharing, the optimizer's step and the exchange
of gradients, happens once a batch, and batch normalisation meets the other process in every part: small batches and
small parts gain less. Rates are the medians over the steps, as the run's own metrics have them; runs take turns
(1 2 2 1 …), and the ratio is the median over the pairs. Results go to `benchmarks/results/processes.json`.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from benchmarks.models.train_overhead import draw
from benchmarks.reporting import processor
from tcnn.training.runs.rundir import RunDirectory

RESULTS = Path(__file__).parents[1] / "results" / "processes.json"
SKIPPED = 2
"""Steps at the start of an epoch that fill pipelines."""


def rate(data: Path, options: argparse.Namespace, processes: int) -> float:
    """Images per second, the median over steps, of a run by so many processes."""
    with tempfile.TemporaryDirectory() as out:
        settings = {
            "epochs": 1,
            "warmup_epochs": 0,
            "anneal": "none",
            "log_steps": 1,
            "micro_batch": options.micro_batch,
            "workers": 0,
        }
        command = [
            sys.executable, "-m", "tcnn", "finetune", options.model, "--data", str(data), "--no-pretrained",
            "--preset", "quick", "--size", str(options.size), "--batch-size", str(options.batch_size),
            "--device", options.device, "--nproc", str(processes), "--out", f"{out}/run",
            *(part for name, value in settings.items() for part in ("--set", f"{name}={value}")),
        ]  # fmt: skip
        environment = {**os.environ, "OMP_NUM_THREADS": str(options.threads)}
        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        steps = RunDirectory(Path(out) / "run").rows("train")
    return statistics.median(row["images_per_second"] for row in steps[SKIPPED:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--size", type=int, default=96)
    parser.add_argument("--images", type=int, default=1792)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--micro-batch", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    rates: dict[int, list[float]] = {1: [], 2: []}
    with tempfile.TemporaryDirectory() as scratch:
        draw(Path(scratch), options.images, options.size)
        for pair in range(options.pairs):
            for processes in (1, 2)[:: -1 if pair % 2 else 1]:
                rates[processes].append(rate(Path(scratch), options, processes))
                print(processes, round(rates[processes][-1], 2), flush=True)
    result = {
        "model": f"t_{options.model}", "size": options.size, "batch_size": options.batch_size,
        "micro_batch": options.micro_batch,        "threads_per_process": options.threads,
        "images_per_second": {str(count): round(statistics.median(found), 2) for count, found in rates.items()},
        "ratio": round(statistics.median(two / one for one, two in zip(rates[1], rates[2], strict=True)), 3),
        "hardware": f"{processor()}, device {options.device}",
        "versions": {name: version(name) for name in ("tcnn", "torch", "timm")},
    }  # fmt: skip
    RESULTS.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
