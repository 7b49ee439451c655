"""What a benchmark ran on, for the file that keeps its numbers."""

import os
import platform
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")


def processor() -> str:
    """The processor and how many cores it has: "AMD EPYC, 2 cores"."""
    return f"{_name()}, {os.cpu_count()} cores"


def _name() -> str:
    for line in CPUINFO.read_text(encoding="utf-8").splitlines() if CPUINFO.exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
