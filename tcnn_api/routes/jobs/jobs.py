"""`/jobs`: list, get, cancel, resume and delete jobs, and follow their events, as a list or as server-sent events."""

from contextlib import nullcontext
from functools import partial
from typing import Annotated

from anyio import to_thread
from fastapi import APIRouter, Body, Header, Query, Request
from pydantic import BeforeValidator, Field, WithJsonSchema
from starlette.responses import JSONResponse, Response

from tcnn.errors import RequestError
from tcnn_api.access.keys import Principal
from tcnn_api.deps import (
    AUTHENTICATED,
    Changer,
    Idempotency,
    JobId,
    OfTenant,
    Reach,
    ServiceDep,
    StillValid,
    StoreDep,
    Streamed,
    Tenant,
    within,
)
from tcnn_api.description import examples
from tcnn_api.description.openapi import problems
from tcnn_api.errors import Refused
from tcnn_api.responses.stream import Turn
from tcnn_api.schemas import AFTER, JOB, EventList, EventView, JobLine, JobList, JobView, continued, page_of
from tcnn_jobs.model.columns import Order
from tcnn_jobs.model.jobs import Kind, Making, Status
from tcnn_jobs.model.naming import MOST_TAGS, Labels, Search

router = APIRouter(prefix="/jobs", tags=["jobs"], dependencies=AUTHENTICATED)

MOST = 2**31 - 1
_SEEN = {"anyOf": [{"type": "integer", "minimum": 0, "maximum": MOST}, {"type": "string", "maxLength": 0}]}
Seen = Annotated[
    Annotated[int, Field(ge=0, le=MOST)] | None,
    BeforeValidator(lambda given: given or None),  # an EventSource's own first value is empty, and some clients send it
    WithJsonSchema(_SEEN),
    Header(alias="Last-Event-ID", description="Like `after`, for a stream; an empty one is none."),
]


