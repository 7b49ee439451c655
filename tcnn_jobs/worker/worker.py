"""The worker's loop: claims jobs, supervises a process for each, renews their leases. Never loads torch."""

import contextlib
import signal
import threading
import time
from functools import partial

import structlog

from tcnn.errors import EnvironmentFailure, RequestError
from tcnn_jobs.artifacts.base import Artifacts
from tcnn_jobs.artifacts.layout import Home
from tcnn_jobs.artifacts.local import LocalArtifacts
from tcnn_jobs.attempt import Listener
from tcnn_jobs.attempts.fitness import Fitness, Unfit, trouble
from tcnn_jobs.attempts.running import Attempt, Limits, Why, grace
from tcnn_jobs.attempts.starting import start
from tcnn_jobs.engines.base import Engine
from tcnn_jobs.errors import StoreUnavailable
from tcnn_jobs.housekeeping import coordination
from tcnn_jobs.housekeeping.coordination import Election
from tcnn_jobs.model.jobs import Claim, Failure, Hold, Job
from tcnn_jobs.retry import Cancel, Fail, HandBack, error_code
from tcnn_jobs.settings import QueueSettings
from tcnn_jobs.store import Store
from tcnn_jobs.worker.claims import Claims
from tcnn_jobs.worker.heartbeats import Heartbeats
from tcnn_jobs.worker.outcomes import Outcomes
from tcnn_jobs.worker.slots import gang
from tcnn_jobs.worker.waiting import Waiting

log = structlog.stdlib.get_logger("tcnn.worker")

