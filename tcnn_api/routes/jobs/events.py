"""`/jobs/{id}/events`: a job's events, as a list or as server-sent events."""

from typing import Annotated

from anyio import to_thread
from fastapi import APIRouter, Header, Query
from starlette.responses import JSONResponse, Response

from tcnn_api.deps import AUTHENTICATED, JobId, Reach, ServiceDep, StillValid, Tenant
from tcnn_api.description import examples
from tcnn_api.description.openapi import problems
from tcnn_api.schemas import EventList, EventView, page_of

router = APIRouter(prefix="/jobs", tags=["jobs"], dependencies=AUTHENTICATED)

MOST = 2**31 - 1
Seen = Annotated[int | None, Header(alias="Last-Event-ID", ge=0, le=MOST, description="As `after`, for a stream.")]


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
        204: {"description": "A stream of a job that has ended, when everything was seen: do not come back."},
        **problems(429),
    },
)
async def events(
    job: JobId,
    parts: ServiceDep,
    owner: Reach,
    own: Tenant,
    still: StillValid,
    accept: Annotated[str, Header(include_in_schema=False)] = "",
    after: Annotated[int, Query(ge=0, le=MOST, description="Only events after this number.")] = 0,
    limit: Annotated[int, Query(ge=1, le=1000, description="Events a page; a stream has no pages.")] = 100,
    seen: Seen = None,
) -> Response:
    """List a job's events, oldest first, or stream them as server-sent events.

    With `Accept: text/event-stream` the same as a stream: first what has happened after `Last-Event-ID`, then what
    happens, with `progress` messages (no id) in between, at most one a second, until the job has ended.
    """
    if "text/event-stream" not in accept.lower():
        found = await to_thread.run_sync(lambda: parts.store.events(job, owner, after=after, limit=limit + 1))
        page = page_of(map(EventView.of, found[:limit]), len(found) > limit)
        return JSONResponse(EventList(**page).model_dump(mode="json"))
    after = after if seen is None else seen
    now = await to_thread.run_sync(parts.store.get, job, owner)
    if now.terminal and not await to_thread.run_sync(lambda: parts.store.events(job, owner, after=after, limit=1)):
        return Response(status_code=204)  # an EventSource would come back for ever
    entered = parts.streams.enter(own)
    return entered.response(parts.streams.follow(parts.store, job, owner, after, still))