@router.get(
    "",
    summary="List jobs",
    response_model=JobList,
    responses={
        200: {
            "description": "A page, or with `Accept: text/event-stream` a stream.",
            "content": {
                "application/json": {"example": examples.begun(examples.SUCCEEDED, examples.RUNNING)},
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
    streamed: Streamed,
    after: Annotated[str | None, Query(description=AFTER, examples=[JOB])] = None,
    limit: Annotated[int, Query(ge=1, le=100, description="Jobs per page.")] = 20,
    status: Annotated[Status | None, Query(description="Only jobs with this status.")] = None,
    kind: Annotated[Kind | None, Query(description="Only jobs of this kind.")] = None,
    model: Annotated[
        Making | None,
        Query(description="Only jobs that have made a model, or only those that will make one if they succeed."),
    ] = None,
    tenant: OfTenant = None,
    q: Annotated[
        Search,
        Query(
            description="Only jobs whose name, tags, note, id, request and uploads' names contain all of these "
            "words, ignoring case. Searches the newest 100,000 jobs that pass the other filters."
        ),
    ] = "",
    tag: Annotated[
        list[str] | None,
        Query(max_length=MOST_TAGS, description="Only jobs with this tag; if repeated, with all of the tags."),
    ] = None,
    sort: Annotated[
        str,
        Query(
            max_length=300,
            description="`created`, `started`, `finished`, `duration`, `name`, or a number of the request or "
            "the result, such as `settings.lr` or `metrics.accuracy`. Prefix with `-` for descending order; jobs "
            "without a value come last. Orders other than `created` cover the newest 10,000 jobs that pass the "
            "other filters.",
            examples=["-metrics.accuracy"],
        ),
    ] = "-created",
    results: Annotated[
        bool, Query(description="Whether to include results; `metrics` is included in any case.")
    ] = True,
) -> Response:
    """List your jobs, newest first; with the scope `admin`, the jobs of all tenants.

    With `Accept: text/event-stream`, streams the changes of the page, checked once a second. A `jobs` message has the
    ids in their `order`, and the jobs that `changed`, without results; the first message has all jobs. `away` and
    `back` mean that the database is unreachable, and that it is reachable again.
    """
    owner = within(owner, tenant, request.state.principal)
    order = _order(sort)
    look = partial(
        parts.store.list, owner, after=after, limit=limit, status=status, kind=kind, model=model, search=q,
        tags=tag or (), order=order,
    )  # fmt: skip
    costly = bool(q or tag) or order.by != "created"
    turn: Turn = partial(parts.pools.searches.take, own) if costly else nullcontext
    if streamed:
        entered = parts.streams.enter(own)
        try:
            async with turn():
                await to_thread.run_sync(look)  # what is wrong with the request is told by a status
                if after is not None:  # which may be deleted while it is watched
                    look = partial(look, after=await to_thread.run_sync(parts.store.begin, after, owner, order))
        except BaseException:
            entered.leave()
            raise
        return entered.response(parts.streams.watch(own, look, still, turn))

    def page() -> Response:
        found, following = look()
        of = JobView.of if results else JobLine.of
        told = [of(job).model_dump(mode="json") for job in found]
        return JSONResponse(continued(told, following) | {"object": "list"})

    async with turn():
        return await to_thread.run_sync(page)


def seen_by(principal: Principal, job: JobView) -> JobView:
    """A job as it is shown: to whoever has a link without its webhook, whose address may be a secret."""
    if principal.job is None or "webhook" not in job.request:
        return job
    return job.model_copy(update={"request": {**job.request, "webhook": None}})


def _order(sort: str) -> Order:
    try:
        return Order.of(sort)
    except RequestError as error:
        raise Refused("sort", str(error)) from error


@router.get("/{id}", summary="Get a job", responses={200: examples.answer(examples.SUCCEEDED, "The job.")})
def show(job: JobId, request: Request, store: StoreDep, owner: Reach) -> JobView:
    """Get a job: status, progress (at most a second old), result or error."""
    return seen_by(request.state.principal, JobView.of(store.get(job, owner)))


@router.patch(
    "/{id}", summary="Name a job", responses={200: examples.answer(examples.NAMED, "The job."), **problems(409)}
)
def label(
    job: JobId,
    body: Annotated[Labels, Body(openapi_examples=examples.LABELS)],
    request: Request,
    store: StoreDep,
    owner: Changer,
    key: Idempotency,
) -> JobView:
    """Set a job's name, tags and note, whatever its status. Omitted fields stay unchanged, null removes one.

    Idempotent.
    """
    request.state.job = job
    return JobView.of(store.label(job, owner, body, key))


@router.post(
    "/{id}/cancel",
    summary="Cancel a job",
    responses={200: examples.answer(examples.CANCELLED, "The job."), **problems(409)},
)
def cancel(job: JobId, request: Request, store: StoreDep, owner: Reach, key: Idempotency) -> JobView:
    """Cancel a job: a queued one at once, a running one as soon as its process has ended. Idempotent.

    The scope `admin` allows cancelling jobs of other tenants.
    """
    request.state.job = job
    return JobView.of(store.cancel(job, owner, key))


@router.post(
    "/{id}/resume",
    summary="Resume a job",
    responses={200: examples.answer(examples.QUEUED, "The job, queued again."), **problems(409)},
)
def resume(job: JobId, request: Request, store: StoreDep, owner: Changer, key: Idempotency) -> JobView:
    """Queue a failed or cancelled job again, with all its attempts; training resumes from the last resume point.

    Refused (409) if something that it needs has been deleted.
    """
    request.state.job = job
    return JobView.of(store.resume(job, owner, key))


@router.delete("/{id}", status_code=204, summary="Delete a job", responses=problems(409))
async def delete(job: JobId, parts: ServiceDep, owner: Changer) -> None:
    """Delete a terminal job with its events, logs and files."""
    await to_thread.run_sync(parts.store.delete, job, owner)
    # The row first: files without a row are swept by the janitor, a row without files would lie. Then nothing fails.
    await parts.pools.remove(owner, parts.artifacts.remove_job, job)


@router.get(
    "/{id}/events",
    summary="Events of a job",
    response_model=EventList,
    responses={
        200: {
            "description": "A list, or with `Accept: text/event-stream` a stream.",
            "content": {
                "application/json": {"example": examples.EVENTS},
                "text/event-stream": {"schema": {"type": "string"}, "example": examples.STREAM},
            },
        },
        204: {"description": "For a stream: the job has ended and all events have been sent; do not reconnect."},
        **problems(429),
    },
)
async def events(
    job: JobId,
    parts: ServiceDep,
    owner: Reach,
    own: Tenant,
    still: StillValid,
    streamed: Streamed,
    after: Annotated[int, Query(ge=0, le=MOST, description="Only events after this sequence number.")] = 0,
    limit: Annotated[int, Query(ge=1, le=1000, description="Events per page; does not apply to streams.")] = 100,
    seen: Seen = None,
) -> Response:
    """List a job's events, oldest first, or stream them as server-sent events.

    With `Accept: text/event-stream`, streams first the events after `Last-Event-ID` and then new ones until the job
    ends, with `progress` messages (no id) in between, at most one a second. `away` and `back` (no id) mean that the
    database is unreachable, and that it is reachable again.
    """
    if not streamed:
        found = await to_thread.run_sync(lambda: parts.store.events(job, owner, after=after, limit=limit + 1))
        page = page_of(map(EventView.of, found[:limit]), len(found) > limit)
        return JSONResponse(EventList(**page).model_dump(mode="json"))
    after = after if seen is None else seen
    now = await to_thread.run_sync(parts.store.get, job, owner)
    if now.terminal and not await to_thread.run_sync(lambda: parts.store.events(job, owner, after=after, limit=1)):
        return Response(status_code=204)  # an EventSource would come back for ever
    entered = parts.streams.enter(own)
    return entered.response(parts.streams.follow(own, parts.store, job, owner, after, still))
