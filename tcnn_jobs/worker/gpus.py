"""The GPUs of this host, by NVML, which needs neither torch nor memory on the GPU; none without a driver."""

import os
from typing import Any

import pynvml


def visible() -> list[str]:
    """What to set `CUDA_VISIBLE_DEVICES` to, for every GPU that this process may use."""
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if allowed is not None:
        return [part.strip() for part in allowed.split(",") if part.strip() and part.strip() != "-1"]
    return [str(gpu["index"]) for gpu in memory()]


def memory() -> tuple[dict[str, Any], ...]:
    """Index, name, and bytes of memory used and in all, of every GPU."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    try:
        found = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            figures = pynvml.nvmlDeviceGetMemoryInfo(handle)
            found.append(
                {
                    "index": index, "name": str(pynvml.nvmlDeviceGetName(handle)),
                    "memory_used": int(figures.used), "memory_total": int(figures.total),
                }
            )  # fmt: skip
        return tuple(found)
    except pynvml.NVMLError:
        return ()
    finally:
        pynvml.nvmlShutdown()
