"""The GPUs of this host, by NVML, which needs neither torch nor memory on the GPU; none without a driver."""

import contextlib
import os
from typing import Any

import pynvml


def visible() -> list[str]:
    """The value of `CUDA_VISIBLE_DEVICES` for each GPU that this process may use."""
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if allowed is not None:
        return [part.strip() for part in allowed.split(",") if part.strip() and part.strip() != "-1"]
    return [str(gpu["index"]) for gpu in memory()]


def memory() -> tuple[dict[str, Any], ...]:
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
