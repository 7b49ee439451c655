"""Slots of a worker: a GPU of this host each, and those that a job gets which needs several at once (a gang).

GPUs are found by NVML, which needs neither torch nor memory on the GPU; without a driver there are none.
"""

import contextlib
import os
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

import pynvml


def slots_for(wanted: int | None) -> list[str | None]:
    """One slot a GPU, and more than one to a GPU in turn if more are wanted; without a GPU, one on the CPU."""
    found: list[str | None] = [*visible_gpus()] or [None]
    count = wanted or len(found)
    return [found[place % len(found)] for place in range(count)]


def gang(free: Sequence[str | None], size: int) -> list[str | None] | None:
    """The first `size` free slots of different GPUs, or None if there are fewer; None is a slot on the CPU. Pure."""
    chosen: list[str | None] = []
    for slot in free:
        if len(chosen) < size and (slot is None or slot not in chosen):
            chosen.append(slot)
    return chosen if len(chosen) == size else None


def left_over(free: Sequence[str | None], gangs: Sequence[int]) -> list[str | None]:
    """What is free once each of these gangs has its slots; nothing while one of them cannot have them."""
    left = list(free)
    for size in gangs:
        slots = gang(left, size)
        if slots is None:
            return []
        for slot in slots:
            left.remove(slot)
    return left


def widest(slots: Sequence[str | None]) -> int:
    """The largest gang of a worker with these slots."""
    return len({slot for slot in slots if slot is not None}) + sum(slot is None for slot in slots)


def visible_gpus() -> list[str]:
    """The value of `CUDA_VISIBLE_DEVICES` for each GPU that this process may use.

    CUDA reads that list up to the first number that no GPU has, -1 above all: those behind it are hidden.
    """
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if allowed is not None:
        parts = [part.strip() for part in allowed.split(",") if part.strip()]
        return list(takewhile(lambda part: not part.startswith("-"), parts))
    return [str(gpu["index"]) for gpu in gpu_memory()]


def gpu_memory() -> tuple[dict[str, Any], ...]:
    """Index and name of every GPU, and bytes of memory used and in all where the driver tells them.

    Some have no figures of their own: memory that is shared with the processor, or a GPU that is divided. One that the
    driver has lost is left out, for no job could use it.
    """
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    try:
        found = (_look(index) for index in range(pynvml.nvmlDeviceGetCount()))
        return tuple(gpu for gpu in found if gpu is not None)
    except pynvml.NVMLError:
        return ()
    finally:
        pynvml.nvmlShutdown()


def _look(index: int) -> dict[str, Any] | None:
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    except pynvml.NVMLError:
        return None
    gpu: dict[str, Any] = {"index": index, "name": "unknown"}
    with contextlib.suppress(pynvml.NVMLError):
        gpu["name"] = str(pynvml.nvmlDeviceGetName(handle))
    with contextlib.suppress(pynvml.NVMLError):
        figures = pynvml.nvmlDeviceGetMemoryInfo(handle)
        gpu |= {"memory_used": int(figures.used), "memory_total": int(figures.total)}
    return gpu
