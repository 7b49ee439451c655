"""`GET /jobs/{id}/report`: the report of a training run as one page, made when it is first asked for, and kept."""

import hashlib
import json
import re
from contextlib import suppress
from pathlib import Path

from anyio import to_thread
from fastapi import APIRouter, Request
from starlette.responses import FileResponse, Response

from tcnn.analysis.charts.bundle import script_source
from tcnn.errors import EnvironmentFailure, RequestError
from tcnn.version import __version__
from tcnn_api.deps import AUTHENTICATED, JobId, Reach, Service, ServiceDep, Tenant
from tcnn_api.description.examples import answer
from tcnn_api.description.openapi import problems
from tcnn_api.errors import NotFound
from tcnn_api.responses.head import answer_head
from tcnn_api.routes.jobs.files import succeeded
from tcnn_jobs.attempts.stages import winner
from tcnn_jobs.confined.explorers import MEMORY
from tcnn_jobs.confined.process import ask
from tcnn_jobs.errors import JobNotFound, UploadNotFound
from tcnn_jobs.model.jobs import Job
from tcnn_jobs.store import Store

router = APIRouter(prefix="/jobs", tags=["results"], dependencies=AUTHENTICATED)

MEDIA_TYPE = "text/html; charset=utf-8"
SECONDS = 300
ID = re.compile(r'"((job|ds|ckpt|wts)_[0-9a-f]{24})"')
KINDS = {"ds": "dataset", "ckpt": "checkpoint", "wts": "weights"}
SCRIPT = hashlib.sha256(script_source().encode()).hexdigest()[:12]
"""Of the page's name: one with another script than the policy allows would show no charts."""
POLICY = {
    # The page has styles, pictures and one script of ours in it, known by its hash; words in it may be a stranger's.
    "Content-Security-Policy": f"default-src 'none'; script-src {script_source()}; style-src 'unsafe-inline'; "
    "img-src data:; sandbox allow-scripts allow-downloads; frame-ancestors 'none'",
    "Cache-Control": "private, no-cache",
}


@router.get(
    "/{id}/report",
    summary="Report of a job",
    response_class=Response,
    responses={200: answer("<!doctype html>…", "One self-contained HTML file.", "text/html"), **problems(409)},
)
async def report(job: JobId, request: Request, parts: ServiceDep, owner: Reach, own: Tenant) -> Response:
    """Get the report of a run: conversion, equivalence, curves, gates and spans, evaluations, and attention maps.

    It is created on the first request, which takes seconds. The maps are of images of the job's data set, if that was
    uploaded and still exists.
    """
    found = succeeded(await to_thread.run_sync(parts.store.get, job, owner))
    attempt = await parts.pools.storage.run(own, parts.artifacts.attempt, found, winner(found))
    names = json.dumps(await to_thread.run_sync(_names, parts.store, found), sort_keys=True)
    called = hashlib.sha256(names.encode()).hexdigest()[:12]
    page = parts.artifacts.beside(job, f"report-{winner(found)}-{__version__}-{SCRIPT}-{called}.html")
    if attempt is None:
        raise NotFound(f"{job}: its files are no longer on the server; run the job again")
    headers = POLICY | {"Content-Disposition": f'inline; filename="{job}.html"'}
    if not page.is_file():
        answer_head(request, MEDIA_TYPE, headers)
    async with parts.pools.reports.take(own):  # what waited for the same one finds it made
        if not page.is_file():
            await _make(parts, found, attempt, page, own, names)
    return FileResponse(page, headers=headers, media_type=MEDIA_TYPE)


async def _make(parts: Service, job: Job, attempt: Path, page: Path, own: str, names: str) -> None:
    images = await parts.pools.storage.run(own, _images, parts, job)
    size = 0 if job.checkpoint is None else job.checkpoint.size
    try:
        await ask(
            "tcnn_jobs.confined.reports", "write", str(attempt), job.id, str(page), str(parts.home.incoming), names,
            images, memory=MEMORY + 4 * size, seconds=SECONDS,
        )  # fmt: skip
    except RequestError as error:
        raise EnvironmentFailure(f"the report of {job.id} could not be made ({error}); try again later") from error


def _names(store: Store, job: Job) -> dict[str, str]:
    """What the job's owner calls it, and data sets and models that its request names by an id, if these are there."""
    found = {} if job.name is None else {job.id: job.name}
    for identifier, prefix in set(ID.findall(json.dumps(job.request))):
        with suppress(JobNotFound, UploadNotFound):
            if prefix == "job":
                other = store.get(identifier, job.owner)
                found[identifier] = other.name or str(other.request.get("model") or identifier)
            else:
                found[identifier] = store.upload(identifier, KINDS[prefix], job.owner).name
    return found


def _images(parts: Service, job: Job) -> str:
    """Where the job's data set lies, if it is an uploaded one; else nothing."""
    if job.checkpoint is None:
        return ""  # without a model there is no attention to show
    name = str(job.request.get("dataset") or (job.request.get("finetune") or {}).get("dataset") or "")
    try:
        folder = parts.artifacts.path(parts.artifacts.upload(parts.store.upload(name, "dataset", job.owner)))
    except UploadNotFound:
        return ""
    return str(folder) if folder.is_dir() else ""
