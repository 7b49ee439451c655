"""An engine around another: fetches what a job needs, then starts it, mirrors it while it runs, and sends its result.

The worker does this, and not the job's process, which reads what strangers uploaded and so holds no key to the store.
It happens in threads: a transfer holds up no heartbeat, and whoever is asked to stop stops between two pieces.
"""

import contextlib
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog

from tcnn.errors import EnvironmentFailure, RequestError, Stopped, StorageError, TcnnError, one_line
from tcnn.training.launch.exchange import Placement
from tcnn_jobs.artifacts.bucket import BucketError, ObjectGone
from tcnn_jobs.artifacts.cache import Held
from tcnn_jobs.artifacts.layout import Home, Manifest, claim_of, file_key
from tcnn_jobs.artifacts.mirror import Mirror
from tcnn_jobs.artifacts.shared import SharedArtifacts
from tcnn_jobs.attempt import Assignment, AttemptDirectory, Outcome, Reporter
from tcnn_jobs.attempts.fitness import Unfit, trouble
from tcnn_jobs.attempts.stages import Attempt, attempt_of, attempts_of, best
from tcnn_jobs.engines.base import Engine, Process
from tcnn_jobs.model.jobs import Failure, Progress
from tcnn_jobs.retry import STOPPED, error_code

log = structlog.stdlib.get_logger("tcnn.courier")

RESUME = "; what was done is kept, so resume the job when the store works"
_NOT_FETCHED = "what the job needs cannot be fetched"
_KILLED = -int(signal.SIGKILL)


class Courier:
    """As `Engine`, for workers whose results are kept in a store.

    Args:
        every: seconds between two looks whether a running job has written something new.
    """

    def __init__(self, engine: Engine, artifacts: SharedArtifacts, home: Home, every: float) -> None:
        self._engine, self.artifacts, self.home, self.every = engine, artifacts, home, every

    def start(self, directory: Path, gpus: Sequence[str]) -> Process:
        """As `Engine.start`; the process begins when all that it needs is here."""
        return _Carried(self, directory, lambda: self._engine.start(directory, gpus))

    def placement(self, num_workers: int) -> Placement:
        """As `Engine.placement`."""
        return self._engine.placement(num_workers)


