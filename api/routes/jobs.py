"""`/jobs`: look, cancel, resume, delete."""

import shutil
from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Query, Request

from api import examples
from api.deps import AUTHENTICATED, HomeDep, Idempotency, JobId, StoreDep, Tenant
from api.openapi import problems
from api.schemas import JOB, JobList, JobView, page_of
from jobs.model import IdempotencyKey, Job, Kind, Status
from jobs.store import Store

router = APIRouter(prefix="/jobs", tags=["jobs"], dependencies=AUTHENTICATED)


@router.get(
    "",
    summary="List jobs",
    responses={200: examples.answer(examples.listed(examples.SUCCEEDED, examples.RUNNING), "Jobs.")},
)
def index(
    store: StoreDep,
    owner: Tenant,
    after: Annotated[str | None, Query(description="The last id of the page before.", examples=[JOB])] = None,
    limit: Annotated[int, Query(ge=1, le=100, description="Jobs a page.")] = 20,
    status: Annotated[Status | None, Query(description="Only jobs that stand so.")] = None,
    kind: Annotated[Kind | None, Query(description="Only jobs of this kind.")] = None,
) -> JobList:
    """Your jobs, the newest first."""
    found, more = store.list(owner, after=after, limit=limit, status=status, kind=kind)
    return JobList(**page_of(map(JobView.of, found), more))


@router.get("/{id}", summary="Look at a job", responses={200: examples.answer(examples.SUCCEEDED, "The job.")})
def show(job: JobId, store: StoreDep, owner: Tenant) -> JobView:
    """Its status, its progress, at most a second old, and its result or error."""
    return JobView.of(store.get(job, owner))


@router.post(
    "/{id}/cancel",
    summary="Cancel a job",
    responses={200: examples.answer(examples.CANCELLED, "The job."), **problems(409)},
)
def cancel(job: JobId, request: Request, store: StoreDep, owner: Tenant, key: Idempotency) -> JobView:
    """A queued job is cancelled at once, a running one as soon as its process is gone. Cancelling twice is no error."""
    return _once(store, owner, key, request, job, lambda: store.cancel(job, owner))


@router.post(
    "/{id}/resume",
    summary="Resume a job",
    responses={200: examples.answer(examples.QUEUED, "The job, queued again."), **problems(409)},
)
def resume(job: JobId, request: Request, store: StoreDep, owner: Tenant, key: Idempotency) -> JobView:
    """A failed or cancelled job goes on from its last checkpoint, with all its attempts again."""
    return _once(store, owner, key, request, job, lambda: store.resume(job, owner))


@router.delete("/{id}", status_code=204, summary="Delete a job", responses=problems(409))
def delete(job: JobId, store: StoreDep, home: HomeDep, owner: Tenant) -> None:
    """A job that has ended, with its events, logs and files."""
    store.delete(job, owner)
    # The row first: files without a row are swept by the janitor, a row without files would lie.
    shutil.rmtree(home.job(job), ignore_errors=True)


def _once(
    store: Store, owner: str, key: IdempotencyKey | None, request: Request, job: str, action: Callable[[], Job]
) -> JobView:
    """The action, unless the same request has done it before: then the job as it is now."""
    request.state.job = job
    if key is not None and store.replay(key) is not None:
        return JobView.of(store.get(job, owner))
    changed = action()
    if key is not None:
        store.remember(key, job)
    return JobView.of(changed)
