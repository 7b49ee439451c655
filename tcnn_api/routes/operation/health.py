"""Health of the server: liveness and readiness, and whose key a request has."""

import shutil

import structlog
from anyio import to_thread
from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from tcnn.errors import EnvironmentFailure
from tcnn.version import __version__
from tcnn_api.access.keys import Principal
from tcnn_api.deps import AUTHENTICATED, ServiceDep
from tcnn_api.description import examples
from tcnn_api.description.openapi import problems
from tcnn_api.errors import RETRY_AFTER, FieldError, TooManyAtOnce, problem
from tcnn_api.schemas import Health, Readiness
from tcnn_jobs.artifacts.base import Artifacts
from tcnn_jobs.artifacts.layout import Home
from tcnn_jobs.artifacts.shared import SharedArtifacts
from tcnn_jobs.housekeeping.ownership import belongs, bucket_of, place_of

log = structlog.get_logger("tcnn.api")

router = APIRouter(tags=["operation"])

_FOREIGN = "has the files of another database, and nothing is swept; see Backup in docs/operations.md"


@router.get(
    "/healthz",
    summary="Is the server alive?",
    responses={200: examples.answer({"status": "ok", "version": __version__}, "Yes.")},
)
async def healthz() -> Health:
    """Liveness: 200 as long as the process responds, whatever its dependencies do. Needs no key."""
    return Health(version=__version__)


class Me(BaseModel):
    """The authenticated tenant, and the key's scopes."""

    tenant: str
    key: str = Field(description="Id of the key, or its position in the settings; never the key itself.")
    scopes: list[str]
    job: str | None = Field(description="The job that a link's secret gives access to; null for a key.")


@router.get(
    "/me",
    summary="Whose key is this?",
    dependencies=AUTHENTICATED,
    responses={
        200: examples.answer(
            {"tenant": "alice", "key": "key_1", "scopes": ["read", "submit"], "job": None},
            "The key's tenant and scopes.",
        )
    },
)
async def me(request: Request) -> Me:
    """Get the tenant and scopes of the request's key."""
    principal: Principal = request.state.principal
    return Me(tenant=principal.tenant, key=principal.key, scopes=sorted(principal.scopes), job=principal.job)


@router.get(
    "/readyz",
    summary="Is the server ready?",
    response_model=Readiness,
    responses={200: examples.answer({"status": "ready", "free_bytes": 123456789000}, "Yes."), **problems(503)},
)
async def readyz(parts: ServiceDep, request: Request) -> Readiness | Response:
    """Readiness: the database accepts changes and the schema fits, the object store can be written to, TCNN_HOME is
    writable with free space, and both have files of this database only. No key.
    """
    wrong = []
    own = None
    try:
        own = await parts.pools.database.run("", parts.store.check_lately)
    except EnvironmentFailure as error:
        log.warning("failed", error=str(error))
        said = "locked, away, full, read-only, or of another version; the log says more"
        wrong.append(FieldError(field="database", message=said))
    free = 0
    try:
        free, ours = await to_thread.run_sync(_look_at_home, parts.home, own)
    except (EnvironmentFailure, OSError) as error:
        log.warning("failed", error=str(error))
        wrong.append(FieldError(field="home", message="cannot be written to; the log says more"))
    else:
        if not ours:
            wrong.append(FieldError(field="home", message=_FOREIGN))
        if free < parts.settings.min_free_gb * 1e9:
            wrong.append(FieldError(field="space", message=f"expected {parts.settings.min_free_gb:g} GB, found less"))
    try:
        if not await parts.pools.probe.run("", _look_at_store, parts.artifacts, own):
            wrong.append(FieldError(field="artifacts", message=_FOREIGN))
    except (EnvironmentFailure, TooManyAtOnce) as error:  # it still has not answered those who asked before
        log.warning("failed", error=str(error))
        wrong.append(
            FieldError(
                field="artifacts", message="the store of results does not answer, or takes nothing; the log says more"
            )
        )
    if wrong:
        detail = "; ".join(f"{one.field}: {one.message}" for one in wrong)
        return problem(request.url.path, 503, detail, wrong, "NotReady", {"Retry-After": str(RETRY_AFTER)})
    return Readiness(free_bytes=free)


def _look_at_home(home: Home, own: str | None) -> tuple[int, bool]:
    """Free bytes on the disk of TCNN_HOME, after a test write, and whether it belongs to the database `own`, if that is
    known. A home that was moved away is not made anew: it could no longer be moved back.
    """
    if not home.root.is_dir():
        raise NotADirectoryError(home.root)
    home.create()
    return shutil.disk_usage(home.root).free, own is None or belongs(place_of(home), own)


def _look_at_store(artifacts: Artifacts, own: str | None) -> bool:
    """Whether the store of results, if there is one, belongs to the database `own`; raises `EnvironmentFailure` if it
    does not answer or cannot be written to."""
    artifacts.check()
    return own is None or not isinstance(artifacts, SharedArtifacts) or belongs(bucket_of(artifacts), own)
