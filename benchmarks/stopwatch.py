"""How long something takes, on a GPU too, which answers before it has finished; and several things in turn."""

import math
import statistics
import time
from collections.abc import Callable, Mapping

import torch

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
