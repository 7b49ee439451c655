"""A worker: claims jobs, runs each in a process of its own, and tells the store how it goes. Never loads torch."""

import threading
import time

import structlog

from tcnn.errors import RequestError, one_line
from tcnn_jobs.artifacts.base import Artifacts
from tcnn_jobs.artifacts.local import LocalArtifacts
from tcnn_jobs.attempt import Assignment, AttemptDirectory, Listener
from tcnn_jobs.engines.base import Engine
from tcnn_jobs.errors import LostClaim, StoreUnavailable
from tcnn_jobs.home import Home
from tcnn_jobs.model import Beat, Claim, Failure, Hold, Job, NewEvent, Progress, WorkerInfo
from tcnn_jobs.requests import num_workers
from tcnn_jobs.retry import Cancel, Decision, Fail, Finish, HandBack, backoff, decide, error_code
from tcnn_jobs.settings import QueueSettings
from tcnn_jobs.store import Store
from tcnn_jobs.worker import gpus, janitor, pace, versions
from tcnn_jobs.worker.attempts import resumable
from tcnn_jobs.worker.gangs import gang, widest
from tcnn_jobs.worker.held import Attempt, Why
from tcnn_jobs.worker.references import resolve

log = structlog.stdlib.get_logger("tcnn.worker")

TICK = 0.1
"""Seconds between two looks at the processes."""


