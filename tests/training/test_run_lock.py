"""A run's directory is one process's at a time: whoever comes second is told so, and changes nothing."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import tiny_runs
from tiny_runs import colours

import tcnn
from tcnn.errors import OutputError
from tcnn.training.runs.rundir import BASELINE, RunDirectory

TAKEN = "another process is training in it; wait for its end, or choose another --out"
HOLDER = """
import os, sys, time
from pathlib import Path
from tcnn.training.runs.rundir import RunDirectory
run = RunDirectory(Path(sys.argv[1]))
run.hold()
if sys.argv[2] == "with a child" and os.fork() == 0:
    print("held", flush=True)
    time.sleep(600)
if sys.argv[2] != "with a child":
    print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def held(place: Path, how: str = "alone") -> Iterator["subprocess.Popen[str]"]:
    """Another process that trains in the directory, as far as anybody can tell."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(place), how], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture
def train(tmp_path: Path) -> Callable[..., Any]:
    data = colours(tmp_path / "data")

    def of(**options: Any) -> Any:
        return tiny_runs.run(tiny_runs.TwoConvs(), data, tmp_path / "run", **{"epochs": 1, **options})

    return of


def contents(place: Path) -> dict[str, bytes]:
    return {str(file.relative_to(place)): file.read_bytes() for file in place.rglob("*") if file.is_file()}


@pytest.mark.parametrize("how", [{"resume": True}, {"force": True}], ids=["resume", "force"])
def test_who_comes_second_is_refused_and_changes_nothing(
    train: Callable[..., Any], tmp_path: Path, how: dict[str, bool]
) -> None:
    train()
    before = contents(tmp_path / "run")
    with held(tmp_path / "run"), pytest.raises(OutputError) as refused:
        train(**how)
    assert str(refused.value) == f"{tmp_path / 'run'}: {TAKEN}"
    assert contents(tmp_path / "run") == before
    train(**how)  # the other one was killed, and keeps nobody out


def test_the_run_of_a_baseline_is_one_processs_as_well(train: Callable[..., Any], tmp_path: Path) -> None:
    train(baseline=True)
    with held(tmp_path / "run" / BASELINE), pytest.raises(OutputError, match="another process is training in it"):
        train(epochs=2, resume=True, allow_changes=True, baseline=True)
    train(epochs=2, resume=True, allow_changes=True, baseline=True)


def test_children_of_a_killed_process_keep_nobody_out(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    with held(tmp_path, "with a child") as process:
        with pytest.raises(OutputError, match="another process is training in it"):
            run.hold()
        process.kill()
        process.wait()
        with run.released():
            run.hold()


def test_it_is_let_go_at_the_end(tmp_path: Path) -> None:
    run, other = RunDirectory(tmp_path), RunDirectory(tmp_path)
    with run.released():
        run.hold()
        run.hold()  # as one that resumes and begins anew does
        with pytest.raises(OutputError, match="another process is training in it"):
            other.hold()
    with other.released():
        other.hold()


def test_where_there_are_no_locks_nobody_is_kept_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunDirectory(tmp_path)
    with held(tmp_path), run.released():
        with pytest.raises(OutputError, match="another process is training in it"):
            run.hold()
        monkeypatch.setattr("tcnn.training.runs.rundir.fcntl", None)
        run.hold()


def test_a_run_that_learns_on_is_no_longer_what_was_compared(train: Callable[..., Any], tmp_path: Path) -> None:
    """Its comparison was of the model that it had; one that has nothing left to learn keeps it."""
    train(compare=True)
    comparison = tmp_path / "run" / "before-after.json"
    train(resume=True)
    assert comparison.exists()
    train(epochs=2, resume=True, allow_changes=True, compare=True)
    written = comparison.read_bytes()
    train(epochs=3, resume=True, allow_changes=True)
    assert not comparison.exists()
    comparison.write_bytes(written)
    shutil.rmtree(tmp_path / "run" / "resume")
    train(epochs=3, resume=True, allow_changes=True)  # from its beginning, for want of a resume point
    assert not comparison.exists()


@pytest.mark.slow
def test_two_real_runs(train: Callable[..., Any], tmp_path: Path) -> None:
    """One that is resumed while it runs goes on undisturbed: every epoch has its line."""
    script = (
        "import sys, tiny_runs\nfrom pathlib import Path\n"
        "tiny_runs.run(tiny_runs.TwoConvs(), Path(sys.argv[1]), Path(sys.argv[2]), epochs=12)\n"
    )
    helpers = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    place = tmp_path / "run"
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "data"), str(place)], env=helpers) as first:
        while not (place / "metrics.jsonl").exists() and first.poll() is None:
            pass
        with pytest.raises(OutputError, match="another process is training in it"):
            train(epochs=12, resume=True)
        assert first.wait() == 0
    assert [row["epoch"] for row in RunDirectory(place).rows("epoch")] == list(range(12))
    assert tcnn.load(place / "best.safetensors", source=tiny_runs.TwoConvs()) is not None
