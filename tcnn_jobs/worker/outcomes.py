"""Report the outcomes of attempts to the store, and remove files that are no longer needed."""

import structlog

from tcnn.errors import RequestError, one_line
from tcnn_jobs.artifacts.layout import Home
from tcnn_jobs.attempts.running import Attempt, Why
from tcnn_jobs.errors import LostClaim, StoreUnavailable
from tcnn_jobs.housekeeping import janitor
from tcnn_jobs.model.jobs import Claim, Failure, Job
from tcnn_jobs.retry import Cancel, Decision, Fail, Finish, backoff, decide, internal
from tcnn_jobs.store import Store

log = structlog.stdlib.get_logger("tcnn.worker")


class Outcomes:
    """Every method raises `StoreUnavailable` and may be called again then; nothing else leaves it.

    Args:
        delay: seconds before a second attempt.
    """

    def __init__(self, store: Store, home: Home, delay: float) -> None:
        self._store, self._home, self._delay = store, home, delay

    def internal(self, job: Job, error: Exception) -> Fail:
        """What to tell the store of an attempt that its worker failed with: a retry, or a final failure."""
        return internal(error, job.attempt, job.max_attempts, self._delay)

    def unstarted(self, job: Job, error: Exception) -> Fail:
        """The same of an attempt whose process could not be started, though nothing is wrong with this host's home."""
        if not isinstance(error, OSError):
            log.error("cannot start", job=job.id, claim=job.claim, exc_info=error)
            return self.internal(job, error)
        delay = backoff(job.attempt, self._delay) if job.attempt < job.max_attempts else None
        message = f"the job's process could not be started: {one_line(error)}"
        return Fail(Failure(code="environment", message=message), delay)

    def settle(self, attempt: Attempt) -> None:
        """Handle the end of an attempt's process: decide its outcome and report it."""
        if attempt.why is Why.LOST:
            self.leave(attempt.job)
            return
        try:
            decision = self._decide(attempt)
        except Exception as error:
            log.exception("cannot be judged", job=attempt.job.id, claim=attempt.claim.number)
            decision = self.internal(attempt.job, error)
        self.tell(attempt.job, attempt.claim, decision)

    def _decide(self, attempt: Attempt) -> Decision:
        if attempt.broken is not None and attempt.why is None:
            return attempt.broken
        return decide(
            attempt.exit_code or 0,
            attempt.directory.outcome(),
            cancelling=attempt.why is Why.CANCELLED,
            draining=attempt.why is Why.DRAINING,
            breach=attempt.breach,
            starved=attempt.starved,
            attempt=attempt.job.attempt,
            max_attempts=attempt.job.max_attempts,
            delay=self._delay,
            last_words=attempt.directory.last_words(),
        )

    def tell(self, job: Job, claim: Claim, decision: Decision) -> None:
        """Tell the store how an attempt has ended. What it cannot be told is left to the lease."""
        try:
            after = self._write(claim, decision)
        except LostClaim:
            log.warning("lost to another worker", job=job.id, claim=claim.number)
            self.leave(job)
            return
        except StoreUnavailable:
            raise
        except Exception as error:
            log.exception("cannot be told", job=job.id, claim=claim.number)
            try:
                after = self._write(claim, self.internal(job, error))
            except StoreUnavailable:
                raise
            except Exception:
                log.exception("left to its lease", job=job.id, claim=claim.number)
                return
        log.info("told", job=job.id, status=after.status, decision=type(decision).__name__.lower())
        self.clean(after)

    def _write(self, claim: Claim, decision: Decision) -> Job:
        if isinstance(decision, Finish):
            return self._store.finish(claim, decision.result)
        if isinstance(decision, Fail):
            return self._store.fail(claim, decision.failure, decision.retry_after)
        if isinstance(decision, Cancel):
            return self._store.cancelled(claim)
        return self._store.hand_back(claim, decision.to)

    def leave(self, job: Job) -> None:
        """Of a job that somebody else has or had: if it has ended there, nobody can need what was written here."""
        try:
            self.clean(self._store.get(job.id))
        except RequestError:  # deleted
            janitor.remove_job(self._home, job.id)

    def clean(self, job: Job) -> None:
        """What `janitor.clean` does; it is done at the next sweep if it cannot be done now."""
        try:
            janitor.clean(self._home, job)
        except Exception:
            log.exception("cannot clean up; the next sweep will", job=job.id)
