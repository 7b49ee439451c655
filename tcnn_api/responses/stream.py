"""A job's events as Server-Sent Events: what happened so far, then what happens, until the job has ended; and a page
of the list of jobs, as it changes.

Events carry their number as `id`, so that a client that comes back with `Last-Event-ID` misses none and gets none
twice. `progress` messages carry none: they are a state, and only the newest is worth anything. Nor do `away` and
`back`, which say that the database no longer answers, and that it does again: an open stream alone would look alive.
"""

import json
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from typing import TypeVar
from urllib.request import parse_http_list

from anyio import CapacityLimiter, move_on_after, sleep, to_thread
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.types import Message, Receive, Scope, Send

from tcnn_api.errors import TooManyAtOnce, TooManyStreams
from tcnn_api.pools import Rota
from tcnn_api.schemas import EventView, JobLine, JobLines
from tcnn_jobs.errors import JobNotFound, StoreUnavailable
from tcnn_jobs.model.jobs import Event, Job
from tcnn_jobs.store import Store

Still = Callable[[], Awaitable[bool]]
"""Whether whoever listens still may, for a stream can outlive its key. May raise `StoreUnavailable`."""
Turn = Callable[[], AbstractAsyncContextManager[None]]
"""What a costly look waits for."""
Found = TypeVar("Found")
POLL, SHARE = 1.0, 10.0
"""Seconds between two looks at the database, and how many times longer than the look at a list took."""
PATIENCE = 1.0
"""Seconds for which a server that leaves waits until a client takes the end of its stream."""
PAGE = 500
THREADS = 8
"""Streams ask the database on threads of their own number, so that requests never wait for them. A tenant has half of
them at most, and they are given out by turns: its streams do not wait for all of another's."""

_MEDIA = "text/event-stream"
_QUALITY = re.compile(r"[01](\.\d{0,3})?")


def prefers_stream(accept: str) -> bool:
    """Whether an `Accept` (RFC 9110, §12.5.1) names event streams and prefers them to JSON; a tie is JSON's."""
    wanted: dict[str, float] = {}
    for part in parse_http_list(accept):
        media, *parameters = (piece.strip().lower() for piece in part.split(";"))
        given = next((one.partition("=")[2].strip() for one in parameters if re.match(r"q\s*=", one)), "1")
        wanted[media] = float(given) if _QUALITY.fullmatch(given) else 0.0
    json_ = next((wanted[media] for media in ("application/json", "application/*", "*/*") if media in wanted), 0.0)
    return wanted.get(_MEDIA, 0.0) > json_