class Worker:
    """One worker on one host. `step` it from the main thread; `drain` may be called from a signal handler.

    Args:
        name: unlike any other worker's, ever: claims are fenced by it.
        slots: how many jobs at once, and each one's GPU; None is a job on the CPU. A wide job takes several.
        artifacts: where uploads and other jobs' results lie; default the home.
    """

    def __init__(
        self,
        store: Store,
        home: Home,
        engine: Engine,
        settings: QueueSettings,
        *,
        name: str,
        host: str,
        slots: list[str | None],
        artifacts: Artifacts | None = None,
    ) -> None:
        self.store, self.home, self.engine, self.settings = store, home, engine, settings
        self.name, self.host = name, host
        self.artifacts = artifacts or LocalArtifacts(home)
        self._drains = 0
        self._size, self._widest, self._free = len(slots), widest(slots), list(slots)
        self._waiting: list[Job] = []
        self._explained: set[Claim] = set()
        self._running: list[Attempt] = []
        self._ended: list[Attempt] = []
        self._due = dict.fromkeys(("beat", "claim", "reap"), 0.0)
        self._fellows = 1
        self._away = False
        self._told = threading.Event()

    @property
    def busy(self) -> int:
        """Jobs that it holds."""
        return len(self._waiting) + len(self._running) + len(self._ended)

    def drain(self) -> None:
        """Claim nothing more, let the jobs save what they have, and hand them back. Twice: without waiting."""
        self._drains += 1
        self._told.set()

    @property
    def draining(self) -> bool:
        """Whether it is about to leave."""
        return self._drains > 0

    def run(self, *, until_empty: bool = False) -> None:
        """Work until drained; or, if asked to, until there is nothing left to do."""
        while not (self.draining and not self.busy):
            claimed = self.step()
            if until_empty and not self.busy and not claimed and not self._away:
                break
            self._told.wait(min(TICK, self.settings.poll))
            self._told.clear()
        try:
            self.store.forget_worker(self.name)
        except StoreUnavailable:
            log.warning("left without a word: the database is away")

    def step(self) -> bool:
        """Everything that is due, in an order in which nothing waits for anything. Returns whether a job was claimed.

        A store that does not answer costs nothing but time: processes go on, and what it has not heard is kept.
        """
        self._collect()
        self._enforce()
        claimed = False
        try:
            self._settle()
            poll, lease = self.settings.poll, self.settings.lease
            if self._is_due("beat", pace.heartbeat(poll, self._fellows, lease, busy=self.busy > 0)):
                self._beat()
            if self._is_due("reap", pace.shared(poll, self._fellows)):
                self._reap()
            if not self.draining and self._unpromised > 0 and self._is_due("claim", poll):
                claimed = self._claim()
            self._start_waiting()
        except StoreUnavailable as error:
            if not self._away:
                log.error("the database is away; jobs go on", problem=str(error), held=self.busy)
            self._away = True
        else:
            if self._away:
                log.info("the database is back")
            self._away = False
        return claimed

    def _is_due(self, what: str, every: float) -> bool:
        now = time.monotonic()
        if now < self._due[what]:
            return False
        self._due[what] = now + pace.spread(every)
        return True

    def _reap(self) -> None:
        self._fellows = self.store.count_workers()
        for job in self.store.reap(self.settings.lease):
            self._due["claim"] = 0.0
            log.warning("its worker is silent", job=job.id, status=job.status, attempt=job.attempt)
            janitor.clean(self.home, job)

    def _claim(self) -> bool:
        """As many jobs as there are slots for. One that needs more than are free is claimed, too, and then no other
        until it has them: narrow jobs would never leave it enough."""
        before = len(self._waiting)
        while self._unpromised > 0 and (job := self.store.claim(self.name, slots=self._widest)) is not None:
            log.info("claimed", job=job.id, kind=job.kind, attempt=job.attempt, claim=job.claim)
            self._waiting.append(job)
        return len(self._waiting) > before

    @property
    def _unpromised(self) -> int:
        """Free slots that no waiting job is to get."""
        return len(self._free) - sum(job.slots for job in self._waiting)

    def _start_waiting(self) -> None:
        """Start what was claimed. A job leaves the list only when it runs or the store knows why it does not."""
        while self._waiting:
            job = self._waiting[0]
            slots = gang(self._free, job.slots)
            if slots is None and not self.draining:
                break  # all or none
            refusal = HandBack() if slots is None or self.draining else self._start(job, slots)
            if refusal is not None:
                self._tell(job, self._claim_of(job), refusal)
            del self._waiting[0]

    def _claim_of(self, job: Job) -> Claim:
        return Claim(job=job.id, worker=self.name, number=job.claim)

    def _start(self, job: Job, slots: list[str | None]) -> Fail | None:
        directory = AttemptDirectory(self.home.attempt(job.id, job.claim))
        try:
            places = resolve(job, self.store, self.artifacts)
            paths = {field: place.path for field, place in places.items()}
            directory.create()
            previous = resumable(self.home, job.id, job.claim)
            if previous is not None:
                paths["previous"] = str(previous.path)
            told = self.store.count_events(job.id, "epoch")
            needs = tuple(place for place in places.values() if place.key)
            assignment = Assignment(
                job=job.id, claim=job.claim, kind=job.kind, request=job.request, paths=paths, needs=needs,
                epochs_told=told, placement=self.engine.placement(num_workers(job.request)),
            )  # fmt: skip
            directory.write(assignment)
            process = self.engine.start(directory.path, [slot for slot in slots if slot is not None])
        except RequestError as error:  # what the request refers to is gone
            return Fail(Failure(code=error_code(error), message=str(error)))
        except OSError as error:
            delay = backoff(job.attempt, self.settings.retry_delay) if job.attempt < job.max_attempts else None
            message = f"the job's process could not be started: {one_line(error)}"
            return Fail(Failure(code="environment", message=message), delay)
        for slot in slots:
            self._free.remove(slot)
        self._running.append(Attempt(job, self._claim_of(job), slots, process, directory, Listener(directory)))
        self._due["beat"] = 0.0
        return None

    def _collect(self) -> None:
        """Processes that have ended give their slots back at once, whatever the store is doing."""
        for attempt in list(self._running):
            attempt.listen()
            code = attempt.process.poll()
            if code is not None:
                attempt.exit_code = code
                attempt.listen()
                self._running.remove(attempt)
                self._free += attempt.slots
                self._ended.append(attempt)
                self._due["claim"] = 0.0
                log.info("process ended", job=attempt.job.id, exit_code=code, why=attempt.why)

    def _enforce(self) -> None:
        for attempt in self._running:
            if self.draining:
                self._ask(attempt, Why.DRAINING, self.settings.grace if self._drains == 1 else 0.0)
            if attempt.kill_at is not None and time.monotonic() >= attempt.kill_at:
                attempt.process.kill()

    def _ask(self, attempt: Attempt, why: Why, grace: float) -> None:
        """Ask a process to leave, and end it when it has not done so in time."""
        if attempt.why is None:
            attempt.process.terminate()
        attempt.why = attempt.why or why
        attempt.kill_at = min(attempt.kill_at or float("inf"), time.monotonic() + grace)

    def _beat(self) -> None:
        attempts = [*self._running, *self._ended]
        sent = {attempt.claim: (attempt.progress, len(attempt.events)) for attempt in attempts}
        info = WorkerInfo(name=self.name, host=self.host, slots=self._size, version=versions.own(), gpus=gpus.memory())
        waiting = list(self._waiting)
        holds = self.store.heartbeat(info, [*(attempt.beat for attempt in attempts), *map(self._waits, waiting)])
        self._explained = {self._claim_of(job) for job in waiting}
        for job in waiting:
            if holds[self._claim_of(job)] is not Hold.HELD:
                self._waiting.remove(job)
                self._tell(job, self._claim_of(job), Cancel())  # one that is lost will be left alone
        for attempt in attempts:
            progress, events = sent[attempt.claim]
            attempt.progress = None if attempt.progress is progress else attempt.progress
            del attempt.events[:events]
            hold = holds[attempt.claim]
            if hold is Hold.LOST:
                log.warning("lost to another worker", job=attempt.job.id, claim=attempt.claim.number)
                attempt.why = Why.LOST
                attempt.process.kill()
            elif hold is Hold.CANCEL and attempt in self._running:
                self._ask(attempt, Why.CANCELLED, self.settings.grace)

    def _waits(self, job: Job) -> Beat:
        """What is told of a job that was claimed and does not run yet; why, once."""
        why = (
            f"needs {job.slots} slots at once, {len(self._free)} of {self._size} are free; no other job is started here"
        )
        events = () if self._claim_of(job) in self._explained else (NewEvent(kind="message", data={"text": why}),)
        return Beat(claim=self._claim_of(job), progress=Progress(phase="waiting"), events=events)

    def _settle(self) -> None:
        """Tell the store of jobs that have ended: first the last of what they said, then how."""
        if any(attempt.events or attempt.progress for attempt in self._ended):
            self._beat()
        for attempt in list(self._ended):
            if attempt.why is Why.LOST:
                self._leave(attempt.job)
            else:
                self._tell(attempt.job, attempt.claim, self._decide(attempt))
            self._ended.remove(attempt)

    def _decide(self, attempt: Attempt) -> Decision:
        return decide(
            attempt.exit_code or 0,
            attempt.directory.outcome(),
            cancelling=attempt.why is Why.CANCELLED,
            draining=attempt.why is Why.DRAINING,
            attempt=attempt.job.attempt,
            max_attempts=attempt.job.max_attempts,
            delay=self.settings.retry_delay,
            last_words=attempt.directory.last_words(),
        )

    def _tell(self, job: Job, claim: Claim, decision: Decision) -> None:
        try:
            if isinstance(decision, Finish):
                after = self.store.finish(claim, decision.result)
            elif isinstance(decision, Fail):
                after = self.store.fail(claim, decision.failure, decision.retry_after)
            elif isinstance(decision, Cancel):
                after = self.store.cancelled(claim)
            else:
                after = self.store.hand_back(claim)
        except LostClaim:
            log.warning("lost to another worker", job=job.id, claim=claim.number)
            self._leave(job)
            return
        log.info("told", job=job.id, status=after.status, decision=type(decision).__name__.lower())
        janitor.clean(self.home, after)

    def _leave(self, job: Job) -> None:
        """Of a job that somebody else has: if it has ended there, nobody can need what this worker wrote."""
        try:
            janitor.clean(self.home, self.store.get(job.id))
        except RequestError:  # deleted
            janitor.remove_job(self.home, job.id)
