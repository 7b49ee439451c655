"""Heartbeats: a worker's claims are renewed, and the store hears what their jobs have said since the last one."""

from collections.abc import Callable, Sequence

import structlog

from tcnn_jobs.attempts.held import Attempt
from tcnn_jobs.errors import StoreUnavailable
from tcnn_jobs.model.jobs import REQUEST_VERSION, Beat, Claim, Hold, Job, NewEvent, Progress
from tcnn_jobs.model.monitoring import WorkerInfo
from tcnn_jobs.store import Store
from tcnn_jobs.worker import versions
from tcnn_jobs.worker.slots import gpu_memory

log = structlog.stdlib.get_logger("tcnn.worker")


class Heartbeats:
    """Those of one worker, and what of its jobs the store has heard already.

    Args:
        size: the worker's slots, free or not. lease: its lease, in seconds.
        broken: called with an attempt of which the store cannot be told, and the reason.
    """

    def __init__(
        self, store: Store, name: str, host: str, size: int, lease: float, broken: Callable[[Attempt, Exception], None]
    ) -> None:
        self._store, self._name, self._host, self._size, self._broken = store, name, host, size, broken
        self._lease = lease
        self._explained: set[Claim] = set()
        """Claims whose waiting was explained."""

    def send(self, attempts: Sequence[Attempt], waiting: Sequence[Job], free: int) -> dict[Claim, Hold]:
        """Renew the claims of attempts, and of jobs that wait for slots while so many are `free`; returns what each is.

        What an attempt has said is told once: it is forgotten as soon as the store has it.
        """
        told = {attempt.claim: (attempt.progress, len(attempt.events)) for attempt in attempts}
        beats = {attempt.claim: attempt.beat for attempt in attempts}
        beats |= {beat.claim: beat for beat in (self._waits(job, free) for job in waiting)}
        holds = self._renew(attempts, beats)
        self._explained = {self.claim_of(job) for job in waiting}
        for attempt in attempts:
            progress, events = told[attempt.claim]
            attempt.progress = None if attempt.progress is progress else attempt.progress
            del attempt.events[:events]
        return holds

    def claim_of(self, job: Job) -> Claim:
        """The worker's claim on a job that it has been given."""
        return Claim(job=job.id, worker=self._name, number=job.claim)

    def _renew(self, attempts: Sequence[Attempt], beats: dict[Claim, Beat]) -> dict[Claim, Hold]:
        """All in one transaction; if that is impossible, each by itself, to find the one that cannot be told."""
        info = WorkerInfo(
            name=self._name, host=self._host, slots=self._size, version=versions.own(), gpus=gpu_memory(),
            lease=self._lease, request_version=REQUEST_VERSION,
        )  # fmt: skip
        try:
            return self._store.heartbeat(info, list(beats.values()))
        except StoreUnavailable:
            raise
        except Exception:
            log.exception("a heartbeat failed; each attempt is told by itself")
        holds: dict[Claim, Hold] = {}
        for claim, beat in beats.items():
            try:
                holds |= self._store.heartbeat(info, [beat])
            except StoreUnavailable:
                raise
            except Exception as error:
                for attempt in attempts:
                    if attempt.claim == claim:
                        self._broken(attempt, error)
                holds |= self._store.heartbeat(info, [Beat(claim=claim)])
        return holds

    def _waits(self, job: Job, free: int) -> Beat:
        """What is told of a job that was claimed and does not run yet; why, once."""
        claim = self.claim_of(job)
        why = f"needs {job.slots} slots at once, {free} of {self._size} are free; no other job is started here"
        events = () if claim in self._explained else (NewEvent(kind="message", data={"text": why}),)
        return Beat(claim=claim, progress=Progress(phase="waiting"), events=events)
