"""`GET /jobs/{id}/archive`: all that a job hands back in one zip, made while it is sent."""

import io
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from functools import partial

from anyio import to_thread
from fastapi import APIRouter, Request
from starlette.responses import StreamingResponse

from tcnn_api.access.keys import Principal
from tcnn_api.deps import AUTHENTICATED, JobId, Reach, Service, ServiceDep, Tenant
from tcnn_api.description.problems import problems
from tcnn_api.errors import NotFound
from tcnn_api.responses.zipping import Member, zipped
from tcnn_api.routes.jobs.files import succeeded
from tcnn_api.routes.jobs.jobs import seen_by
from tcnn_api.schemas import JobView, file_name
from tcnn_jobs.artifacts.base import Artifacts
from tcnn_jobs.model.jobs import Artifact, Job

router = APIRouter(prefix="/jobs", tags=["results"], dependencies=AUTHENTICATED)


@router.get(
    "/{id}/archive",
    summary="Download everything",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "The zip.",
            "content": {"application/zip": {"schema": {"type": "string", "format": "binary"}}},
        },
        **problems(409, 429),
    },
)
async def archive(job: JobId, request: Request, parts: ServiceDep, owner: Reach, own: Tenant) -> StreamingResponse:
    """Every file of a job that has succeeded, its log, and the job itself as `job.json`, in one zip.

    It is made while it is sent, so it has no length and no ranges: for large checkpoints `/checkpoint` can go on where
    a download broke off. The same job always gives the same bytes.
    """
    found = succeeded(await to_thread.run_sync(parts.store.get, job, owner))
    parts.pools.downloads.check(own)
    members = await parts.pools.storage.run(own, _members, parts.artifacts, found, request.state.principal)
    ended = datetime.fromtimestamp(found.finished_at or found.created_at, UTC)
    at = (ended.year, ended.month, ended.day, ended.hour, ended.minute, ended.second)
    name = file_name(found, "files.zip")
    return StreamingResponse(
        _sent(parts, own, members, at),
        media_type="application/zip",
        headers={"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "private, no-store"},
    )


async def _sent(
    parts: Service, own: str, members: list[Member], at: tuple[int, int, int, int, int, int]
) -> AsyncIterator[bytes]:
    with parts.pools.downloads.hold(own):
        async for piece in zipped(members, at, partial(parts.pools.reading.run, own)):
            yield piece


def _members(artifacts: Artifacts, job: Job, principal: Principal) -> list[Member]:
    """Raises `NotFound` if a file is gone, before anything is sent."""
    told = json.dumps(seen_by(principal, JobView.of(job)).model_dump(mode="json"), indent=1).encode()
    members = [Member("job.json", len(told), partial(io.BytesIO, told))]
    for file in job.result.files if job.result else ():
        _open(artifacts, file).close()
        members.append(Member(file.name, file.size, partial(_open, artifacts, file)))
    for attempt in reversed(artifacts.attempts(job.id)):
        log = artifacts.attempt_file(job.id, attempt, "log.txt")
        if log is not None:
            members.append(Member("log.txt", log.stat().st_size, partial(log.open, "rb")))
            break
    return members


def _open(artifacts: Artifacts, file: Artifact) -> io.BufferedIOBase:
    try:
        handle: io.BufferedIOBase = artifacts.open(file).handle
    except OSError as error:
        raise NotFound(f"{file.name}: the file is no longer on the server; run the job again") from error
    return handle
