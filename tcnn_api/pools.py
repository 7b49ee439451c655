"""Concurrency limits per tenant: threads, and turns at expensive work.

A bucket that accepts connections and says nothing keeps a thread for minutes. Each tenant has some threads of its own
for it, each wait has an end, and the threads that the database is asked on are never used for anything else.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext, suppress
from functools import partial
from typing import Any, TypeVar

import structlog
from anyio import CapacityLimiter, to_thread

from tcnn.errors import EnvironmentFailure
from tcnn_api.errors import TooManyAtOnce
from tcnn_jobs.confined import explorers

log = structlog.get_logger("tcnn.api")
T = TypeVar("T")


class Pool:
    """Threads for one kind of work.

    Args:
        name: what is waited for, in messages: "the store of results".
        share: threads of one tenant.
        queue: calls of one tenant that may run or wait; more are refused. None for any number.
        seconds: for which a caller waits. The call goes on by itself, and counts until it has ended.
    """

    def __init__(self, name: str, *, share: int, queue: int | None, seconds: float) -> None:
        self._name, self._share, self._queue, self._seconds = name, share, queue, seconds
        self._limiters: dict[str, CapacityLimiter] = {}
        self._held: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[Any]] = set()

    def held(self, tenant: str) -> int:
        """Calls that run or wait for a tenant."""
        return self._held[tenant]

    async def run(self, tenant: str, call: Callable[..., T], *arguments: Any) -> T:
        """The call's result. Raises what it raises, `TooManyAtOnce`, and `EnvironmentFailure` if it takes too long."""
        if self._queue is not None and self._held[tenant] >= self._queue:
            raise TooManyAtOnce(
                f"{self._queue} requests of yours wait for {self._name} already; wait for their answers"
            )
        limiter = self._limiters.get(tenant) or self._limiters.setdefault(tenant, CapacityLimiter(self._share))
        begun = False

        def begin() -> T:
            nonlocal begun
            begun = True
            return call(*arguments)

        self._held[tenant] += 1
        task = asyncio.ensure_future(to_thread.run_sync(begin, limiter=limiter))
        self._tasks.add(task)
        task.add_done_callback(partial(self._done, tenant))
        try:
            return await asyncio.wait_for(asyncio.shield(task), self._seconds)
        except TimeoutError:
            if task.done() and not task.cancelled():
                raise  # the call's own
            raise EnvironmentFailure(
                f"{self._name} gave no answer within {self._seconds:g} s; try again later"
            ) from None
        finally:
            if not begun:  # nobody waits for it any more
                task.cancel()

    def _done(self, tenant: str, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # looked at, for its caller may have left
        self._held[tenant] -= 1
        if not self._held[tenant]:
            del self._held[tenant], self._limiters[tenant]


class Share:
    """How much of something one tenant may have at once; more is refused."""

    def __init__(self, what: str, most: int) -> None:
        self._what, self._most = what, most
        self._held: Counter[str] = Counter()

    def held(self, tenant: str) -> int:
        """How much a tenant has."""
        return self._held[tenant]

    def check(self, tenant: str) -> None:
        """Raise `TooManyAtOnce` if there is room for no more just now."""
        if self._held[tenant] >= self._most:
            raise TooManyAtOnce(f"{self._most} {self._what} of yours are under way; wait for one of them to end")

    @contextmanager
    def hold(self, tenant: str) -> Iterator[None]:
        """One more, for as long as the block runs; raises `TooManyAtOnce`."""
        self.check(tenant)
        self._held[tenant] += 1
        try:
            yield
        finally:
            self._held[tenant] -= 1
            if not self._held[tenant]:
                del self._held[tenant]


class Turns:
    """Work that is done a few at a time, one for each tenant: nobody waits for all that another has asked for.

    Args:
        what: what is done, in messages: "reports".
        total: of all tenants at a time. None for any number.
        queue: of one tenant that may be under way or wait; more are refused.
    """

    def __init__(self, what: str, total: int | None, queue: int) -> None:
        self._share = Share(what, queue)
        self._own: dict[str, asyncio.Lock] = {}
        self._all: AbstractAsyncContextManager[Any] = nullcontext() if total is None else asyncio.Semaphore(total)

    @asynccontextmanager
    async def take(self, tenant: str) -> AsyncIterator[None]:
        """A turn, waited for; raises `TooManyAtOnce` when as many of this tenant wait already as may."""
        with self._share.hold(tenant):
            try:
                async with self._own.setdefault(tenant, asyncio.Lock()), self._all:
                    yield
            finally:
                if self._share.held(tenant) == 1:  # nobody of this tenant waits
                    del self._own[tenant]


class Rota:
    """Places at short work: one that becomes free goes to the tenant that has waited for its turn the longest, and no
    tenant has more than its share of them. However many calls of one tenant wait, another's waits for few.
    """

    def __init__(self, total: int, share: int) -> None:
        self._free, self._share = total, share
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def take(self, tenant: str) -> AsyncIterator[None]:
        """A place, waited for."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(turn)
        self._give()
        try:
            await turn
            yield
        finally:
            if turn.done() and not turn.cancelled():
                self._free += 1
                self._held[tenant] -= 1
                if not self._held[tenant]:
                    del self._held[tenant]
            else:  # whoever waited has left
                self._remove(tenant, turn)
            self._give()

    def _give(self) -> None:
        """Give the places that are free to those whose turn it is."""
        while self._free:
            tenant = next((one for one in self._waiting if self._held[one] < self._share), None)
            if tenant is None:
                return
            turns = self._waiting.pop(tenant)
            turn = turns.popleft()
            if turns:  # behind all others
                self._waiting[tenant] = turns
            if not turn.cancelled():
                self._free -= 1
                self._held[tenant] += 1
                turn.set_result(None)

    def _remove(self, tenant: str, turn: "asyncio.Future[None]") -> None:
        turns = self._waiting.get(tenant, deque())
        with suppress(ValueError):
            turns.remove(turn)
        if not turns:
            self._waiting.pop(tenant, None)


class Pools:
    """All bounds of a server."""

    def __init__(self) -> None:
        self.storage = Pool("the store of results", share=8, queue=16, seconds=60.0)
        self.reading = Pool("a download", share=8, queue=None, seconds=90.0)
        self.disk = Pool("an upload", share=4, queue=None, seconds=3600.0)
        self.removals = Pool("the store of results", share=4, queue=None, seconds=60.0)
        self.database = Pool("the database", share=1, queue=None, seconds=20.0)  # probes, which share an answer
        self.probe = Pool("the store of results", share=1, queue=1, seconds=2.0)
        self.uploads = Share("uploads", 8)
        self.downloads = Share("downloads", 32)
        self.twins = Turns("uploads with this Idempotency-Key", total=None, queue=8)
        self.checks = Turns("uploads", total=2, queue=8)
        self.targets = Turns("checks of a `target`", total=2, queue=8)
        self.searches = Turns("searches", total=2, queue=8)
        self.reports = Turns("reports", total=2, queue=8)
        self.looks = Turns("pictures", total=2, queue=32)
        self.models = Turns("questions about models", total=explorers.MOST, queue=32)
        self.pictures = Share("pictures", 32)

    async def remove(self, tenant: str, call: Callable[..., None], *arguments: Any) -> None:
        """Remove files whose row is gone: raises nothing. What cannot be removed now is left to the sweep.

        However many wait: none can be refused any more, for asked again it would not be found.
        """
        try:
            await self.removals.run(tenant, call, *arguments)
        except (EnvironmentFailure, OSError) as error:
            log.warning("files stay until they are swept", tenant=tenant, reason=str(error))
