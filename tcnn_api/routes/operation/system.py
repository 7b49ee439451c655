"""`GET /audit`, `/workers` and `/system`: what is done and how the service stands, for its operator.

A tenant sees its own part of the last one.
"""

import platform
import shutil
from typing import Annotated, Any

from anyio import to_thread
from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field

from tcnn.version import __version__
from tcnn_api.access.keys import LOCAL
from tcnn_api.deps import AUTHENTICATED, AdminOnly, OperatorOnly, Service, ServiceDep, StoreDep
from tcnn_api.description.examples import answer, listed
from tcnn_api.schemas import Page, iso, page_of
from tcnn_jobs.model.accounts import Quotas, Scope
from tcnn_jobs.model.operation import AuditEntry, EndedHour, TenantLoad, WorkerState

router = APIRouter(tags=["operation"], dependencies=AUTHENTICATED)

MOST = 2**63 - 1
ENTRY: dict[str, Any] = {
    "number": 42, "at": "2026-11-21T12:00:00.123Z", "action": "job.cancel", "resource": "job_0123456789abcdef01234567",
    "tenant": "team", "by": "operations", "key": "key_0123456789abcdef01234567",
    "request": "4c0f1e0c9d7e4b5fa0d2f7f6f5b1a7c1", "details": {},
}  # fmt: skip


class AuditView(BaseModel):
    """An audit entry: an action, its resource, and the tenant, key and request that it came from."""

    number: int = Field(description="Sequence number.")
    at: str
    action: str = Field(description="`job.submit`, `job.cancel`, `dataset.upload`, `key.revoke` …")
    resource: str = Field(description="Id of the changed resource; for a tenant, its name.")
    tenant: str = Field(description="Tenant that owns the resource.")
    by: str = Field(description="The tenant of the key, or the user of the command line.")
    key: str = Field(description="Id of the key or its position in the settings; or `command line`.")
    request: str = Field(description="The request's id, as in the log and in `X-Request-ID`.")
    details: dict[str, Any]

    @classmethod
    def of(cls, entry: AuditEntry) -> "AuditView":
        """The entry as the API shows it."""
        return cls(**{**entry.model_dump(), "at": iso(entry.at)})


class AuditList(Page):
    """A page of entries, newest first; pass the last number as `after` for the next page."""

    data: list[AuditView]