class _Carried:
    """As `Process`: an attempt from the first byte that is fetched to the last that is sent."""

    def __init__(self, courier: Courier, directory: Path, start: Callable[[], Process]) -> None:
        self._courier, self._start = courier, start
        self._directory = AttemptDirectory(directory)
        self._held: list[Held] = []
        self._holding = threading.Lock()
        self._is_over = False
        self._others: frozenset[str] = frozenset()
        """Keys that attempts of the same number have in the store."""
        self._assignment: Assignment
        """As `_fetch` read it, before the process started, which can write here."""
        self._process: Process | None = None
        self._code: int | None = None
        """How it ended, once it has."""
        self._unfit = ""
        """What is wrong with this host, if nothing could be fetched for that."""
        self._stop, self._ended, self._killed, self._result = (threading.Event() for _ in range(4))
        self._thread = _run(self._fetch)

    def poll(self) -> int | None:
        """As `Process.poll`. Called from the main thread, so that the job's process is its child. Raises `Unfit`."""
        if self._killed.is_set():
            gone = self._process is None or self._process.poll() is not None
            return self._over(self._code or _KILLED) if gone else None
        if self._process is None:
            if self._thread.is_alive():
                return None
            if self._code is not None:
                code = self._over(self._code)
                if self._unfit:
                    raise Unfit(self._unfit)
                return code
            try:
                self._process = self._start()
            except OSError as error:
                if problem := trouble(self._courier.home):
                    self._over(EnvironmentFailure.exit_code)
                    raise Unfit(problem) from error
                failure = EnvironmentFailure(f"the job's process could not be started: {one_line(error)}")
                return self._over(self._failed(failure, retry=True))
            self._thread = _run(self._send)
        if not self._ended.is_set():
            self._code = self._process.poll()
            if self._code is None:
                return None
            if self._code == 0:
                self._result.set()
            self._ended.set()
        return None if self._thread.is_alive() else self._over(self._code or 0)

    def terminate(self) -> None:
        """As `Process.terminate`. A resume point is sent to its end, a result is not: it can be sent again."""
        if self._process is None or self._result.is_set():
            self._stop.set()
        else:
            self._process.terminate()

    def memory(self, most: int) -> int:
        """As `Process.memory`."""
        return 0 if self._process is None else self._process.memory(most)

    def kill(self) -> None:
        """As `Process.kill`."""
        self._killed.set()
        self._stop.set()
        self._ended.set()
        if self._process is not None:
            self._process.kill()

    def _over(self, code: int) -> int:
        with self._holding:
            self._is_over = True
            for held in self._held:
                held.release()
        return code

    def _keep(self, held: Held) -> None:
        """Until the attempt is over; it can be over already, where it was killed while the last of a fetch came."""
        with self._holding:
            if self._is_over:
                held.release()
            else:
                self._held.append(held)

    def _failed(self, error: TcnnError, retry: bool) -> int:
        kind, hint = (StorageError(), RESUME) if isinstance(error, BucketError) else (error, "")
        failure = Failure(code=error_code(kind), message=f"{error}{hint}")
        try:
            self._directory.finish(Outcome(error=failure, retry=retry))
        except (OSError, ValueError) as problem:  # the exit code says, too, that nothing has succeeded
            log.warning(
                "could not say why", attempt=str(self._directory.path), why=str(error), problem=one_line(problem)
            )
        return error.exit_code

    def _fetch(self) -> None:
        """Leaves an exit code if the process cannot be started."""
        try:
            assignment = self._assignment = self._directory.assignment()
            if assignment.needs:
                Reporter(self._directory).progress(Progress(phase="fetching", percent=0.0))
            for reference in assignment.needs:
                self._keep(self._courier.artifacts.hold(reference, self._stop))
            previous = self._previous(assignment)
            if previous is not None:
                paths = assignment.paths | {"previous": str(previous)}
                self._directory.write(assignment.model_copy(update={"paths": paths}))
        except Stopped:
            self._code = STOPPED
        except Exception as error:
            failure, attempt = error, str(self._directory.path)
            if not isinstance(failure, TcnnError):
                failure = EnvironmentFailure(f"{_NOT_FETCHED}: {one_line(error)}")
            log.warning("could not fetch", attempt=attempt, problem=str(failure), exc_info=failure is not error)
            # What is refused here, another host's key may be allowed to have.
            self._unfit = trouble(self._courier.home, self._courier.artifacts)
            again = isinstance(failure, EnvironmentFailure)
            self._code = failure.exit_code if self._unfit else self._failed(failure, again)

    def _previous(self, assignment: Assignment) -> Path | None:
        """The attempt that another host has sent and that got farthest, if it got farther than any that lies here.

        One of this number is set aside first: it is of a time that the database has forgotten.
        """
        artifacts, job, claim = self._courier.artifacts, assignment.job, assignment.claim
        if str(claim) in (names := artifacts.sent(job, self._stop)):
            artifacts.set_aside(job, claim, self._stop)
            names = artifacts.sent(job, self._stop)
        manifests = {name: artifacts.manifest(job, name, self._stop) or Manifest() for name in names}
        others = (one for name, one in manifests.items() if claim_of(name) == claim)
        self._others = frozenset(file_key(file) for one in others for file in one.files)
        here = attempts_of(self._courier.home, job)
        there = [attempt_of(name, manifest.names) for name, manifest in manifests.items()]
        while (found := best([*here, *there], claim)) is not None and found.path is None:
            if (held := self._hold(job, found)) is not None:
                return held.path
            there.remove(found)
        return None

    def _hold(self, job: str, attempt: Attempt) -> Held | None:
        """An attempt of the store, kept here; None if what it is wanted for is gone."""
        artifacts = self._courier.artifacts
        for _ in range(3):  # if its worker is alive after all, it may replace what the manifest names
            manifest = artifacts.manifest(job, attempt.name, self._stop) or Manifest()
            if attempt_of(attempt.name, manifest.names).stage < attempt.stage:
                break
            with contextlib.suppress(ObjectGone):
                held = artifacts.hold_attempt(job, attempt.claim, manifest, self._stop)
                self._keep(held)
                return held
        return None

    def _send(self) -> None:
        """While the process runs, and once more when it has ended; may change its exit code."""
        told = self._assignment
        bucket = self._courier.artifacts.bucket
        mirror = Mirror(bucket, self._directory.path, told.job, told.claim, self._others)
        while not self._ended.wait(self._courier.every):
            try:
                mirror.update(self._stop)
            except Exception as error:  # the thread must live to send the result
                log.warning("could not mirror", job=told.job, problem=one_line(error))
        if self._killed.is_set():
            return
        outcome = self._directory.outcome()
        result = outcome.result if outcome is not None and self._code == 0 else None
        try:
            if result is None:
                mirror.update(self._stop)
                return
            Reporter(self._directory).progress(Progress(phase="uploading", percent=0.0))
            mirror.publish(result, self._stop)
        except Stopped:
            self._code = self._code or STOPPED
        except Exception as error:  # whatever it was, nothing counts as published that is not
            log.warning("could not send", job=told.job, problem=one_line(error))
            if result is not None:
                known = error if isinstance(error, TcnnError) else StorageError(f"the result: {one_line(error)}")
                again = known.again if isinstance(known, BucketError) else not isinstance(known, RequestError)
                self._code = self._failed(known, again)


def _run(work: Callable[[], None]) -> threading.Thread:
    """In a thread that no exit waits for."""
    thread = threading.Thread(target=work, name="courier", daemon=True)
    thread.start()
    return thread
