"""`GET /workers`: the workers of the queue with liveness and load, for keys with the scope `admin`."""

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, Field

from tcnn.version import __version__
from tcnn_api.deps import AUTHENTICATED, OperatorOnly, StoreDep
from tcnn_api.description.examples import answer, listed
from tcnn_api.schemas import Page, iso, page_of
from tcnn_jobs.model.monitoring import WorkerState

router = APIRouter(tags=["operation"], dependencies=[*AUTHENTICATED, OperatorOnly])

EXAMPLE: dict[str, Any] = {
    "name": "gpu1-4242-9f86d0", "host": "gpu1", "version": f"tcnn {__version__}, torch 2.15.0", "slots": 2, "busy": 1,
    "request_version": 3, "present": True, "keeps_house": True, "started_at": "2026-11-21T08:00:00.123Z",
    "heartbeat_at": "2026-11-21T12:00:00.123Z", "lease": 60.0,
    "gpus": [{"index": 0, "name": "NVIDIA H100", "memory_used": 3221225472, "memory_total": 85899345920}],
}  # fmt: skip


class WorkerView(BaseModel):
    """A worker: its host, slots, GPUs, version, load and liveness."""

    name: str
    host: str
    version: str = Field(description="What it runs: tcnn and torch.")
    request_version: int = Field(description="The newest requests that it understands; it leaves newer jobs to others.")
    slots: int = Field(description="Jobs that it runs at once.")
    busy: int = Field(description="Slots that its running jobs take.")
    present: bool = Field(description="Whether it was heard of lately: within a minute, or within its lease.")
    keeps_house: bool = Field(description="Whether it is the one that reaps, sweeps and calls webhooks for all.")
    started_at: str | None = Field(description="When it was first heard of.")
    heartbeat_at: str = Field(description="When it was last heard of.")
    lease: float = Field(description="Seconds of silence after which it loses its jobs.")
    gpus: list[dict[str, Any]] = Field(description="Index, name, and where known bytes of memory used and in all.")

    @classmethod
    def of(cls, state: WorkerState) -> "WorkerView":
        """The worker as the API shows it."""
        told = state.info.model_dump(include={"name", "host", "version", "request_version", "slots", "lease", "gpus"})
        times = {"started_at": iso(state.info.started_at), "heartbeat_at": iso(state.info.heartbeat_at)}
        return cls(**told, **times, **state.model_dump(include={"busy", "present", "keeps_house"}))


class WorkerList(Page):
    """Workers, sorted by host and name."""

    data: list[WorkerView]


@router.get("/workers", summary="The workers", responses={200: answer(listed(EXAMPLE), "Workers.")})
def workers(store: StoreDep) -> WorkerList:
    """Every worker that was heard of in the last day and has not left properly. It takes the scope `admin` on a server
    with keys.
    """
    return WorkerList(**page_of(map(WorkerView.of, store.workers()), more=False))
