"""Timing of work on a processor, or a GPU, which answers before it has finished; and the least time it can take."""

import math
import statistics
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch

from tcnn.layers.terms.products import linear

SAMPLE = 0.01
"""Seconds that one sample on a GPU lasts at least: as many calls as that takes are queued behind each other."""
CALLS = 50
"""Most calls of one sample."""


def timed(work: Callable[[], object], device: str, calls: int = 1) -> float:
    """Seconds of one call.

    On a GPU between two events on its stream, around so many calls: what the host does counts where the device has to
    wait for it, as in a network, and nowhere else.
    """
    if device == "cpu":
        began = time.perf_counter()
        for _ in range(calls):
            work()
        return (time.perf_counter() - began) / calls
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    for _ in range(calls):
        work()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1000 / calls


def in_turn(works: Mapping[str, Callable[[], object]], device: str, rounds: int) -> dict[str, list[float]]:
    """Seconds of one call of everything, round by round, after two rounds that only warm up."""
    calls = dict.fromkeys(works, 1)
    for name, work in works.items():
        work()
        if device != "cpu":
            calls[name] = min(CALLS, max(1, math.ceil(SAMPLE / timed(work, device))))
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for number in range(rounds + 1):
        for name, work in works.items():
            taken = timed(work, device, calls[name])
            if number:
                seconds[name].append(taken)
    return seconds


def ratio(ones: list[float], others: list[float]) -> float:
    """The median of the ratios round by round, which holds when the machine's speed drifts."""
    return statistics.median(one / other for one, other in zip(ones, others, strict=True))


class Ceilings(NamedTuple):
    """What a machine can do at best: the two rates that no layer exceeds for long."""

    multiply_adds: float
    """Per second, of the best of some large matrix products; a multiply-add is two FLOPs."""
    bytes: float
    """Per second, read and written, of the best large copy."""

    def seconds(self, multiply_adds: float, bytes: float) -> float:
        """The floor: what such work takes at least, whichever of the two bounds it."""
        return max(multiply_adds / self.multiply_adds, bytes / self.bytes)

    def record(self) -> dict[str, float]:
        """For the file that keeps the numbers."""
        return {
            "multiply_adds_per_second": round(self.multiply_adds),
            "bytes_per_second": round(self.bytes),
        }


def ceilings(device: str, dtype: torch.dtype) -> Ceilings:
    """Measure both, by large matrix products and copies. The operands are random: some GPUs multiply zeros faster.

    On a processor products are the BLAS's and oneDNN's, whichever are faster.
    """
    best = 0.0
    for size in (1024, 2048) if device == "cpu" else (4096, 8192):
        a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
        for multiply in (torch.matmul, linear):
            seconds = min(timed(lambda m=multiply, a=a, b=b: m(a, b), device) for _ in range(8))  # type: ignore[misc]
            best = max(best, size**3 / seconds)
    source = torch.randn(2**25 if device == "cpu" else 2**28, device=device)  # far more than any cache holds
    target = torch.empty_like(source)
    seconds = min(timed(lambda: target.copy_(source), device) for _ in range(8))
    return Ceilings(best, 2 * source.nbytes / seconds)
