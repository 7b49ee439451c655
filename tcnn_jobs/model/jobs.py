"""The data model of the queue: jobs, states, results, events. Times are seconds since 1970 by the database's clock."""

from enum import StrEnum
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field


class Kind(StrEnum):
    """The kinds of jobs."""

    TRANSFORM = "transform"
    FINETUNE = "finetune"
    EVALUATE = "evaluate"


class Making(StrEnum):
    """Whether a job has made a model, or will make one if it succeeds."""

    MADE = "made"
    EXPECTED = "expected"


class Status(StrEnum):
    """The states of a job."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


TERMINAL = frozenset({Status.SUCCEEDED, Status.FAILED, Status.CANCELLED})

TRANSITIONS: dict[Status, frozenset[Status]] = {
    # Failed: a job that it waits for has ended and made nothing.
    Status.QUEUED: frozenset({Status.RUNNING, Status.CANCELLED, Status.FAILED}),
    # Back to the queue: its worker died, was drained, or the attempt failed and may be repeated.
    Status.RUNNING: frozenset({Status.QUEUED, Status.SUCCEEDED, Status.FAILED, Status.CANCELLED}),
    Status.FAILED: frozenset({Status.QUEUED}),  # resumed by its owner
    Status.CANCELLED: frozenset({Status.QUEUED}),
    Status.SUCCEEDED: frozenset(),
}
"""The state machine: status → the statuses that may follow it. The store refuses every other transition."""


REQUEST_VERSION = 3
"""The newest requests that this code understands (`tcnn_jobs.model.requests.ADDED`); a worker leaves newer ones to
others. 0.2.0 understands 2: what comes after it is of version 3."""


class Model(BaseModel):
    """Base class: an immutable value with unknown fields refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Told(Model):
    """Base class of what job processes report: unknown fields, as a newer release writes them, are ignored."""

    model_config = ConfigDict(extra="ignore")


class Progress(Told):
    """Progress of a running job, as its process reports it.

    `percent` is of the whole phase, 0 to 100; `epoch` counts from 1; `top1` is a share, 0 to 1; `temperature` is τ.
    """

    phase: str
    epoch: int | None = None
    epochs: int | None = None
    step: int | None = None
    steps: int | None = None
    percent: float | None = None
    eta_seconds: float | None = None
    loss: float | None = None
    lr: float | None = None
    temperature: float | None = None
    images_per_second: float | None = None
    top1: float | None = None


class Artifact(Told):
    """A file that a job hands back. `path` is relative to the jobs' folder: `job_…/3/run/best.safetensors`."""

    name: str
    path: str
    size: int
    sha256: str


class Result(Told):
    """The result of a succeeded job. `checkpoint` is the model to use; `files` are all that can be downloaded."""

    checkpoint: Artifact | None = None
    files: tuple[Artifact, ...] = ()
    verification: dict[str, Any] | None = None
    metrics: dict[str, Any] | None = None
    notes: tuple[str, ...] = ()


class Failure(Told):
    """Why a job failed, in one line; `code` is the error's class name in snake case, such as `unknown_model`."""

    code: str
    message: str


