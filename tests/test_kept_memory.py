"""Processes that know their place: what `tcnn.processes` asks of the C library and the kernel."""

import ctypes
import os
import resource
import sys

import pytest
import torch
from forked import processes

from tcnn.processes import keep_freed_memory


def faults(keep: bool, pipe: object) -> None:
    """How often pages come anew when 50 MiB of ten blocks are wanted again and again, from the fifth time on.

    It begins with every block mapped for itself, as glibc does first: whether its heap is trimmed depends on what lies
    at its end, and so on chance.
    """
    ctypes.CDLL(None).mallopt(-3, 2**17)
    os.environ.pop("MALLOC_TRIM_THRESHOLD_", None)
    os.environ.pop("GLIBC_TUNABLES", None)
    if keep:
        keep_freed_memory()
    before = 0
    for times in range(8):
        if times == 4:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        blocks = [torch.ones(5 * 2**18) for _ in range(10)]
        del blocks
    pipe.send(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)  # type: ignore[attr-defined]


@pytest.mark.skipif(sys.platform != "linux" or os.confstr("CS_GNU_LIBC_VERSION") is None, reason="of glibc")
def test_freed_memory_is_kept() -> None:
    found = []
    for keep in (False, True):
        ours, theirs = processes.Pipe(duplex=False)
        process = processes.Process(target=faults, args=(keep, theirs))
        process.start()
        found.append(ours.recv())
        process.join()
    given_back, kept = found
    assert given_back > 4 * 50 * 2**20 / 4096 / 2, "else there is nothing to mend any more"
    assert kept < given_back / 20


def test_what_the_environment_says_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr("ctypes.CDLL", asked.append)
    monkeypatch.delenv("MALLOC_TRIM_THRESHOLD_", raising=False)
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.trim_threshold=1")
    keep_freed_memory()
    assert not asked
    monkeypatch.delenv("GLIBC_TUNABLES")
    keep_freed_memory()
    assert bool(asked) == (sys.platform == "linux"), "else it is never asked"
