"""Measurements in parts: each a process of its own with a time limit, its result kept, and left out when it is there.

Nothing here loads torch: whatever is wrong with a part, or with the packages of a machine, the others go on.
"""

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

Say = Callable[[str], None]
Facts = dict[str, Any]
"""What a result depends on: sources, versions, hardware. A result is kept while it stays."""

DONE, FAILED, CUT_OFF, NOT_RUN = "done", "failed", "cut off", "not run"
TAIL = 4000
"""Characters of a part's output that are kept."""


def json_of(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


class Part(NamedTuple):
    """One process."""

    name: str
    """Its result is NAME.json."""
    arguments: Sequence[str]
    """What Python is given; `{out}` in it is the file that the process leaves its result in."""
    limit: float
    """Seconds."""
    needs: Sequence[str] = ()
    """Modules without which it cannot be run, beyond those that all need."""
    read: Callable[[Path], Any] = json_of
    """The result from that file."""


class Outcome(NamedTuple):
    """What became of a part."""

    part: str
    status: str
    seconds: float = 0.0
    reason: str = ""
    result: Any = None
    fresh: bool = True
    """Whether it was run just now."""


def sources(root: Path, patterns: Sequence[str]) -> str:
    """A digest of the files that decide what a result is."""
    digest = hashlib.sha256()
    for path in sorted({path for pattern in patterns for path in root.glob(pattern) if path.is_file()}):
        digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def run_all(
    parts: Sequence[Part],
    out: Path,
    facts: Facts,
    *,
    seconds: float,
    missing: Callable[[str], bool],
    environment: Mapping[str, str],
    say: Say,
) -> list[Outcome]:
    """Run what has not been done yet, in order, for at most so many seconds altogether.

    Args:
        out: the directory of the results; each is written whole or not at all.
        missing: whether a module is not there.
        environment: what the processes see besides this one's.
    """
    out.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + seconds
    outcomes = []
    for number, part in enumerate(parts, 1):
        label = f"[{number}/{len(parts)}] {part.name}"
        outcome = kept(part, out, facts)
        if outcome is None:
            absent = [name for name in part.needs if missing(name)]
            left = end - time.monotonic()
            if absent:
                outcome = Outcome(part.name, NOT_RUN, reason=f"{', '.join(absent)} is missing")
            elif left <= 0:
                outcome = Outcome(part.name, NOT_RUN, reason="no time was left; run it again to go on")
            else:
                say(f"{label} …")
                outcome = run(part, out, facts, min(part.limit, left), environment)
        say(f"{label}: {told(outcome)}")
        outcomes.append(outcome)
    return outcomes


def kept(part: Part, out: Path, facts: Facts) -> Outcome | None:
    """What an earlier run has found, if it was done with the same sources and versions on the same hardware."""
    try:
        before = json_of(out / f"{part.name}.json")
        if before["status"] == DONE and before["facts"] == facts and before["arguments"] == list(part.arguments):
            return Outcome(part.name, DONE, before["seconds"], before["reason"], before["result"], fresh=False)
    except (OSError, ValueError, KeyError, TypeError):
        pass  # none, or none that can be read: it is run again
    return None


def run(part: Part, out: Path, facts: Facts, limit: float, environment: Mapping[str, str]) -> Outcome:
    """Run one part; what it came to is in NAME.json as well."""
    with tempfile.TemporaryDirectory() as scratch:
        found, log = Path(scratch) / "result", Path(scratch) / "log"
        command = [sys.executable, *(argument.replace("{out}", str(found)) for argument in part.arguments)]
        began = time.monotonic()
        code = _run(command, log, limit, environment)
        seconds = round(time.monotonic() - began, 1)
        said = log.read_text(encoding="utf-8", errors="replace")[-TAIL:]
        result, status, reason = None, DONE, ""
        try:
            result = part.read(found)
        except (OSError, ValueError, KeyError) as error:
            status, reason = FAILED, f"it left no result ({type(error).__name__})"
        if code is None:
            # Only a part that had all of its own time is at fault.
            status = FAILED if limit >= part.limit else CUT_OFF
            reason = f"still running after {limit:.0f} s" + ("" if status == FAILED else "; run it again to go on")
        elif code:
            status, reason = FAILED, _last_line(said) or f"exit status {code}"
    outcome = Outcome(part.name, status, seconds, reason, result)
    record = outcome._asdict() | {"facts": facts, "arguments": list(part.arguments), "output": said}
    del record["fresh"]
    write(out / f"{part.name}.json", json.dumps(record, indent=2, ensure_ascii=False) + "\n")
    return outcome


def write(path: Path, text: str) -> None:
    """The whole file or what was there before."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def told(outcome: Outcome) -> str:
    """One line about what became of a part."""
    line = outcome.status if outcome.fresh else f"{outcome.status} before"
    if outcome.seconds:
        line += f" in {outcome.seconds:.0f} s"
    return line + (f": {outcome.reason}" if outcome.reason else "")


def _run(command: list[str], log: Path, limit: float, environment: Mapping[str, str]) -> int | None:
    """The exit status, or None if it had to be ended, with all processes that it has started."""
    with log.open("wb") as output, _terminated_as_interrupted():
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            # Unbuffered, or what it says of its end would come before what it had said until then.
            env={**os.environ, "PYTHONUNBUFFERED": "1", **environment}, start_new_session=True,
        )  # fmt: skip
        try:
            return process.wait(limit)
        except subprocess.TimeoutExpired:
            return None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # what it may have left behind, too
            process.wait()


@contextlib.contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM ends this process as Ctrl-C does: not without the process that it waits for."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
