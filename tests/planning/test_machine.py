"""Free and largest memory, by the files that Linux has for it."""

from mmap import mmap
from pathlib import Path

import pytest
import torch

from tcnn.planning import machine


def fields(file: Path, **values: int) -> Path:
    """A file as those of /proc are, in kB."""
    file.write_text("".join(f"{name}:  {value // 1024} kB\n" for name, value in values.items()))
    return file


def test_the_least_of_machine_and_containers_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "MEMINFO", fields(tmp_path / "meminfo", MemAvailable=8 << 30))
    monkeypatch.setattr(machine, "GROUPS", tmp_path / "groups")
    monkeypatch.setattr(machine, "GROUP", tmp_path / "cgroup")
    own = tmp_path / "groups" / "team" / "job"
    own.mkdir(parents=True)
    (tmp_path / "cgroup").write_text("0::/team/job\n")
    assert machine.free_bytes(torch.device("cpu")) == 8 << 30
    for group, limit, taken, cache in ((own, "max", 0, 0), (own.parent, str(4 << 30), 3 << 30, 1 << 29)):
        (group / "memory.max").write_text(f"{limit}\n")
        (group / "memory.current").write_text(f"{taken}\n")
        (group / "memory.stat").write_text(f"anon 1\ninactive_file {cache}\n")
    assert machine.free_bytes(torch.device("cpu")) == (1 << 30) + (1 << 29)


def test_where_nothing_is_known_nothing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "MEMINFO", tmp_path / "none")
    monkeypatch.setattr(machine, "GROUP", tmp_path / "none")
    assert machine.free_bytes(torch.device("cpu")) is None


def test_the_peak_begins_anew() -> None:
    cpu = torch.device("cpu")
    machine.reset_peak(cpu)
    with mmap(-1, 64 << 20) as held:  # the system's own, which no allocator keeps
        held.write(bytes(1) * len(held))
        with_it = machine.peak_bytes(cpu)
    machine.reset_peak(cpu)
    without = machine.peak_bytes(cpu)
    assert with_it is not None
    assert without is not None
    assert with_it - without > 48 << 20
