"""Where the time of a compiled network goes on a GPU: its kernels, or the host that launches them.

    python -m benchmarks.models.compiled_step --network resnet50 T-resnet50 --what training [--graphs] --out FILE

Of the networks of the group `stride-removed` of `throughput.py`, in bfloat16 and channels-last: milliseconds of a step
with steps queued behind each other (`ms`, the median of seven samples, which are there, too); what the host takes to
launch one (`host_ms`); the sum of its kernels' times and how many there are, and the longest of them, by PyTorch's
profiler. Where `ms` is the kernels' sum the GPU is busy; where it is the host's time the GPU waits for it.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.models.throughput import groups, prepared, step
from benchmarks.reporting import hardware, versions
from benchmarks.timing import timed

SAMPLES, STEPS, PROFILED = 7, 10, 3
LONGEST = 25
"""Kernels that are listed."""


def host_milliseconds(work: Callable[[], object]) -> float:
    """What one call takes until it returns, with nothing queued before it."""
    found = []
    for _ in range(SAMPLES):
        torch.cuda.synchronize()
        began = time.perf_counter()
        work()
        found.append(1000 * (time.perf_counter() - began))
    torch.cuda.synchronize()
    return statistics.median(found)


def kernels(work: Callable[[], object]) -> list[tuple[int, int, str]]:
    """Microseconds of one call, number of launches and name of every kernel, the longest first."""
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(PROFILED):
            work()
        torch.cuda.synchronize()
    return sorted(
        (
            (round(event.self_device_time_total / PROFILED), event.count // PROFILED, event.key)
            for event in seen.key_averages()
            if event.self_device_time_total
        ),
        reverse=True,
    )


def measure(network: str, training: bool, graphs: bool, batch: int) -> dict[str, Any]:
    """The row of one network."""
    base = network.removeprefix("T-")
    entries = groups(base)["stride-removed"]
    entry = next(entry for name, entry in entries.items() if name.startswith("T-") == network.startswith("T-"))
    layout = torch.channels_last
    model = entry.make().eval().to("cuda", torch.bfloat16, memory_format=layout)  # type: ignore[call-overload]
    x = torch.randn(batch, 3, 224, 224).to("cuda", torch.bfloat16, memory_format=layout)
    mode = {"mode": "reduce-overhead"} if graphs else {}
    work = step(torch.compile(prepared(model, training), dynamic=False, **mode), x, training)
    for _ in range(9):
        work()
    samples = [round(1000 * timed(work, "cuda", STEPS), 3) for _ in range(SAMPLES)]
    host, found = host_milliseconds(work), kernels(work)
    return {
        "network": network, "what": "training step" if training else "inference", "graphs": graphs, "batch": batch,
        "ms": statistics.median(samples), "samples": samples, "host_ms": round(host, 2),
        "kernels_ms": round(sum(microseconds for microseconds, *_ in found) / 1000, 3),
        "launches": sum(count for _, count, _ in found),
        "longest": [{"us": us, "launches": count, "kernel": name[:110]} for us, count, name in found[:LONGEST]],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", nargs="+", default=["resnet50", "T-resnet50"], help="a timm ResNet, or T- and it")
    parser.add_argument("--what", nargs="+", choices=("inference", "training"), default=["inference", "training"])
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--graphs", action="store_true", help='replay CUDA graphs (mode="reduce-overhead")')
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("expected a GPU, found none: what a host launches can be seen only there")
    rows = []
    for what in options.what:
        for network in options.network:
            torch.compiler.reset()
            rows.append(measure(network, what == "training", options.graphs, options.batch))
            print({key: value for key, value in rows[-1].items() if key != "longest"}, flush=True)
    found = {"rows": rows, "hardware": hardware("cuda"), "versions": versions("tcnn", "torch", "timm", "triton")}
    options.out.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
