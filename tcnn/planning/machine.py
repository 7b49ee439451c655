"""Memory of this machine: what is free for a run, and the most that this process or its GPU has taken."""

import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import torch

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
MEMINFO, GROUP, GROUPS = Path("/proc/meminfo"), Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def free_bytes(device: torch.device) -> int | None:
    """Bytes that a run may take beside what is taken: of a GPU, or of this machine and container; None if unknown."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    free = [_field(MEMINFO, "MemAvailable"), *_group_bytes()]
    return min((each for each in free if each is not None), default=None)


def _group_bytes() -> Iterator[int]:
    """What the control groups (version 2) of this process, a container's for instance, leave it."""
    with suppress(OSError, ValueError):
        own = next(line for line in GROUP.read_text(encoding="utf-8").splitlines() if line.startswith("0::"))
        place = GROUPS / own.removeprefix("0::").lstrip("/")
        for group in (place, *place.parents):
            with suppress(OSError, ValueError):  # there is no limit: "max", or no such file
                limit = int((group / "memory.max").read_text(encoding="utf-8"))
                stat = dict(line.split() for line in (group / "memory.stat").read_text(encoding="utf-8").splitlines())
                # The page cache counts, but is given up for a process that needs the memory.
                yield max(
                    0, limit - int((group / "memory.current").read_text(encoding="utf-8")) + int(stat["inactive_file"])
                )
            if group == GROUPS:
                return


def reset_peak(device: torch.device) -> None:
    """Let `peak_bytes` count from now on, where the system can."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    with suppress(OSError):
        RESET.write_text("5", encoding="utf-8")


def peak_bytes(device: torch.device) -> int | None:
    """The most bytes that the run has taken: of the GPU, by PyTorch's allocator; else of this process, resident."""
    return torch.cuda.max_memory_reserved(device) if device.type == "cuda" else _resident("VmHWM")


def taken_bytes(device: torch.device) -> int:
    """Bytes that this process has resident now; on a GPU, where memory is counted apart, none."""
    return 0 if device.type == "cuda" else _resident("VmRSS") or 0


def _resident(field: str) -> int | None:
    """A field of this process; elsewhere than on Linux its peak; None on Windows."""
    found = _field(STATUS, field)
    if found is not None or sys.platform == "win32":
        return found
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def free_disk_bytes(path: Path) -> int:
    """Free bytes of the disk that a file or directory will be on."""
    place = path.absolute()
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free


def _field(file: Path, name: str) -> int | None:
    """A field of a file of /proc in bytes; None where there is none."""
    with suppress(OSError, StopIteration):
        line = next(line for line in file.read_text(encoding="utf-8").splitlines() if line.startswith(f"{name}:"))
        return int(line.split()[1]) * 1024
    return None