class Job(Model):
    """A row of the queue.

    `number` orders jobs by submission. `attempt` counts the tries that can be used up (`max_attempts`); `claim` counts
    every time a worker took the job and never goes back, so it is what writes are fenced by.
    """

    id: str
    number: int
    owner: str
    kind: Kind
    status: Status
    request: dict[str, Any]
    priority: int = 0
    attempt: int = 0
    max_attempts: int = 3
    claim: int = 0
    worker: str | None = None
    created_at: float
    not_before: float
    started_at: float | None = None
    finished_at: float | None = None
    heartbeat_at: float | None = None
    cancel_requested: bool = False
    progress: Progress | None = None
    result: Result | None = None
    error: Failure | None = None
    webhook: str | None = None
    slots: int = 1
    """How many of one worker's slots it needs at once."""
    max_runtime: float | None = None
    """Seconds that it may run in all its attempts."""
    stall_minutes: float | None = None
    """Minutes for which it may say nothing new while it runs."""
    ran: float = 0.0
    """Seconds that its attempts before this one took, since it was submitted or resumed."""
    request_version: int = 1
    """What a worker must understand to take it."""
    name: str | None = None
    tags: tuple[str, ...] = ()
    note: str | None = None
    """What its owner calls it and says of it (`tcnn_jobs.model.naming`)."""
    queue_position: int | None = None
    """Jobs before this one, 0 when it is next; None unless it is queued."""
    waiting_for: str | None = None
    """Why a queued job does not start, wherever it stands in the queue."""

    @property
    def terminal(self) -> bool:
        """Whether nothing more will happen unless its owner resumes it."""
        return self.status in TERMINAL

    @property
    def checkpoint(self) -> Artifact | None:
        """The checkpoint of its result, if it has one."""
        return None if self.result is None else self.result.checkpoint

    @property
    def files(self) -> tuple[Artifact, ...]:
        """The files of its result; none before it has succeeded."""
        return () if self.result is None else self.result.files

    def file(self, name: str) -> Artifact | None:
        """The file of its result with this name, if there is one."""
        return next((file for file in self.files if file.name == name), None)


class NewJob(Model):
    """A job before it is queued; what the fields mean, `Job` says."""

    owner: str
    kind: Kind
    request: dict[str, Any]
    priority: int = Field(default=0, ge=-100, le=100)
    max_attempts: int = Field(default=3, ge=1, le=100)
    webhook: str | None = None
    slots: int = Field(default=1, ge=1)
    max_runtime: float | None = Field(default=None, gt=0)
    stall_minutes: float | None = Field(default=None, gt=0)
    request_version: int = Field(default=1, ge=1)
    name: str | None = None
    tags: tuple[str, ...] = ()
    note: str | None = None


class IdempotencyKey(NamedTuple):
    """An idempotency key: the tenant, the key it chose, and a digest of the body that the key was first used with."""

    owner: str
    key: str
    digest: str


class Claim(Model):
    """A worker's lease on a job. `number` is the fencing token: the store refuses writes of an older claim."""

    job: str
    worker: str
    number: int

    @classmethod
    def of(cls, job: Job) -> "Claim":
        """The one by which its worker holds a job."""
        return cls(job=job.id, worker=job.worker or "", number=job.claim)


class Event(Model):
    """Something that happened to a job. `seq` counts from 1 within the job, in the order of commits."""

    seq: int
    at: float
    kind: str
    data: dict[str, Any] = {}


class NewEvent(Model):
    """An event before the store has given it its number and time."""

    kind: str
    data: dict[str, Any] = {}


class Beat(Model):
    """A heartbeat: renews the lease on one job, and reports its progress and events."""

    claim: Claim
    ran: float | None = None
    """Seconds since its process started; None while there is none."""
    progress: Progress | None = None
    events: tuple[NewEvent, ...] = ()
    told: int | None = None
    """If the store may have the first of these events already, since an earlier call was not answered: how many of this
    claim's it had before them. None if it can have none."""


class Hold(StrEnum):
    """The answer to a heartbeat: the lease is held, the job is to be cancelled, or the lease was lost."""

    HELD = "held"
    CANCEL = "cancel"
    LOST = "lost"


class Upload(Model):
    """A data set or a checkpoint that was uploaded. `path` is relative to the home directory."""

    id: str
    owner: str
    kind: str
    name: str
    path: str
    size: int
    sha256: str
    created_at: float = 0.0
    details: dict[str, Any] = {}
    """Of a data set: classes, images, splits. Of a checkpoint: base_model and what its metadata says."""


class Delivery(Model):
    """A webhook call that is due: one try of the outbox."""

    id: str
    job: str
    url: str
    body: dict[str, Any]
    attempt: int
    tenant: str = ""
    secret: str | None = Field(default=None, repr=False)
    """The tenant's own; without one the service's signs."""
