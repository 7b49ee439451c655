"""Response models. Times are ISO 8601 in UTC; URLs are relative to the server's root."""

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Literal, Self

from pydantic import BaseModel, Field, computed_field

from tcnn.zoo.catalogue import Entry, registered_name
from tcnn_jobs.model.columns import metrics_of
from tcnn_jobs.model.jobs import Artifact, Event, Failure, Job, Kind, Progress, Status

JOB = "job_0123456789abcdef01234567"
SHA256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"


class FileView(BaseModel):
    """A file of a job's result."""

    name: str
    url: str
    size: int = Field(description="Size in bytes.")
    sha256: str


class CheckpointView(BaseModel):
    """The checkpoint to use."""

    url: str
    size: int = Field(description="Size in bytes.")
    sha256: str


class ResultView(BaseModel):
    """Result of a succeeded job."""

    checkpoint: CheckpointView | None = None
    files: list[FileView] = []
    verification: dict[str, Any] | None = None
    metrics: dict[str, Any] | None = None
    notes: list[str] = []


class JobLine(BaseModel):
    """A job without its result, as in lists."""

    id: str
    tenant: str = Field(description="Tenant that owns the job.")
    kind: Kind
    name: str | None = Field(description="Name of the job.")
    tags: list[str]
    note: str | None
    status: Status
    created_at: str
    started_at: str | None = None
    finished_at: str | None = None
    attempt: int = Field(description="Number of the current or last attempt; 0 before the first.")
    max_attempts: int
    max_runtime: float | None = Field(default=None, description="Time limit in seconds over all attempts.")
    stall_minutes: float | None = Field(
        default=None, description="Minutes without any progress after which the process is killed."
    )
    priority: int
    queue_position: int | None = Field(
        default=None, description="Number of jobs that start before this one; null unless the job is queued."
    )
    waiting_for: str | None = Field(default=None, description="Why a queued job does not start yet.")
    retry_at: str | None = Field(default=None, description="Earliest time of the next attempt of a queued job.")
    cancel_requested: bool
    progress: Progress | None = None
    request: dict[str, Any] = Field(description="The request that was submitted.")
    metrics: dict[str, float] = Field(
        description="Numbers of the result by short names, such as `accuracy`; jobs can be sorted by them "
        "(`metrics.accuracy`)."
    )
    error: Failure | None = None

    @classmethod
    def of(cls, job: Job) -> Self:
        """As its owner sees it."""
        own = job.model_dump(
            include={
                "id", "kind", "status", "attempt", "max_attempts", "max_runtime", "stall_minutes", "priority",
                "queue_position", "waiting_for", "name", "tags", "note",
            }
        )  # fmt: skip
        return cls(
            **own,
            tenant=job.owner,
            created_at=iso(job.created_at),
            started_at=iso(job.started_at),
            finished_at=iso(job.finished_at),
            retry_at=iso(job.not_before) if job.attempt and job.queue_position is not None else None,
            cancel_requested=job.cancel_requested,
            progress=job.progress,
            request=job.request,
            metrics=metrics_of(job.result.metrics) if job.result else {},
            error=job.error,
            **cls._more(job),
        )

    @classmethod
    def _more(cls, job: Job) -> dict[str, Any]:
        return {}


class JobView(JobLine):
    """A job."""

    result: ResultView | None = None

    @classmethod
    def _more(cls, job: Job) -> dict[str, Any]:
        return {"result": _result(job)}


def _result(job: Job) -> ResultView | None:
    result = job.result
    if result is None:
        return None
    main = result.checkpoint
    url = f"/jobs/{job.id}/checkpoint"
    return ResultView(
        checkpoint=None if main is None else CheckpointView(url=url, size=main.size, sha256=main.sha256),
        files=files(job),
        verification=result.verification,
        metrics=result.metrics,
        notes=list(result.notes),
    )


def files(job: Job) -> list[FileView]:
    """Everything of a job that can be downloaded."""
    return [
        FileView(name=file.name, url=f"/jobs/{job.id}/files/{file.name}", size=file.size, sha256=file.sha256)
        for file in job.files
    ]


class EventView(BaseModel):
    """Something that happened to a job."""

    seq: int = Field(description="Sequence number within the job, from 1.")
    at: str
    kind: str
    data: dict[str, Any]

    @classmethod
    def of(cls, event: Event) -> "EventView":
        """As the job's owner sees it."""
        return cls(seq=event.seq, at=iso(event.at), kind=event.kind, data=event.data)


class ModelView(Entry):
    """A timm model: the effect of converting it, or why it cannot be converted."""

    @computed_field(description="timm's name of the converted model.")  # type: ignore[prop-decorator]
    @property
    def registered_as(self) -> str | None:
        """As the catalogue's, but told."""
        return registered_name(self.name) if self.convertible else None


NEXT = "Pass it as `after` for the next page, in the same order; null on the last page."
AFTER = "`next` of the previous page, which remains valid if its last entry is deleted; or the id of an entry."


class Page(BaseModel):
    """A page of a list."""

    object: Literal["list"] = "list"
    has_more: bool


class Continued(Page):
    """A page of a list; pass `next` as `after` for the next page."""

    next: str | None = Field(description=NEXT)


class JobList(Continued):
    """Jobs, newest first."""

    data: list[JobView]


class JobLines(BaseModel):
    """A page of the list of jobs, and the jobs that have changed."""

    order: list[str] = Field(description="Ids of the page's jobs, newest first.")
    changed: list[JobLine] = Field(description="Jobs that are new or have changed.")
    has_more: bool
    next: str | None = Field(description=NEXT)


class EventList(Page):
    """Events, oldest first."""

    data: list[EventView]


class FileList(Page):
    """Files of a job."""

    data: list[FileView]


class ModelList(Page):
    """Models, sorted by name."""

    data: list[ModelView]


class Health(BaseModel):
    """The server is alive."""

    status: Literal["ok"] = "ok"
    version: str


class Readiness(BaseModel):
    """The server is ready."""

    status: Literal["ready"] = "ready"
    free_bytes: int = Field(description="Free space on the disk of TCNN_HOME.")


def iso(seconds: float | None) -> Any:
    """`2026-11-21T12:00:00.123Z`, or None."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def download_name(job: Job, file: Artifact) -> str:
    """What a browser saves a job's checkpoint as: `t_resnet50d.safetensors` where the model is known by name."""
    model = str(job.request.get("model") or "")
    name = registered_name(model.rpartition("/")[2].partition(".")[0]) if model else job.id
    return safe_name(f"{name}{re.sub(r'^[^.]*', '', file.name) or '.safetensors'}")


def file_name(job: Job, name: str) -> str:
    """What a browser saves one of several files of a job as: `resnet50d-4f2a1c-best.safetensors`."""
    model = str(job.request.get("model") or job.kind).rpartition("/")[2].partition(".")[0]
    return safe_name(f"{model[:60]}-{job.id.removeprefix('job_')[:6]}-{name}")


def safe_name(name: str) -> str:
    """A file name of letters, digits, points, dashes and underlines."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name).lstrip(".") or "file"


def page_of(items: Iterable[Any], more: bool) -> dict[str, Any]:
    """The envelope of a list."""
    return {"data": list(items), "has_more": more}


def continued(items: Iterable[Any], following: str | None) -> dict[str, Any]:
    """The envelope of a list that goes on at a place which the store has told."""
    return page_of(items, following is not None) | {"next": following}
