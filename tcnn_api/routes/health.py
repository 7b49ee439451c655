"""Liveness, readiness, and Prometheus metrics of the server."""

import shutil

import structlog
from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import Response

from tcnn.errors import EnvironmentFailure
from tcnn.version import __version__
from tcnn_api.deps import AUTHENTICATED, ServiceDep
from tcnn_api.description import examples
from tcnn_api.description.problems import problems
from tcnn_api.errors import RETRY_AFTER, FieldError, problem
from tcnn_api.schemas import Health, Readiness

log = structlog.get_logger("tcnn.api")

router = APIRouter(tags=["operation"])


@router.get(
    "/healthz",
    summary="Is the server alive?",
    responses={200: examples.answer({"status": "ok", "version": __version__}, "Yes.")},
)
async def healthz() -> Health:
    """Asks nobody else: it answers as long as the process does. No key is needed."""
    return Health(version=__version__)


@router.get(
    "/readyz",
    summary="Can the server do its work?",
    response_model=Readiness,
    responses={200: examples.answer({"status": "ready", "free_bytes": 123456789000}, "Yes."), **problems(503)},
)
def readyz(parts: ServiceDep, request: Request) -> Readiness | Response:
    """Database and store answer, the version fits, TCNN_HOME can be written to and has space. No key is needed."""
    wrong = []
    try:
        parts.store.check()
    except EnvironmentFailure:
        wrong.append(FieldError(field="database", message="locked, away, or of another version; the log says more"))
    free = 0
    try:
        parts.home.create()
        free = shutil.disk_usage(parts.home.root).free
    except (EnvironmentFailure, OSError):
        wrong.append(FieldError(field="home", message="cannot be written to"))
    else:
        if free < parts.settings.min_free_gb * 1e9:
            wrong.append(FieldError(field="space", message=f"expected {parts.settings.min_free_gb:g} GB, found less"))
    try:
        parts.artifacts.check()
    except EnvironmentFailure as error:
        log.warning("failed", error=str(error))
        wrong.append(FieldError(field="artifacts", message="the store of results does not answer; the log says more"))
    if wrong:
        detail = "; ".join(f"{one.field}: {one.message}" for one in wrong)
        return problem(request.url.path, 503, detail, wrong, "NotReady", {"Retry-After": str(RETRY_AFTER)})
    return Readiness(free_bytes=free)


@router.get(
    "/metrics",
    summary="Metrics for Prometheus",
    response_class=Response,
    dependencies=AUTHENTICATED,
    responses={200: examples.answer('tcnn_jobs_queued{kind="finetune"} 3.0\n', "Metrics.", "text/plain")},
)
def metrics(parts: ServiceDep) -> Response:
    """The queue, the workers and this server's requests. Where there are API keys, it needs one."""
    return Response(generate_latest(parts.registry), media_type=CONTENT_TYPE_LATEST)
