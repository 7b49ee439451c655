"""Measurements in parts, as `benchmarks/parts.py` runs them: real processes that end well, fail, hang, are resumed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import parts as under_test
from benchmarks.parts import CUT_OFF, DONE, FAILED, NOT_RUN, Outcome, Part, run_all, sources

FACTS = {"device": "cpu", "sources": "0123", "versions": {"torch": "2.8.0"}}


def script(name: str, code: str, limit: float = 30, needs: tuple[str, ...] = ()) -> Part:
    """A part that runs `code`, which finds the file for its result in `out`."""
    return Part(name, ("-c", f"import pathlib, sys; out = pathlib.Path(sys.argv[1])\n{code}", "{out}"), limit, needs)


def counted(name: str, log: Path, more: str = "") -> Part:
    """A part that notes every time it is run."""
    return script(name, f"open({str(log)!r}, 'a').write('{name} ')\nout.write_text('{{\"rows\": [1]}}')\n{more}")


def go(parts: list[Part], out: Path, seconds: float = 60, facts: dict[str, object] = FACTS) -> list[Outcome]:
    return run_all(
        parts, out, facts, seconds=seconds, missing=lambda name: name == "absent", environment={"TOLD": "so"},
        say=lambda line: None,
    )  # fmt: skip


def test_what_is_done_is_not_done_again(tmp_path: Path) -> None:
    log, out = tmp_path / "log", tmp_path / "out"
    parts = [counted("one", log), counted("two", log)]
    assert [outcome.status for outcome in go(parts, out)] == [DONE, DONE]
    (out / "two.json").write_text((out / "two.json").read_text()[:-9], encoding="utf-8")  # not whole
    again = go([*parts, counted("three", log)], out)
    assert [(outcome.status, outcome.fresh, outcome.result) for outcome in again] == [
        (DONE, False, {"rows": [1]}), (DONE, True, {"rows": [1]}), (DONE, True, {"rows": [1]}),
    ]  # fmt: skip
    assert log.read_text() == "one two two three "
    assert sorted(path.name for path in out.iterdir()) == ["one.json", "three.json", "two.json"]


@pytest.mark.parametrize("changed", ["sources", "versions", "arguments"])
def test_other_sources_versions_or_arguments_are_measured_again(tmp_path: Path, changed: str) -> None:
    log, out = tmp_path / "log", tmp_path / "out"
    go([counted("one", log), counted("two", log)], out)
    facts = FACTS if changed == "arguments" else {**FACTS, changed: "other"}
    again = go(
        [counted("one", log, "# smaller" if changed == "arguments" else ""), counted("two", log)], out, 60, facts
    )
    assert [outcome.fresh for outcome in again] == [True, changed != "arguments"]
    assert json.loads((out / "one.json").read_text())["facts"] == facts


def test_one_that_fails_does_not_stop_the_others_and_is_tried_again(tmp_path: Path) -> None:
    log, out, fixed = tmp_path / "log", tmp_path / "out", tmp_path / "fixed"
    broken = f"print('setting up')\nif not pathlib.Path({str(fixed)!r}).exists(): sys.exit('no kernel image')\n"
    parts = [
        script("broken", broken + "out.write_text('{}')"),
        script("silent", ""),
        script("garbled", "out.write_text('{')"),
        counted("after", log),
    ]
    found = {outcome.part: outcome for outcome in go(parts, out)}
    assert [outcome.status for outcome in found.values()] == [FAILED, FAILED, FAILED, DONE]
    assert found["broken"].reason == "no kernel image"
    assert "left no result" in found["silent"].reason and "left no result" in found["garbled"].reason
    assert json.loads((out / "broken.json").read_text())["output"] == "setting up\nno kernel image\n"
    fixed.touch()
    assert [outcome.status for outcome in go(parts, out)] == [DONE, FAILED, FAILED, DONE]
    assert log.read_text() == "after "


def alive(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def sleeper(pids: Path) -> str:
    """A process that sleeps and has another that sleeps, and says who they are."""
    return (
        "import os, subprocess, time\n"
        "other = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        f"pathlib.Path({str(pids)!r}).write_text(f'{{os.getpid()}} {{other.pid}}')\ntime.sleep(60)"
    )


def test_one_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    slow = script("slow", sleeper(pids), limit=2)
    slow_outcome, after = go([slow, counted("after", tmp_path / "log")], tmp_path / "out")
    assert (slow_outcome.status, slow_outcome.reason) == (FAILED, "still running after 2 s")
    assert after.status == DONE
    assert not any(alive(int(pid)) for pid in pids.read_text().split())


def test_when_the_time_is_up_the_rest_is_left_for_the_next_time(tmp_path: Path) -> None:
    out, log = tmp_path / "out", tmp_path / "log"
    parts = [counted("first", log), script("long", "import time; time.sleep(60)"), counted("last", log)]
    began = time.monotonic()
    found = go(parts, out, seconds=2)
    assert time.monotonic() - began < 45
    assert [outcome.status for outcome in found] == [DONE, CUT_OFF, NOT_RUN]
    assert found[1].reason.endswith("run it again to go on")
    parts[1] = counted("long", log)
    assert [(outcome.status, outcome.fresh) for outcome in go(parts, out)] == [
        (DONE, False),
        (DONE, True),
        (DONE, True),
    ]
    assert log.read_text() == "first long last "


def test_a_missing_package_leaves_out_what_needs_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    needy = counted("needy", log)._replace(needs=("json", "absent"))
    found = go([needy, counted("other", log)], tmp_path / "out")
    assert [(outcome.status, outcome.reason) for outcome in found] == [(NOT_RUN, "absent is missing"), (DONE, "")]
    assert log.read_text() == "other "


def test_processes_see_the_environment(tmp_path: Path) -> None:
    part = script("seeing", "import json, os\nout.write_text(json.dumps([os.environ['TOLD'], os.environ['PATH']]))")
    (outcome,) = go([part], tmp_path / "out")
    assert outcome.result == ["so", os.environ["PATH"]]


def test_a_terminated_runner_leaves_nobody_behind(tmp_path: Path) -> None:
    pids, out = tmp_path / "pids", tmp_path / "out"
    runner = f"""
import sys
sys.path[:0] = [{str(Path(under_test.__file__).parent)!r}, {str(Path(__file__).parent)!r}]
from pathlib import Path
from test_parts import go, script, sleeper
go([script("slow", sleeper(Path({str(pids)!r})))], Path({str(out)!r}))
"""
    process = subprocess.Popen([sys.executable, "-c", runner], stderr=subprocess.PIPE, text=True)
    while not pids.exists() or len(pids.read_text().split()) < 2:
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert "KeyboardInterrupt" in process.communicate(timeout=120)[1]
    assert not any(alive(int(pid)) for pid in pids.read_text().split())
    assert not list(out.iterdir()), "no result of what did not end"


def test_sources_are_known_by_their_names_and_contents(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "one.py").write_text("1")
    (tmp_path / "note.md").write_text("1")
    before = sources(tmp_path, ("a/**/*.py", "*.py"))
    (tmp_path / "note.md").write_text("2")
    assert sources(tmp_path, ("a/**/*.py", "*.py")) == before
    (tmp_path / "a" / "one.py").write_text("2")
    changed = sources(tmp_path, ("a/**/*.py", "*.py"))
    (tmp_path / "a" / "one.py").rename(tmp_path / "two.py")
    assert len({before, changed, sources(tmp_path, ("a/**/*.py", "*.py"))}) == 3
