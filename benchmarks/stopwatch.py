"""How long something takes, on a GPU too, which answers before it has finished."""

import time
from collections.abc import Callable

import torch


def timed(work: Callable[[], object], device: str) -> float:
    """Seconds."""
    if device != "cpu":
        torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - began
