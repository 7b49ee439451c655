"""What a benchmark ran on, for the file that keeps its numbers; and the page that shows them."""

import os
import platform
import re
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


def fill(page: Path, mark: str, table: str) -> None:
    """Put a table behind its mark, `<!-- mark -->`, in place of the one before."""
    text = page.read_text(encoding="utf-8")
    page.write_text(re.sub(rf"(<!-- {mark} -->\n)(?:\|.*\n)*", lambda found: found[1] + table, text), encoding="utf-8")
