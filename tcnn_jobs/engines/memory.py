"""Memory of jobs on this host: use of their processes, priority for the OOM killer, and number of its kills."""

import contextlib
import os
import time
from pathlib import Path
from typing import NamedTuple

FIRST = 1000
"""To the system's own choice of whom to end for memory this much is added, the most that there is."""
FRESH = 0.5
"""Seconds for which a look at all processes is good enough."""
_PAGE = os.sysconf("SC_PAGE_SIZE")


class _Process(NamedTuple):
    pid: int
    parent: int
    session: int
    resident: int


_seen: dict[str, tuple[float, list[_Process]]] = {}


def go_first(pid: int) -> None:
    """Raise the OOM score of a process and its future children: they are killed before any other."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/oom_score_adj").write_text(str(FIRST), encoding="ascii")


def kills() -> int:
    """How many processes the system has ended for memory since it was started, as far as it tells."""
    try:
        lines = Path("/proc/vmstat").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


def taken(root: int, most: int) -> int:
    """Bytes that a process and all that it has started take; 0 where the system does not tell.

    Pages that several of them share (those of forked loaders) are counted once, but only if it matters: where even
    counted again and again they are no more than `most`, that sum is returned, which costs little.
    """
    family = _family(root)
    resident = sum(process.resident for process in family)
    return resident if resident <= most else sum(_proportional(process) for process in family)


def _family(root: int) -> list[_Process]:
    """Processes of its session, and descendants in sessions of their own."""
    everybody = _everybody()
    found = {process.pid for process in everybody if root in (process.pid, process.session)}
    size = 0
    while len(found) > size:
        size = len(found)
        found |= {process.pid for process in everybody if process.parent in found}
    return [process for process in everybody if process.pid in found]


def _everybody() -> list[_Process]:
    at, found = _seen.get("/proc", (float("-inf"), []))
    if time.monotonic() - at > FRESH:
        try:
            pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]
        except OSError:
            pids = []
        found = [process for process in map(_look, pids) if process is not None]
        _seen["/proc"] = time.monotonic(), found
    return found


def _look(pid: int) -> _Process | None:
    try:
        words = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return _Process(pid, int(words[1]), int(words[3]), int(words[21]) * _PAGE)
    except (OSError, ValueError, IndexError):  # it has ended meanwhile
        return None


def _proportional(process: _Process) -> int:
    """Its pages, each divided by the number of processes that share it."""
    try:
        lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    except OSError:
        return process.resident
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)
