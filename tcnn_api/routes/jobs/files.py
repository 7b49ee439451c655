"""Results of a job: its checkpoint, its files and its metrics."""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from anyio import to_thread
from fastapi import APIRouter, Query, Request
from fastapi import Path as InPath
from starlette.responses import Response

from tcnn.training.runs.rundir import read_metrics
from tcnn_api.deps import AUTHENTICATED, JobId, Reach, Service, ServiceDep, StoreDep, Tenant
from tcnn_api.description import examples
from tcnn_api.description.openapi import problems
from tcnn_api.errors import NotFound
from tcnn_api.responses.download import MEDIA, Share, download
from tcnn_api.schemas import FileList, download_name, file_name, files, page_of
from tcnn_jobs.artifacts.base import Artifacts
from tcnn_jobs.errors import WrongState
from tcnn_jobs.model.jobs import Artifact, Job, Status

router = APIRouter(prefix="/jobs", tags=["results"], dependencies=AUTHENTICATED)

_BINARY = {"schema": {"type": "string", "format": "binary"}}
_HEADERS = {
    "ETag": {"description": "The SHA-256 of the whole file, quoted.", "schema": {"type": "string"}},
    "Repr-Digest": {"description": "The same, as defined in RFC 9530.", "schema": {"type": "string"}},
}
KINDS: dict[str, Any] = {
    kind: {"schema": {} if kind == "application/json" else {"type": "string"}} for kind in sorted(MEDIA.values())
}
FILE: dict[int | str, dict[str, Any]] = {
    200: {"description": "The file.", "headers": _HEADERS, "content": {"application/octet-stream": _BINARY}},
    206: {
        "description": "The part that `Range` asked for.",
        "headers": _HEADERS,
        "content": {"application/octet-stream": _BINARY, "multipart/byteranges": _BINARY},
    },
    304: {"description": "The client's copy is current (`If-None-Match`)."},
    307: {
        "description": "With `redirect=true`: a short-lived URL of the file in the store of results, which needs no "
        "key. Do not send `Authorization` to it.",
        "headers": {**_HEADERS, "Location": {"description": "The URL.", "schema": {"type": "string"}}},
    },
    **problems(409, 416, 429),
}


FILES: dict[int | str, dict[str, Any]] = {
    **FILE,
    **{status: {**FILE[status], "content": {**KINDS, **FILE[status]["content"]}} for status in (200, 206)},
}
"""Responses of a file by name: its media type follows from its extension."""

Redirect = Annotated[
    bool,
    Query(
        description="Allow a redirect (307) to the object store, if the server supports it; otherwise the "
        "server sends the file itself."
    ),
]


@router.get("/{id}/checkpoint", summary="Download the checkpoint", response_class=Response, responses=FILE)
@router.head("/{id}/checkpoint", include_in_schema=False)
async def checkpoint(
    job: JobId, request: Request, parts: ServiceDep, owner: Reach, own: Tenant, redirect: Redirect = False
) -> Response:
    """Download the checkpoint, a safetensors file for `tcnn.load`. Supports `Range`, `If-Range` and `If-None-Match`."""
    found = succeeded(await to_thread.run_sync(parts.store.get, job, owner))
    if found.checkpoint is None:
        raise NotFound(f"{job}: this job made no checkpoint; GET /jobs/{job}/checkpoints lists its files")
    name = download_name(found, found.checkpoint)
    return await _download(request, parts, own, found.checkpoint, name, redirect)


@router.get(
    "/{id}/checkpoints",
    summary="List the files of a job",
    responses={200: examples.answer(examples.listed(examples.FILE), "Files.")},
)
def checkpoints(job: JobId, store: StoreDep, owner: Reach) -> FileList:
    """List the files of a job's result; empty until it has succeeded."""
    return FileList(**page_of(files(store.get(job, owner)), False))


Name = Annotated[str, InPath(description="Name of the file.", examples=["summary.csv"])]


@router.get("/{id}/files/{name}", summary="Download a file", response_class=Response, responses=FILES)
@router.head("/{id}/files/{name}", include_in_schema=False)
async def file(
    job: JobId, name: Name, request: Request, parts: ServiceDep, owner: Reach, own: Tenant, redirect: Redirect = False
) -> Response:
    """Download a file of the result by name, with the same headers as the checkpoint."""
    found = succeeded(await to_thread.run_sync(parts.store.get, job, owner))
    chosen = found.file(name)
    if chosen is None:
        raise NotFound(f"{job}: no file of this name; GET /jobs/{job}/checkpoints lists them")
    return await _download(request, parts, own, chosen, file_name(found, name), redirect)


@router.get(
    "/{id}/metrics.csv",
    summary="Metrics of a job",
    response_class=Response,
    responses={200: examples.answer(examples.METRICS, "One row every few steps and every epoch.", "text/csv")},
)
async def metrics(job: JobId, parts: ServiceDep, owner: Reach, own: Tenant) -> Response:
    """Download the training metrics so far, one row per measurement; nested values have dotted names."""
    found = await to_thread.run_sync(parts.store.get, job, owner)
    return await parts.pools.storage.run(own, _metrics, parts.artifacts, found)


def _metrics(artifacts: Artifacts, job: Job) -> Response:
    path = newest_file(artifacts, job, "run/metrics.jsonl")
    if path is None:
        raise NotFound(f"{job.id}: nothing has been measured yet; only jobs that train have metrics")
    headers = {"Content-Disposition": f'attachment; filename="{job.id}.csv"'}
    return Response(table(read_metrics(path)), media_type="text/csv", headers=headers)


def newest_file(artifacts: Artifacts, job: Job, name: str) -> Path | None:
    """The file of this name of the newest attempt that has one."""
    files = (artifacts.attempt_file(job.id, claim, name) for claim in reversed(artifacts.attempts(job.id, job.claim)))
    return next((path for path in files if path is not None), None)


def table(rows: Iterable[Mapping[str, Any]]) -> str:
    """Nested measurements as CSV; a column for every value that any of them has, in the order of appearance.

    `{"val": {"top1": 0.5}}` has the column `val.top1`; the members of a list are numbered from 0.
    """
    flat = [dict(_leaves(row, "")) for row in rows]
    columns = list(dict.fromkeys(name for row in flat for name in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return out.getvalue()


def _leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping | list):
        for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _leaves(item, f"{name}.{key}" if name else str(key))
    else:
        yield name, value


async def _download(request: Request, parts: Service, own: str, file: Artifact, name: str, redirect: bool) -> Response:
    parts.pools.downloads.check(own)  # before the file is opened
    of = Share(partial(parts.pools.reading.run, own), partial(parts.pools.downloads.hold, own))
    seconds = parts.settings.presigned_seconds if redirect else None
    return await parts.pools.storage.run(own, download, request, parts.artifacts, file, name, of, seconds)


def succeeded(job: Job) -> Job:
    """The job, if its files are there; raises `WrongState`."""
    if job.status is not Status.SUCCEEDED:
        raise WrongState(f"{job.id}: is {job.status}; its files are there when it has succeeded")
    return job
