"""`/jobs`: list, get, cancel, resume and delete jobs."""

from functools import partial
from typing import Annotated

from anyio import to_thread
from fastapi import APIRouter, Header, Query, Request
from starlette.responses import JSONResponse, Response

from tcnn_api.access.keys import missing
from tcnn_api.deps import AUTHENTICATED, Idempotency, JobId, Reach, ServiceDep, StillValid, StoreDep, Tenant
from tcnn_api.description import examples
from tcnn_api.description.problems import problems
from tcnn_api.schemas import JOB, JobList, JobView, page_of
from tcnn_jobs.access import Scope
from tcnn_jobs.model import Kind, Status

router = APIRouter(prefix="/jobs", tags=["jobs"], dependencies=AUTHENTICATED)


@router.get(
    "",
    summary="List jobs",
    response_model=JobList,
    responses={
        200: {
            "description": "A page, or with `Accept: text/event-stream` a stream.",
            "content": {
                "application/json": {"example": examples.listed(examples.SUCCEEDED, examples.RUNNING)},
                "text/event-stream": {"schema": {"type": "string"}, "example": examples.LIVE},
            },
        },
        **problems(429),
    },
)
async def index(
    parts: ServiceDep,
    owner: Reach,
    own: Tenant,
    still: StillValid,
    request: Request,
    accept: Annotated[str, Header(include_in_schema=False)] = "",
    after: Annotated[str | None, Query(description="The last id of the page before.", examples=[JOB])] = None,
    limit: Annotated[int, Query(ge=1, le=100, description="Jobs a page.")] = 20,
    status: Annotated[Status | None, Query(description="Only jobs that stand so.")] = None,
    kind: Annotated[Kind | None, Query(description="Only jobs of this kind.")] = None,
    tenant: Annotated[
        str | None, Query(description="Only this tenant's; that of another one takes the scope `admin`.")
    ] = None,
) -> Response:
    """Your jobs, the newest first; with the scope `admin` those of all tenants.

    With `Accept: text/event-stream` the same page as it changes, looked at once a second. A `jobs` message has the ids
    in their `order`, and of the jobs those that `changed`, without their results; the first message has all of them.
    """
    if tenant is not None and tenant != owner:
        if owner is not None:
            raise missing(Scope.ADMIN, request.state.principal)
        owner = tenant
    look = partial(parts.store.list, owner, after=after, limit=limit, status=status, kind=kind)
    if "text/event-stream" in accept.lower():
        entered = parts.streams.enter(own)
        try:
            await to_thread.run_sync(look)  # what is wrong with the request is told by a status
        except BaseException:
            entered.leave()
            raise
        return entered.response(parts.streams.watch(look, still))

    def page() -> Response:
        found, more = look()
        return JSONResponse(JobList(**page_of(map(JobView.of, found), more)).model_dump(mode="json"))

    return await to_thread.run_sync(page)


@router.get("/{id}", summary="Look at a job", responses={200: examples.answer(examples.SUCCEEDED, "The job.")})
def show(job: JobId, store: StoreDep, owner: Reach) -> JobView:
    """Its status, its progress, at most a second old, and its result or error."""
    return JobView.of(store.get(job, owner))


@router.post(
    "/{id}/cancel",
    summary="Cancel a job",
    responses={200: examples.answer(examples.CANCELLED, "The job."), **problems(409)},
)
def cancel(job: JobId, request: Request, store: StoreDep, owner: Reach, key: Idempotency) -> JobView:
    """A queued job is cancelled at once, a running one as soon as its process is gone. Cancelling twice is no error.

    With the scope `admin` another tenant's, too.
    """
    request.state.job = job
    return JobView.of(store.cancel(job, owner, key))


@router.post(
    "/{id}/resume",
    summary="Resume a job",
    responses={200: examples.answer(examples.QUEUED, "The job, queued again."), **problems(409)},
)
def resume(job: JobId, request: Request, store: StoreDep, owner: Tenant, key: Idempotency) -> JobView:
    """A failed or cancelled job goes on from its last checkpoint, with all its attempts again."""
    request.state.job = job
    return JobView.of(store.resume(job, owner, key))


@router.delete("/{id}", status_code=204, summary="Delete a job", responses=problems(409))
async def delete(job: JobId, parts: ServiceDep, owner: Tenant) -> None:
    """A job that has ended, with its events, logs and files."""
    await to_thread.run_sync(parts.store.delete, job, owner)
    # The row first: files without a row are swept by the janitor, a row without files would lie.
    await parts.pools.storage.run(owner, parts.artifacts.remove_job, job)
