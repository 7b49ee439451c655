"""An attempt's directory: the protocol between a worker and the job's process.

assignment.json        what to do; written by the worker before the process starts
progress.json          where it stands; replaced by the process, a few times a second at most
events.jsonl           what happened, one line each
outcome.json           how it ended; written last
log.txt                stdout and stderr of the process
converted.safetensors  the converted model
run/                   the trainer's own directory

The process needs no access to the database, and has none.

A claim's number can come again after an older database was restored, or after a failover to one. So the directory of an
attempt is always a fresh one, and an outcome counts only with the token that this attempt's assignment was given.
"""

import json
import secrets
import time
from pathlib import Path
from typing import Any

from pydantic import Field

from tcnn.files import file_digest, folder_to_disk, to_disk
from tcnn.training.launch.exchange import Placement
from tcnn_jobs.artifacts.base import Reference
from tcnn_jobs.errors import for_requests
from tcnn_jobs.model.jobs import Artifact, Failure, Kind, Model, NewEvent, Progress, Result


class Assignment(Model):
    """Input of a job's process: its request, and in `paths` the path of everything that the request refers to."""

    job: str
    claim: int
    kind: Kind
    request: dict[str, Any]
    paths: dict[str, str] = Field(default={})
    needs: tuple[Reference, ...] = ()
    """What of `paths` must be fetched before the process can start."""
    placement: Placement = Placement()
    token: str = Field(default_factory=lambda: secrets.token_hex(16))
    """What nobody can guess, and the outcome must repeat."""
    epochs_told: int = 0
    """Of how many epochs the job's events speak already; a worker that died may have read more than it passed on."""


class Outcome(Model):
    """How a job's process ended: with a result, or with an error that a second try may cure or not."""

    result: Result | None = None
    error: Failure | None = None
    retry: bool = False
    token: str = ""


class AttemptDirectory:
    """Paths of one attempt, and the small files in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log = path / "log.txt"
        self.converted = path / "converted.safetensors"
        self.run = path / "run"
        self._events = path / "events.jsonl"
        self._progress = path / "progress.json"
        self._token: str | None = None

    def create(self) -> None:
        """Make the directory. One that is there already is set aside, unread.

        Whoever still works in that one goes on under its new name, `CLAIM.RANDOM`, and writes nothing here.
        """
        self.path.parent.mkdir(exist_ok=True)  # a home that is gone is not made anew
        while True:
            try:
                return self.path.mkdir()
            except FileExistsError:
                self.path.rename(self.path.with_name(f"{self.path.name}.{secrets.token_hex(8)}"))

    def write(self, assignment: Assignment) -> None:
        """Write the assignment, or replace it."""
        self._token = assignment.token
        (self.path / "assignment.json").write_text(assignment.model_dump_json(indent=2), encoding="utf-8")

    def assignment(self) -> Assignment:
        """Read the assignment."""
        return Assignment.model_validate_json((self.path / "assignment.json").read_text(encoding="utf-8"))

    def finish(self, outcome: Outcome) -> None:
        """Write the outcome, atomically; called by the job's process when it ends."""
        outcome = outcome.model_copy(update={"token": self.assignment().token})
        _replace(self.path / "outcome.json", outcome.model_dump_json(), keep=True)

    def outcome(self) -> Outcome | None:
        """The outcome that the process of this assignment wrote, or None."""
        try:
            outcome = Outcome.model_validate_json((self.path / "outcome.json").read_text(encoding="utf-8"))
            token = self._token or self.assignment().token
        except (OSError, ValueError):
            return None
        return outcome.model_copy(update={"token": ""}) if secrets.compare_digest(outcome.token, token) else None

    def last_words(self, width: int = 200) -> str:
        """The log's last line, for a process that could say nothing else."""
        try:
            with self.log.open("rb") as handle:
                handle.seek(max(0, self.log.stat().st_size - 4096))
                lines = handle.read().decode("utf-8", "replace").split("\n")
        except OSError:
            return ""
        return next((line.strip()[:width] for line in reversed(lines) if line.strip()), "")


