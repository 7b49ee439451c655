"""Heartbeats: a worker's claims are renewed, and the store hears what their jobs have said since the last one.

They also say the worker's version: workers that share a queue are alike, or for the time of an upgrade of two releases.
"""

from collections.abc import Callable, Sequence
from functools import cache
from importlib.metadata import version

import structlog

from tcnn.errors import EnvironmentFailure
from tcnn.version import __version__
from tcnn_jobs.attempts.running import Attempt
from tcnn_jobs.errors import StoreUnavailable
from tcnn_jobs.model.jobs import REQUEST_VERSION, Beat, Claim, Hold, Job, NewEvent, Progress
from tcnn_jobs.model.operation import WorkerInfo
from tcnn_jobs.store import Store
from tcnn_jobs.worker.slots import gpu_memory, widest

log = structlog.stdlib.get_logger("tcnn.worker")


@cache  # every heartbeat says it, and it is read from a file
def own() -> str:
    """What has to be the same everywhere for a job to go on to the last bit; what torch was built for need not be."""
    return f"tcnn {__version__}, torch {version('torch').partition('+')[0]}"


def check_fellows(store: Store) -> None:
    """Raise `EnvironmentFailure` if workers were heard of lately that are more than one release apart from this one.

    Of others with other versions the log is told: a job may go from one to the other.
    """
    fellows = store.versions()
    apart = sorted(name for name, requests in fellows.items() if abs(requests - REQUEST_VERSION) > 1)
    if apart:
        raise EnvironmentFailure(
            f"this worker has {own()}, but workers with {' and '.join(apart)} are at this queue, more than one release "
            "apart; install the same here, or stop those and wait for their TCNN_LEASE"
        )
    others = sorted(set(fellows) - {own()})
    if others:
        log.warning("workers of other versions are at this queue; bring all of them to one", own=own(), others=others)


class Heartbeats:
    """Those of one worker, and what of its jobs the store has heard already.

    Args:
        slots: the worker's slots, free or not. lease: its lease, in seconds.
        broken: called with an attempt of which the store cannot be told, and the reason.
    """

    def __init__(
        self,
        store: Store,
        name: str,
        host: str,
        slots: Sequence[str | None],
        lease: float,
        broken: Callable[[Attempt, Exception], None],
    ) -> None:
        self._store, self._name, self._host, self._broken = store, name, host, broken
        self._size, self._widest, self._lease = len(slots), widest(slots), lease
        self._told: dict[Claim, int] = {}
        """How many events of each claim the store is known to have."""
        self._unsure = False
        """Whether it may have more: the last call was not answered."""
        self._reasons: dict[Claim, NewEvent] = {}
        """Why jobs wait, as that call said."""

    def send(self, attempts: Sequence[Attempt], waiting: Sequence[Job], free: int) -> dict[Claim, Hold]:
        """Renew the claims of attempts, and of jobs that wait for slots while so many are `free`; returns what each is.

        What an attempt has said is told once: it is forgotten as soon as the store has it.
        """
        for attempt in attempts:
            if attempt.claim in self._reasons:  # it has started since
                attempt.events.insert(0, self._reasons.pop(attempt.claim))
        beats = {attempt.claim: attempt.beat for attempt in attempts}
        beats |= {beat.claim: beat for beat in (self._waits(job, free) for job in waiting)}
        if self._unsure:
            beats = {claim: beat.model_copy(update={"told": self._of(claim)}) for claim, beat in beats.items()}
        self._unsure = True
        holds = self._renew(attempts, beats)
        self._told = {claim: self._of(claim) + len(beat.events) for claim, beat in beats.items()}
        self._unsure, self._reasons = False, {}
        for attempt in attempts:
            beat = beats[attempt.claim]
            attempt.progress = None if attempt.progress is beat.progress else attempt.progress
            del attempt.events[: len(beat.events)]
            attempt.told = True
        return holds

    def _of(self, claim: Claim) -> int:
        return self._told.get(claim, 0)

    def _renew(self, attempts: Sequence[Attempt], beats: dict[Claim, Beat]) -> dict[Claim, Hold]:
        """All in one transaction; if that is impossible, each by itself, to find the one that cannot be told."""
        info = WorkerInfo(
            name=self._name, host=self._host, slots=self._size, version=own(), gpus=gpu_memory(),
            lease=self._lease, request_version=REQUEST_VERSION, widest=self._widest,
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
                holds |= self._store.heartbeat(info, [Beat(claim=claim, ran=beat.ran)])
        return holds

    def _waits(self, job: Job, free: int) -> Beat:
        """What is told of a job that was claimed and does not run yet; why, once."""
        claim = Claim.of(job)
        why = f"needs {job.slots} slots at once, {free} of {self._size} are free; no other job is started here"
        told = NewEvent(kind="message", data={"text": why})
        events = () if self._of(claim) else (self._reasons.setdefault(claim, told),)
        return Beat(claim=claim, progress=Progress(phase="waiting"), events=events)