TICK = 0.1
"""Seconds between two looks at the processes."""
MOST_FAILURES = 50
"""Steps in a row that may fail before the worker does."""
_KILLED = -int(signal.SIGKILL)


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
        self.outcomes = Outcomes(store, home, settings.retry_delay)
        self._drains = 0
        self.election = Election(store, name, settings.lease, late=settings.poll)
        self._heartbeats = Heartbeats(store, name, host, slots, settings.lease, self._break)
        self._free = list(slots)
        self._waiting = Waiting(store, name, settings.poll)
        self._claims = Claims(store, name, slots, self._waiting, settings.poll, settings.lease)
        self._fitness = Fitness(partial(trouble, home, self.artifacts), settings.poll, self.look)
        self._running: list[Attempt] = []
        self._ended: list[Attempt] = []
        self._due = dict.fromkeys(("beat", "claim", "count", "reap"), 0.0)
        self.fellows = 1
        """Workers at the queue, this one too."""
        self._away = False
        self._failures = 0
        self._told = threading.Event()

    @property
    def busy(self) -> int:
        """Number of jobs that the worker holds."""
        return len(self._waiting) + len(self._running) + len(self._ended)

    def drain(self) -> None:
        """Claim nothing more, let the jobs save what they have, and hand them back. Twice: without waiting.

        `run` notices within `TICK`. A signal handler, which may interrupt it anywhere, must not wake it by a lock.
        """
        self._drains += 1

    def look(self) -> None:
        """A job may be due: ask for it at once, if there is a slot for it. Any thread may call it."""
        self._due["claim"] = 0.0
        self._told.set()

    @property
    def draining(self) -> bool:
        """Whether the worker is draining."""
        return self._drains > 0

    def run(self, *, until_empty: bool = False) -> None:
        """Work until drained; or, if asked to, until there is nothing left to do. Raises `EnvironmentFailure` if it
        ends because this host can do no jobs."""
        while not (self.draining and not self.busy and not self._claims.in_doubt):
            claimed = self.step()
            if until_empty and not self.busy and not claimed and not self._away:
                break
            self._told.wait(min(TICK, self.settings.poll))
            self._told.clear()
        try:
            self.store.give_up(self.name)
            self.store.forget_worker(self.name)
        except StoreUnavailable:
            log.warning("left without a word: the database is away")
        if until_empty and self._fitness.problem:
            raise EnvironmentFailure(f"this host can do no jobs, and leaves those there are: {self._fitness.problem}")

    def step(self) -> bool:
        """Everything that is due, in an order in which nothing waits for anything. Returns whether a job was claimed.

        A store that does not answer costs nothing but time: processes go on, and what it has not heard is kept. An
        exception fails the attempt that it belongs to; one that belongs to none is logged, and raised if it stays.
        """
        claimed = False
        try:
            self._collect()
            self._enforce()
            self._settle()
            poll, lease = self.settings.poll, self.settings.lease
            urgent = self.busy > 0 or self._away
            if self._is_due("beat", coordination.heartbeat(poll, self.fellows, lease, busy=urgent)):
                self._beat()
            if self._is_due("count", coordination.shared(poll, self.fellows)):
                self.fellows = self.store.count_workers()
            if self._is_due("reap", poll) and self.election.won():
                self._reap()
            able = not self.draining and not self._fitness.problem
            if able and self._waiting.left_over(self._free) and self._is_due("claim", poll):
                claimed = self._claims.take(self._free)
            self._start_waiting()
        except StoreUnavailable as error:
            if not self._away:
                log.error("the database is away; jobs go on", problem=str(error), held=self.busy)
                self._due["beat"] = 0.0  # the first change that it accepts shows that it is back
            self._away = True
        except Exception:
            self._failures += 1
            log.exception("a step failed", in_a_row=self._failures)
            if self._failures >= MOST_FAILURES:
                raise  # whoever supervises this process starts another
        else:
            self._failures = 0
        return claimed

    def _is_due(self, what: str, every: float) -> bool:
        now = time.monotonic()
        if now < self._due[what]:
            return False
        self._due[what] = now + coordination.spread(every)
        return True

    def _reap(self) -> None:
        for job in self.store.reap(self.settings.lease):
            self._due["claim"] = 0.0
            log.warning("its worker is silent", job=job.id, status=job.status, attempt=job.attempt)
            if job.terminal:  # or was: its owner may have resumed or deleted it while others were reaped
                self.outcomes.leave(job)

    def _start_waiting(self) -> None:
        """Start what was claimed. A job leaves the list only when it runs or the store knows why it does not."""
        for job in self._waiting:
            slots = gang(self._free, job.slots)
            to = self._waiting.elsewhere(job) if slots is None and not self.draining else None
            if slots is None and to is None and not self.draining:
                break  # all or none
            refusal = HandBack(to) if slots is None or self.draining else self._start(job, slots)
            if refusal is not None:
                self.outcomes.tell(job, Claim.of(job), refusal)
            self._waiting.remove(job)

    def _start(self, job: Job, slots: list[str | None]) -> Fail | HandBack | None:
        try:
            directory, process = start(
                job, slots, store=self.store, home=self.home, artifacts=self.artifacts, engine=self.engine
            )
        except StoreUnavailable:
            raise
        except RequestError as error:  # what the request refers to is gone
            return Fail(Failure(code=error_code(error), message=str(error)))
        except Exception as error:
            if problem := trouble(self.home):
                self._fitness.unfit(problem)
                return HandBack()
            return self.outcomes.unstarted(job, error)
        for slot in slots:
            self._free.remove(slot)
        claim, limits = Claim.of(job), Limits(job, time.monotonic(), self.settings.job_memory)
        self._running.append(Attempt(job, claim, slots, process, directory, Listener(directory), limits))
        self._due["beat"] = 0.0
        return None

    def _break(self, attempt: Attempt, error: Exception) -> None:
        """Something unexpected happened with an attempt: it ends, and no other is concerned."""
        log.error("an attempt is broken", job=attempt.job.id, claim=attempt.claim.number, exc_info=error)
        attempt.broken = attempt.broken or self.outcomes.internal(attempt.job, error)
        with contextlib.suppress(Exception):
            attempt.process.kill()

    def _collect(self) -> None:
        """Processes that have ended give their slots back at once, whatever the store is doing."""
        for attempt in list(self._running):
            try:
                attempt.listen()
                code = attempt.process.poll()
                if code is not None:
                    attempt.listen()
            except Unfit as unfit:
                self._fitness.unfit(str(unfit))
                attempt.broken, code = HandBack(), EnvironmentFailure.exit_code
            except Exception as error:
                self._break(attempt, error)
                code = _KILLED
            if code is not None:
                attempt.exit_code = code
                self._running.remove(attempt)
                self._free += attempt.slots
                self._ended.append(attempt)
                self._due["claim"] = 0.0
                log.info("process ended", job=attempt.job.id, exit_code=code, why=attempt.why)

    def _enforce(self) -> None:
        for attempt in self._running:
            try:
                if self.draining:
                    self._ask(attempt, Why.DRAINING)
                self._hold_to_limits(attempt)
                if attempt.kill_at is not None and time.monotonic() >= attempt.kill_at:
                    attempt.process.kill()
            except Exception as error:
                self._break(attempt, error)

    def _hold_to_limits(self, attempt: Attempt) -> None:
        breach = None if attempt.why is not None else attempt.limits.breach(time.monotonic(), attempt.process)
        if breach is None:
            return
        log.warning("ended", job=attempt.job.id, claim=attempt.claim.number, reason=breach.failure.code)
        attempt.breach = breach
        if breach.kill:
            attempt.why = Why.BREACH
            attempt.process.kill()
        else:
            self._ask(attempt, Why.BREACH)

    def _ask(self, attempt: Attempt, why: Why) -> None:
        """Ask a process to leave, and end it when it has not done so in time, which is set when it is first asked."""
        now = time.monotonic()
        if attempt.kill_at is None:
            attempt.process.terminate()
            attempt.why = attempt.why or why
            attempt.kill_at = now + grace(self.settings.grace, attempt.steps.longest(now))
        elif self._drains > 1:
            attempt.kill_at = now

    def _beat(self) -> None:
        attempts, waiting = [*self._running, *self._ended], list(self._waiting)
        holds = self._heartbeats.send(attempts, waiting, len(self._free))
        if self._away:  # only a change shows it: one that is full or read-only can still be read
            self._away = False
            log.info("the database is back")
        for job in waiting:
            if holds[Claim.of(job)] is not Hold.HELD:
                self._waiting.remove(job)
                self.outcomes.tell(job, Claim.of(job), Cancel())  # one that is lost will be left alone
        for attempt in attempts:
            hold = holds[attempt.claim]
            if hold is Hold.LOST:
                log.warning("lost to another worker", job=attempt.job.id, claim=attempt.claim.number)
                attempt.why = Why.LOST
                attempt.process.kill()
            elif hold is Hold.CANCEL and attempt in self._running:
                self._ask(attempt, Why.CANCELLED)
        self._claims.recover(holds)

    def _settle(self) -> None:
        """Tell the store of jobs that have ended: first that they began and the last of what they said, then how."""
        if any(attempt.events or attempt.progress or not attempt.told for attempt in self._ended):
            self._beat()
        for attempt in list(self._ended):
            self.outcomes.settle(attempt)
            self._ended.remove(attempt)
