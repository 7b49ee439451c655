"""What a layer saves for its backward pass on a CPU, and its chunks: the time of a training step by their memory.

    python -m benchmarks.layer.saved [--threads 2] [--rounds 9] [--out FILE]

A layer of 512 channels saves content attention and mixed values while its share of the machine's memory lasts
(`tcnn/layers/backends/chunks.py`), and computes the rest again. The shares, and chunks of half the size, are compared
in turn, with each other and with the convolution, as ratios round by round.
"""

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.layer.gpsa import candidates, ready, run
from benchmarks.reporting import hardware, versions
from benchmarks.timing import in_turn, ratio
from tcnn.layers.backends import chunks
from tcnn.processes import keep_freed_memory

RESULTS = Path(__file__).parents[1] / "results" / "saved_cpu.json"
CHANNELS = 512
"""With nine heads: of a T-ResNet50's last stage."""

LAYERS = ((14, 8), (14, 16), (14, 32), (14, 64), (32, 1), (32, 4), (32, 8))
"""Side of the map, batch."""
SHARES = (256, 64, 16)
"""Of the memory: one, divided by these."""


def compare(side: int, batch: int, rounds: int) -> dict[str, Any]:
    """A training step by the shares."""
    named = candidates(CHANNELS, "cpu", torch.float32)
    x = torch.randn(batch, CHANNELS, side, side)
    layer, convolution = (run(ready(*named[name], True), x, named[name][1], True) for name in ("gpsa", "convolution"))

    def saving(share: int, chunk: int = chunks.CPU_CHUNK) -> Callable[[], object]:
        def work() -> None:
            with patch.object(chunks, "SAVED_SHARE", share), patch.object(chunks, "CPU_CHUNK", chunk):
                layer()

        return work

    works = {"convolution": convolution} | {f"1/{share}": saving(share) for share in SHARES}
    works["1/64, half chunks"] = saving(64, chunks.CPU_CHUNK // 2)
    seconds = in_turn(works, "cpu", rounds)
    first = f"1/{SHARES[0]}"
    return {
        "map": side, "batch": batch,
        "ms": {name: round(1000 * statistics.median(times), 1) for name, times in seconds.items()},
        "by_convolution": {name: round(ratio(seconds[name], seconds["convolution"]), 3) for name in works},
        f"by_{first}": {name: round(ratio(seconds[name], seconds[first]), 3) for name in works if "/" in name},
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    keep_freed_memory()
    rows = []
    for side, batch in LAYERS:
        rows.append(compare(side, batch, options.rounds))
        print(rows[-1], flush=True)
    result = {
        "threads": options.threads, "memory_gib": round(chunks.total_memory(torch.device("cpu")) / 2**30, 1),
        "layers": rows, "hardware": hardware("cpu"), "versions": versions("tcnn", "torch"),
    }  # fmt: skip
    options.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