class Streams:
    """The event streams that are open."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: dict[str, int] = {}
        self._threads, self._turns = CapacityLimiter(THREADS), Rota(THREADS, THREADS // 2)

    def enter(self, tenant: str) -> "Entered":
        """Count one more from now on, until it is left; raises `TooManyStreams` for more than a tenant may have."""
        if self.open(tenant) >= self._most:
            raise TooManyStreams(
                f"{self._most} event streams are open, as many as TCNN_MAX_STREAMS allows; close one, or poll"
            )
        self._open[tenant] = self.open(tenant) + 1
        return Entered(self, tenant)

    def leave(self, tenant: str) -> None:
        """One has ended."""
        self._open[tenant] -= 1
        if not self._open[tenant]:
            del self._open[tenant]

    def open(self, tenant: str) -> int:
        """How many a tenant has."""
        return self._open.get(tenant, 0)

    async def follow(
        self, tenant: str, store: Store, job: str, owner: str | None, after: int, still: Still
    ) -> AsyncIterator[ServerSentEvent]:
        """Messages to a tenant about a job from the event after number `after` on; ends with the job, with the key, or
        when the job is deleted."""
        told: str | None = None
        async with aclosing(self._looks(tenant, lambda: _look(store, job, owner, after), still)) as looks:
            async for found in looks:
                if isinstance(found, ServerSentEvent):
                    yield found
                    continue
                (now, events), _ = found
                for event in events:
                    after = event.seq
                    yield ServerSentEvent(
                        EventView.of(event).model_dump_json(), event=event.kind, id=str(event.seq), sep="\n"
                    )
                if len(events) == PAGE:
                    continue
                if now.terminal:
                    return
                progress = json.dumps(now.progress.model_dump(mode="json")) if now.progress else None
                if progress is not None and progress != told:
                    yield ServerSentEvent(progress, event="progress", sep="\n")
                told = progress
                await sleep(POLL)

    async def watch(
        self, tenant: str, look: Callable[[], tuple[list[Job], str | None]], still: Still, turn: Turn = nullcontext
    ) -> AsyncIterator[ServerSentEvent]:
        """A page of jobs for a tenant, whenever something of it changes: the order of all, and those that have changed.
        Ends with the key."""
        told: dict[str, str] = {}
        order: tuple[list[str], str | None] | None = None
        async with aclosing(self._looks(tenant, look, still, turn)) as looks:
            async for found in looks:
                if isinstance(found, ServerSentEvent):
                    yield found
                    continue
                (jobs, following), took = found
                lines = {job.id: JobLine.of(job) for job in jobs}
                now = {job: line.model_dump_json() for job, line in lines.items()}
                changed = [lines[job] for job, text in now.items() if told.get(job) != text]
                if changed or (list(now), following) != order:
                    more = following is not None
                    page = JobLines(order=list(now), changed=changed, has_more=more, next=following)
                    yield ServerSentEvent(page.model_dump_json(), event="jobs", sep="\n")
                told, order = now, (list(now), following)
                await sleep(max(POLL, SHARE * took))

    async def _looks(
        self, tenant: str, look: Callable[[], Found], still: Still, turn: Turn = nullcontext
    ) -> AsyncGenerator[tuple[Found, float] | ServerSentEvent]:
        """What `look` finds and the seconds that it took, as often as it is asked for, and between that the standing of
        the database when it has changed. Ends with the key, or when what is looked at is deleted."""
        reached = True
        while True:
            try:
                if not await still():
                    return
                async with turn(), self._turns.take(tenant):
                    began = time.monotonic()
                    found = await to_thread.run_sync(look, limiter=self._threads)
                    took = time.monotonic() - began
            except (StoreUnavailable, TooManyAtOnce) as error:  # it will come back, or has a turn later
                if reached and isinstance(error, StoreUnavailable):
                    yield _standing("away")
                    reached = False
                await sleep(POLL)
                continue
            except JobNotFound:
                return
            if not reached:
                yield _standing("back")
                reached = True
            yield found, took


class Entered:
    """One stream that is counted, from before its first look at the database to after its last message."""

    def __init__(self, streams: Streams, tenant: str) -> None:
        self._streams, self._tenant = streams, tenant
        self._is_in = True

    def leave(self) -> None:
        """It counts no more; a second time does nothing."""
        if self._is_in:
            self._is_in = False
            self._streams.leave(self._tenant)

    def response(self, messages: AsyncIterator[ServerSentEvent]) -> "StreamResponse":
        """The answer, with whose end, however it comes, the stream is left."""
        return StreamResponse(messages, self)


class StreamResponse(EventSourceResponse):
    """sse-starlette's, which is counted, and has an end even where the server leaves in the middle of it."""

    def __init__(self, messages: AsyncIterator[ServerSentEvent], entered: Entered) -> None:
        super().__init__(messages, ping=15, sep="\n")
        self._entered = entered

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send messages until the client, the job or the server is gone."""
        open_ = False

        async def noted(message: Message) -> None:
            nonlocal open_
            open_ = message["type"] == "http.response.start" or message.get("more_body", False)
            await send(message)

        try:
            await super().__call__(scope, receive, noted)
            if open_:  # what sends the last chunk was cancelled; of a client that reads nothing none is waited for
                with move_on_after(PATIENCE):
                    await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._entered.leave()


def _standing(event: str) -> ServerSentEvent:
    """Whether the database answers; with the `data` that an event has, for clients that look into every message."""
    return ServerSentEvent('{"data": {}}', event=event, sep="\n")


def _look(store: Store, job: str, owner: str | None, after: int) -> tuple[Job, list[Event]]:
    """The job before its events: if it had ended, its last event is among them."""
    return store.get(job, owner), store.events(job, owner, after=after, limit=PAGE)
