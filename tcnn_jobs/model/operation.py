"""What operators see: workers with their liveness, tenants with their load, the queue in numbers, and the audit log.

Whoever takes a request says once who acts (`acting`), and the store writes a row of the audit log in the transaction of
each change that is made meanwhile, also in threads that are started for it. Workers act for nobody.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from pydantic import Field

from tcnn_jobs.model.jobs import Model


class WorkerInfo(Model):
    """A worker's registration."""

    name: str
    host: str
    slots: int
    version: str
    gpus: tuple[dict[str, Any], ...] = ()
    """For every GPU: index, name, and where it is known memory_used and memory_total in bytes."""
    lease: float = 60.0
    """Seconds after which its silence costs it its jobs."""
    heartbeat_at: float | None = None
    started_at: float | None = None
    """When it was first heard of."""
    request_version: int = 1
    """The newest requests that it understands."""
    widest: int | None = None
    """How many slots it can give to one job; None of a worker of 0.2.0 or before: as many as it has."""

    @property
    def largest_job(self) -> int:
        """Slots of the largest job that it can run."""
        return self.slots if self.widest is None else self.widest


class WorkerState(Model):
    """A worker with its liveness and load, as the store sees it."""

    info: WorkerInfo
    busy: int
    """Slots that its running jobs take."""
    waiting: int = 0
    """Jobs that it has taken and that wait until enough of its slots are free."""
    present: bool
    """Whether it was heard of lately: within its lease, or a minute if that is longer."""
    keeps_house: bool = False
    """Whether it is the elected housekeeper: expired leases, webhooks, retention."""


class TenantLoad(Model):
    """A tenant's jobs in the queue and bytes in the store of results."""

    tenant: str
    queued: int = 0
    blocked: int = 0
    """Of these those that wait for other jobs."""
    running: int = 0
    slots: int = 0
    """That its running jobs take."""
    oldest_seconds: float | None = None
    """For which the oldest job waits that could start, or that is to be tried again."""
    stored: int = 0
    """Bytes of its uploads and results."""


class EndedHour(Model):
    """Jobs that ended within one hour."""

    hours_ago: int
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0


class Statistics(Model):
    """The queue in numbers, for Prometheus. Seconds are ages and sums."""

    queued: dict[str, int] = Field(default_factory=dict)
    """Those that could start, or wait for their next attempt."""
    blocked: dict[str, int] = Field(default_factory=dict)
    """Those that wait for other jobs."""
    held: dict[str, int] = Field(default_factory=dict)
    """Those of `queued` that a quota of their tenant holds back; the age of the oldest leaves them out."""
    running: dict[str, int] = Field(default_factory=dict)
    oldest_queued_seconds: float = 0.0
    finished: dict[str, dict[str, tuple[int, float]]] = Field(default_factory=dict)
    """kind → outcome → (jobs, seconds that they ran), since the store was made; deleted jobs stay counted."""
    workers: tuple[WorkerInfo, ...] = ()
    """Those that have been heard of in the last hour; `heartbeat_at` is here the age in seconds."""
    slots: dict[str, tuple[int, int, int]] = Field(default_factory=dict)
    """Of the workers that are present: worker → (slots, slots that its running jobs take, jobs that wait for slots)."""


class Actor(Model):
    """The author of changes: tenant, id or place of the key, never its secret, and the request's id."""

    tenant: str
    key: str
    request: str = ""


class AuditEntry(Model):
    """A row of the audit log. `tenant` is whose thing was changed, `by` who did it, with which key and request."""

    number: int
    at: float
    action: str
    resource: str
    tenant: str
    by: str
    key: str
    request: str
    details: dict[str, Any]


_actor: ContextVar[Actor | None] = ContextVar("actor", default=None)


@contextmanager
def acting(actor: Actor) -> Iterator[None]:
    """Context in which the audit log names this actor as the author of every change."""
    token = _actor.set(actor)
    try:
        yield
    finally:
        _actor.reset(token)


def actor() -> Actor | None:
    """The current actor, or None."""
    return _actor.get()
