"""What a benchmark ran on, for the file that keeps its numbers."""

import importlib.metadata
import os
import platform
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")


def processor() -> str:
    """The processor and how many cores it has: "AMD EPYC, 2 cores"."""
    return f"{_name()}, {os.cpu_count()} cores"


def hardware(device: str) -> str:
    """What computes: the processor, or the GPU by its name. Nothing ever sets a GPU's clocks."""
    if device == "cpu":
        return processor()
    import torch

    return str(torch.cuda.get_device_name())


def versions(*names: str) -> dict[str, str]:
    """Of these packages; tcnn may be a checkout that nobody has installed."""
    return {name: _version(name) for name in names}


def _version(name: str) -> str:
    if name == "tcnn":
        from tcnn.version import __version__

        return __version__
    return importlib.metadata.version(name)


def _name() -> str:
    for line in CPUINFO.read_text(encoding="utf-8").splitlines() if CPUINFO.exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
