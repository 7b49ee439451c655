"""`GET /system`: how the whole service stands, for its operator; a tenant sees its own part of it."""

import platform
import shutil
from typing import Any

from anyio import to_thread
from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from tcnn.version import __version__
from tcnn_api.access.keys import LOCAL
from tcnn_api.deps import AUTHENTICATED, Service, ServiceDep
from tcnn_api.description.examples import answer
from tcnn_api.routes.operation.workers import EXAMPLE as WORKER
from tcnn_api.routes.operation.workers import WorkerView
from tcnn_jobs.model.accounts import Quotas, Scope
from tcnn_jobs.model.monitoring import EndedHour, TenantLoad

router = APIRouter(tags=["operation"], dependencies=AUTHENTICATED)


class Disk(BaseModel):
    """The disk of TCNN_HOME."""

    free: int = Field(description="Bytes.")
    total: int


class SystemView(BaseModel):
    """How the service stands."""

    whole: bool = Field(
        description="Whether this is all of it: for an admin's key, and without keys. Else one's own part."
    )
    tenant: str = Field(description="Whose key this is.")
    tenants: list[TenantLoad] = Field(description="Who has something queued, running or stored.")
    ended: list[EndedHour] = Field(description="What ended in each of the last 24 hours, the newest first.")
    quotas: Quotas | None = Field(description="The most that this tenant may have; null is any amount.")
    workers: list[WorkerView] | None = Field(description="Null for whom they are not.")
    disk: Disk | None = Field(description="Likewise.")
    versions: dict[str, str] = Field(description="Of this server; those of workers stand beside them.")


_LOAD: dict[str, Any] = {
    "tenant": "team", "queued": 4, "blocked": 1, "running": 2, "slots": 2, "oldest_seconds": 75.5, "stored": 223508642,
}  # fmt: skip
_SYSTEM: dict[str, Any] = {
    "whole": True, "tenant": "operations", "tenants": [_LOAD],
    "ended": [{"hours_ago": 0, "succeeded": 12, "failed": 1, "cancelled": 0}], "quotas": None, "workers": [WORKER],
    "disk": {"free": 123456789000, "total": 500000000000},
    "versions": {"tcnn": __version__, "python": "3.13.5", "database": "sqlite"},
}  # fmt: skip


@router.get("/system", summary="How the service stands", responses={200: answer(_SYSTEM, "The service.")})
async def system(parts: ServiceDep, request: Request) -> SystemView:
    """The queue by tenant and age, what has ended, workers with their GPUs, the disk, versions.

    With a key without the scope `admin` it is the tenant's own part, without workers and disk.
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