class Reporter:
    """Writer of progress and events, used by the job's process."""

    INTERVAL = 0.4
    """Seconds between two writes of the same phase's progress."""

    def __init__(self, directory: AttemptDirectory) -> None:
        self._directory = directory
        self._phase = ""
        self._told: set[str] = set()
        self._written = 0.0

    def progress(self, now: Progress) -> None:
        """Write the progress, now and then. The first beginning of each phase is an event, too."""
        changed = now.phase != self._phase
        if changed or time.monotonic() - self._written > self.INTERVAL:
            self._written = time.monotonic()
            _replace(self._directory._progress, now.model_dump_json(exclude_none=True))
        self._phase = now.phase
        if now.phase not in self._told:
            self._told.add(now.phase)
            self.event("phase", phase=now.phase)

    def event(self, kind: str, **data: Any) -> None:
        """Append an event."""
        with self._directory._events.open("a", encoding="utf-8") as handle:
            handle.write(json.dumps({"kind": kind, "data": data}) + "\n")


class Listener:
    """Reader of progress and events since the last call, used by the worker."""

    def __init__(self, directory: AttemptDirectory) -> None:
        self._directory = directory
        self._offset = 0
        self._stamp: tuple[int, int] | None = None

    def progress(self) -> Progress | None:
        """The newest progress, if it is newer than the last one asked for."""
        try:
            stat = self._directory._progress.stat()
            stamp = stat.st_mtime_ns, stat.st_ino
            if stamp == self._stamp:
                return None
            progress = Progress.model_validate_json(self._directory._progress.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        self._stamp = stamp
        return progress

    def events(self, most: int = 200) -> tuple[NewEvent, ...]:
        """Events that have been written since, at most so many; a line that is still being written waits."""
        try:
            with self._directory._events.open("rb") as handle:
                handle.seek(self._offset)
                lines = handle.readlines()[:most]
        except OSError:
            return ()
        events = []
        for line in lines:
            if not line.endswith(b"\n"):
                break
            self._offset += len(line)
            try:
                events.append(NewEvent.model_validate_json(line))
            except ValueError:  # cut off by a crash
                continue
        return tuple(events)


def public(message: str, assignment: Assignment) -> str:
    """A message without this host's paths, which are not to be disclosed, and in the words of requests."""
    return for_requests(str(unplaced(message, assignment)).replace(f"{Path.cwd()}/", ""))


def unplaced(value: Any, assignment: Assignment) -> Any:
    """A result, or a part of one, in which files of the job are called what the request calls them."""
    if isinstance(value, str):
        places = {path: str(_named(assignment.request, field)) for field, path in assignment.paths.items()}
        for path in sorted(places, key=len, reverse=True):
            value = value.replace(path, places[path])
        return value
    if isinstance(value, dict):
        return {key: unplaced(one, assignment) for key, one in value.items()}
    return [unplaced(one, assignment) for one in value] if isinstance(value, list) else value


def _named(request: dict[str, Any], field: str) -> Any:
    """The name that a request gives to one of its references, by field: `source`, `dataset`, `against.1`,
    `against.1.weights`."""
    name, *place = field.split(".")
    if name == "against":
        request, name = request["against"][int(place[0])], place[1] if place[1:] else "source"
    if name == "source":
        return request.get("job") or request.get("checkpoint")
    return request.get(name) or (request.get("finetune") or {}).get(name) or name


def artifact_of(assignment: Assignment, path: Path, name: str | None = None) -> Artifact:
    """A file of the attempt's directory, on the disk, with its bytes and SHA-256; known by its own name or another."""
    to_disk(path)  # a result that is announced must survive a power cut
    return Artifact(
        name=name or path.name,
        path=f"{assignment.job}/{assignment.claim}/{path}",
        size=path.stat().st_size,
        sha256=file_digest(path),
    )


def _replace(path: Path, text: str, keep: bool = False) -> None:
    """With `keep` it is on disk, name and all, when this returns; else it is as old as it likes after a power cut."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    if keep:
        to_disk(temporary)
    temporary.replace(path)
    if keep:
        folder_to_disk(path.parent)
