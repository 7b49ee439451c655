"""`make check` runs every tool, whatever another finds, and fails if one does."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOOLS = ("ruff", "mypy", "lint-imports")


@pytest.mark.parametrize("faulty", [None, *TOOLS])
def test_every_fault_is_told_at_once(tmp_path: Path, faulty: str | None) -> None:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    for tool in TOOLS:
        program = programs / tool
        program.write_text(f"#!/bin/sh\necho {tool} ran\nexit {int(tool == faulty)}\n")
        program.chmod(0o755)
    (tmp_path / ".venv" / ".ready").touch()
    done = subprocess.run(["make", "-C", tmp_path, "check"], capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode == 0) == (faulty is None)
    assert [tool for tool in TOOLS if f"{tool} ran" not in done.stdout] == []


def test_without_a_cache_types_are_checked_by_two_processes(tmp_path: Path) -> None:
    def command() -> str:
        return subprocess.run(
            ["make", "--no-print-directory", "-n", "-f", ROOT / "Makefile", "types"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()

    assert "mypy --num-workers 2" in command()
    (tmp_path / ".mypy_cache").mkdir()
    assert "--num-workers" not in command()


@pytest.mark.parametrize(("status", "runs"), [(0, 1), (1, 1), (2, 2)])
def test_workers_that_do_not_start_are_done_without(tmp_path: Path, status: int, runs: int) -> None:
    """A busy machine starts them too late, and mypy ends with 2; faults in types are 1, and told once."""
    program = tmp_path / ".venv" / "bin" / "mypy"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\necho "ran $*"\ntest -z "$*" || exit {status}\n')
    program.chmod(0o755)
    done = subprocess.run(
        ["make", "-f", ROOT / "Makefile", "types"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines().count("ran --num-workers 2") == 1
    assert sum(line.startswith("ran") for line in done.stdout.splitlines()) == runs
    assert (done.returncode == 0) == (status != 1)


def test_before_it_installs_for_minutes_it_says_so(tmp_path: Path) -> None:
    """As `make demo` does in a fresh clone; pip is none, so nothing is installed."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    done = subprocess.run(
        ["make", "-C", tmp_path, "demo", "PYTHON=false"], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode != 0
    assert "installing into .venv, once: torch with its CUDA libraries is some 5 GB, which takes minutes" in done.stdout