@router.get("/audit", summary="Audit log", responses={200: answer(listed(ENTRY), "Entries.")}, dependencies=[AdminOnly])
def audit(
    store: StoreDep,
    tenant: Annotated[str | None, Query(description="Only changes to this tenant's resources.")] = None,
    key: Annotated[str | None, Query(description="Only changes made with this key.")] = None,
    after: Annotated[int | None, Query(ge=0, le=MOST, description="Last number of the previous page.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000, description="Entries per page.")] = 100,
) -> AuditList:
    """List changes made over HTTP or on the command line, newest first. Requires the scope `admin`."""
    found, more = store.audit(tenant=tenant, key=key, after=after, limit=limit)
    return AuditList(**page_of(map(AuditView.of, found), more))


WORKER: dict[str, Any] = {
    "name": "gpu1-4242-9f86d0", "host": "gpu1", "version": f"tcnn {__version__}, torch 2.15.0", "slots": 2, "busy": 1,
    "waiting": 0, "request_version": 3, "present": True, "keeps_house": True, "started_at": "2026-11-21T08:00:00.123Z",
    "heartbeat_at": "2026-11-21T12:00:00.123Z", "lease": 60.0,
    "gpus": [{"index": 0, "name": "NVIDIA H100", "memory_used": 3221225472, "memory_total": 85899345920}],
}  # fmt: skip


class WorkerView(BaseModel):
    """A worker: its host, slots, GPUs, version, load and liveness."""

    name: str
    host: str
    version: str = Field(description="Versions of tcnn and torch.")
    request_version: int = Field(
        description="Newest request version that it understands; it leaves newer jobs to other workers."
    )
    slots: int = Field(description="Maximum number of concurrent jobs.")
    busy: int = Field(description="Slots in use.")
    waiting: int = Field(description="Jobs that it has taken and that wait until enough of its slots are free.")
    present: bool = Field(description="Whether it has sent a heartbeat recently: within a minute, or within its lease.")
    keeps_house: bool = Field(
        description="Whether it is the worker that does the housekeeping: lost jobs, cleanup and webhooks."
    )
    started_at: str | None = Field(description="Time of the first heartbeat.")
    heartbeat_at: str = Field(description="Time of the last heartbeat.")
    lease: float = Field(description="Seconds without a heartbeat after which it loses its jobs.")
    gpus: list[dict[str, Any]] = Field(description="Index, name and, if known, used and total memory in bytes.")

    @classmethod
    def of(cls, state: WorkerState) -> "WorkerView":
        """The worker as the API shows it."""
        told = state.info.model_dump(include={"name", "host", "version", "request_version", "slots", "lease", "gpus"})
        times = {"started_at": iso(state.info.started_at), "heartbeat_at": iso(state.info.heartbeat_at)}
        return cls(**told, **times, **state.model_dump(include={"busy", "waiting", "present", "keeps_house"}))


class WorkerList(Page):
    """Workers, sorted by host and name."""

    data: list[WorkerView]


@router.get(
    "/workers", summary="List workers", responses={200: answer(listed(WORKER), "Workers.")}, dependencies=[OperatorOnly]
)
def workers(store: StoreDep) -> WorkerList:
    """List every worker with a heartbeat in the last day that has not shut down properly. On a server with keys this
    requires the scope `admin`.
    """
    return WorkerList(**page_of(map(WorkerView.of, store.workers()), more=False))


class Disk(BaseModel):
    """The disk of TCNN_HOME."""

    free: int = Field(description="Free space in bytes.")
    total: int


class SystemView(BaseModel):
    """Status of the service."""

    whole: bool = Field(
        description="Whether this covers all tenants: with the scope `admin`, or on a server without "
        "keys. Otherwise only your own part."
    )
    tenant: str = Field(description="Tenant of the request's key.")
    tenants: list[TenantLoad] = Field(description="Tenants with queued or running jobs or stored files.")
    ended: list[EndedHour] = Field(description="Jobs that ended in each of the last 24 hours, newest first.")
    quotas: Quotas | None = Field(description="Quotas of this tenant; null means unlimited.")
    workers: list[WorkerView] | None = Field(description="Null unless `whole`.")
    disk: Disk | None = Field(description="Null unless `whole`.")
    versions: dict[str, str] = Field(description="Versions of this server; those of workers are listed with them.")


_LOAD: dict[str, Any] = {
    "tenant": "team", "queued": 4, "blocked": 1, "running": 2, "slots": 2, "oldest_seconds": 75.5, "stored": 223508642,
}  # fmt: skip
_SYSTEM: dict[str, Any] = {
    "whole": True, "tenant": "operations", "tenants": [_LOAD],
    "ended": [{"hours_ago": 0, "succeeded": 12, "failed": 1, "cancelled": 0}], "quotas": None, "workers": [WORKER],
    "disk": {"free": 123456789000, "total": 500000000000},
    "versions": {"tcnn": __version__, "python": "3.13.5", "database": "sqlite"},
}  # fmt: skip


@router.get("/system", summary="Status of the service", responses={200: answer(_SYSTEM, "The service.")})
async def system(parts: ServiceDep, request: Request) -> SystemView:
    """Get the queue by tenant and age, ended jobs, workers with their GPUs, disk and versions.

    Without the scope `admin`, a key shows only its tenant's part, without workers and disk.
    """
    principal = request.state.principal
    whole = principal == LOCAL or Scope.ADMIN in principal.scopes
    return await to_thread.run_sync(_look, parts, principal.tenant, whole)


def _look(parts: Service, tenant: str, whole: bool) -> SystemView:
    store, owner = parts.store, None if whole else tenant
    own = next(iter(store.tenants(tenant)), None)
    usage = shutil.disk_usage(parts.home.root)
    return SystemView(
        whole=whole,
        tenant=tenant,
        tenants=store.load(owner),
        ended=list(store.ended(owner)),
        quotas=None if own is None else own.quotas,
        workers=[WorkerView.of(one) for one in store.workers()] if whole else None,
        disk=Disk(free=usage.free, total=usage.total) if whole else None,
        versions={"tcnn": __version__, "python": platform.python_version(), "database": store.url.get_backend_name()},
    )
