"""Log of a job: what its processes wrote, by the attempts that its events tell of.

A job starts once for every claim, and what each start wrote lies in a folder of its own. Attempts are fewer: one that
was handed back starts again under its number, and a resumed job begins with attempt 1 again.
"""

import io
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Annotated, BinaryIO

from anyio import to_thread
from fastapi import APIRouter, Query
from starlette.responses import Response, StreamingResponse

from tcnn_api.deps import AUTHENTICATED, JobId, Reach, ServiceDep, Tenant
from tcnn_api.description import examples
from tcnn_api.errors import NotFound, Refused
from tcnn_jobs.artifacts.base import Artifacts
from tcnn_jobs.model.jobs import Event

router = APIRouter(prefix="/jobs", tags=["results"], dependencies=AUTHENTICATED)

_MOST = 2**31 - 1
_HEADERS = {
    "Log-Starts": {
        "description": "The starts of which there are logs, of any attempt. When a job has ended, only those of its "
        "newest attempts are kept.",
        "schema": {"type": "string", "example": "1-3, 7"},
    }
}


@router.get(
    "/{id}/logs",
    summary="Log of a job",
    response_class=Response,
    responses={
        200: examples.answer(
            "converting: building the source\n", "Output of the process.", "text/plain", headers=_HEADERS
        )
    },
)
async def logs(
    job: JobId,
    parts: ServiceDep,
    owner: Reach,
    own: Tenant,
    attempt: Annotated[
        int | None,
        Query(
            ge=1,
            le=_MOST,
            description="Number of the attempt, from 1, as in the job and its events. One that started several times "
            "(handed back, or again after the job was resumed) has the logs of all starts in order, each below a line "
            "that names it. Default: the log of the last start.",
        ),
    ] = None,
    start: Annotated[
        int | None,
        Query(
            ge=1,
            le=_MOST,
            description="Instead of `attempt`: which of the job's starts (`started` events), from 1.",
        ),
    ] = None,
    tail: Annotated[
        int | None,
        Query(ge=1, le=_MOST, description="Only this many bytes of the end, starting at the next full line."),
    ] = None,
) -> StreamingResponse:
    """Get the log of the job's process so far; every attempt has its own."""
    if attempt is not None and start is not None:
        raise Refused("start", "expected attempt or start, found both")
    starts = await to_thread.run_sync(parts.store.starts, job, owner)
    return await parts.pools.storage.run(own, _log, parts.artifacts, job, starts, attempt, start, tail)


def _log(
    artifacts: Artifacts, job: str, starts: list[Event], attempt: int | None, start: int | None, tail: int | None
) -> StreamingResponse:
    """`starts`: the job's `started` events; the number of each is that of its claim."""
    there = artifacts.attempts(job, newest=len(starts))
    kept = {one: path for one in there if (path := artifacts.attempt_file(job, one, "log.txt"))}
    attempts = {number: int(event.data["attempt"]) for number, event in enumerate(starts, 1)}
    chosen = [one for one in kept if one == start or (attempt is not None and attempts.get(one) == attempt)]
    if attempt is None and start is None:
        chosen = list(kept)[-1:]
    if not chosen:
        raise NotFound(f"{job}: {_missing(kept, attempts, attempt, start)}")
    contents: list[BinaryIO] = []
    for place, one in enumerate(chosen):
        if len(chosen) > 1:
            contents.append(io.BytesIO(_heading(one, starts[one - 1], first=place == 0)))
        contents.append(kept[one].open("rb"))
    name = f"{job}.{attempt or chosen[-1]}.txt"
    headers = {"Content-Disposition": f'inline; filename="{name}"', "Log-Starts": _ranges(kept)}
    return StreamingResponse(_so_far(contents, tail), media_type="text/plain", headers=headers)


def _missing(kept: dict[int, Path], attempts: dict[int, int], attempt: int | None, start: int | None) -> str:
    if not attempts and not kept:
        return "no worker has taken the job yet"
    wanted, numbers = ("attempt", attempts) if start is None else ("start", {one: one for one in attempts})
    there = sorted({numbers[one] for one in kept if one in numbers})
    listed = f"there are logs of {', '.join(map(str, there))}" if there else "there are no others"
    number = attempt if start is None else start
    if number is None:
        return "nothing has been written yet"
    if number in numbers.values():  # not yet, or no longer: of a job that has ended only the newest files are kept
        return f"the log of {wanted} {number} is not there; {listed}"
    return f"no log of {wanted} {number}; {listed}"


def _ranges(numbers: Iterable[int]) -> str:
    """Numbers in order, those in a row as first and last: 1-3, 7."""
    rows = ([number for _, number in row] for _, row in groupby(enumerate(numbers), lambda one: one[1] - one[0]))
    return ", ".join(f"{row[0]}-{row[-1]}" if len(row) > 1 else str(row[0]) for row in rows)


def _heading(number: int, event: Event, *, first: bool) -> bytes:
    when = datetime.fromtimestamp(event.at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    said = f"==> attempt {event.data['attempt']}, start {number}, {when} on {event.data['worker']} <==\n"
    return (said if first else f"\n{said}").encode()


def _so_far(contents: list[BinaryIO], tail: int | None = None) -> Iterator[bytes]:
    """Stream files that may still grow, up to their present ends; of the last `tail` bytes only whole lines."""
    with ExitStack() as stack:
        for content in contents:
            stack.enter_context(content)
        sizes = [content.seek(0, io.SEEK_END) for content in contents]
        total = sum(sizes)
        skip = total - tail - 1 if tail is not None and tail < total else 0  # one byte more: a line begins right there
        partial = tail is not None and tail < total
        for content, size in zip(contents, sizes, strict=True):
            if skip >= size:
                skip -= size
                continue
            content.seek(skip)
            left, skip = size - skip, 0
            if partial:
                line = content.readline(left)
                left -= len(line)
                partial = not line.endswith(b"\n")
            while left > 0 and (data := content.read(min(left, 1 << 16))):
                left -= len(data)
                yield data
