"""Whoever of a run's processes is killed, none of the others stays behind."""

import os
import signal
from pathlib import Path

import pytest
from houses import processes_of, wait_for
from launched import launched


@pytest.mark.parametrize("who", ["the command", "tcnn.training.launch.agent"])
def test_a_kill_leaves_nobody(tmp_path: Path, who: str) -> None:
    process = launched(tmp_path)
    there = {pid: Path(f"/proc/{pid}/cmdline").read_text() for pid in processes_of(tmp_path)}
    assert len(there) == 4
    victim = process.pid if who == "the command" else next(pid for pid, words in there.items() if who in words)
    os.kill(victim, signal.SIGKILL)
    _, said = process.communicate(timeout=60)
    wait_for(lambda: not processes_of(tmp_path), 10)
    if who != "the command":
        assert process.returncode == 4
        assert "ended without a word" in said and "go on with --resume" in said and "log.txt" in said
