"""Turns of tenants: the one that has waited longest is next, nobody waits for all of another's, and nothing is kept of
those who have left.
"""

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from sse_starlette import ServerSentEvent
from starlette.testclient import TestClient

from tcnn_api.deps import Service
from tcnn_api.errors import TooManyAtOnce
from tcnn_api.pools import Pool, Pools, Rota, Share, Turns
from tcnn_api.responses.stream import THREADS, Streams
from tcnn_jobs.confined import explorers
from tcnn_jobs.confined.explorers import Explorers
from tcnn_jobs.model.jobs import Job, Status


def test_turns_are_one_a_tenant() -> None:
    async def use() -> None:
        turns, log = Turns("reports", total=2, queue=3), []

        async def work(tenant: str) -> None:
            async with turns.take(tenant):
                log.append(tenant)
                await asyncio.sleep(0.02)

        calls = [asyncio.ensure_future(work(tenant)) for tenant in ("ann", "ann", "ann", "bob")]
        await asyncio.sleep(0)
        with pytest.raises(TooManyAtOnce, match="3 reports of yours"):
            await work("ann")
        await asyncio.gather(*calls)
        assert log == ["ann", "bob", "ann", "ann"]

    asyncio.run(use())


def test_a_share_is_given_back() -> None:
    share = Share("uploads", 1)
    with share.hold("ann"), share.hold("bob"), pytest.raises(TooManyAtOnce, match="1 uploads of yours"):
        share.hold("ann").__enter__()
    with share.hold("ann"):
        pass


def test_one_tenants_questions_about_models_shut_nobody_out(
    alice: TestClient, service: Service, make: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many it asks, of as many of its models as there are processes: another's question is next."""

    class Process(explorers._Child):
        async def ask(self, asked: dict[str, Any], content: bytes) -> bytes:
            async with self.lock:
                await asyncio.sleep(0.005)
                return b'{"id": "img_0"}'

    async def use() -> None:
        processes = Explorers()
        monkeypatch.setattr(service.explorers, "ask", processes.ask)
        monkeypatch.setattr(service.pools, "models", Pools().models)
        transport, over = httpx.ASGITransport(alice.app), asyncio.Event()
        statuses = Counter[int]()

        async def ask(web: httpx.AsyncClient, job: str) -> None:
            while not over.is_set():
                answer = await web.get(f"/jobs/{job}/attention/img_0", params={"y": 0.5})
                if answer.status_code != 200:  # another had its place meanwhile
                    answer = await web.post(f"/jobs/{job}/attention/images", content=b"image")
                statuses[answer.status_code] += 1

        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as web:
            web.headers["Authorization"] = "Bearer key-of-alice"
            asking = [asyncio.ensure_future(ask(web, job)) for job in mine for _ in range(2)]
            while sum(statuses.values()) < 8:
                await asyncio.sleep(0.01)
            told = [
                await web.post(path, content=b"image", headers={"Authorization": "Bearer key-of-bob"})
                for path in (f"/jobs/{theirs}/predict", f"/jobs/{theirs}/attention/images")
                for _ in range(2)
            ]
            over.set()
            await asyncio.gather(*asking)
        await processes.close()
        assert [answer.status_code for answer in told] == [200] * 2 + [201] * 2
        assert set(statuses) == {200, 201}

    mine, theirs = [make(Status.SUCCEEDED).id for _ in range(2)], make(Status.SUCCEEDED, owner="bob").id
    monkeypatch.setattr(explorers, "_Child", Process)
    asyncio.run(use())


def test_the_last_place_is_given_to_one_download(
    alice: TestClient,
    service: Service,
    make: Callable[..., Job],
    monkeypatch: pytest.MonkeyPatch,
    refusal: Callable[..., object],
) -> None:
    """Another that took it while the files of this one were looked up goes first; this one is refused by a status."""
    job, downloads, look = make(Status.SUCCEEDED).id, service.pools.downloads, service.artifacts.open
    under_way = ExitStack()

    def late(file: Any) -> Any:
        while downloads.held("alice") < 32:
            under_way.enter_context(downloads.hold("alice"))
        return look(file)

    monkeypatch.setattr(service.artifacts, "open", late)
    for path in ("archive", "checkpoint"):
        with under_way:
            refusal(alice.get(f"/jobs/{job}/{path}"), 429)
    monkeypatch.setattr(service.artifacts, "open", look)
    for ask in (alice.head, alice.get):
        assert ask(f"/jobs/{job}/archive").status_code == 200
    assert downloads.held("alice") == 0


def test_a_place_goes_to_the_tenant_that_has_waited_longest() -> None:
    async def use() -> list[str]:
        rota, log, go = Rota(total=1, share=1), [], asyncio.Event()

        async def work(tenant: str) -> None:
            async with rota.take(tenant):
                log.append(tenant)
                await go.wait()

        calls = [asyncio.ensure_future(work(tenant)) for tenant in ("ann", "ann", "ann", "bob", "eve", "bob")]
        await asyncio.sleep(0)
        go.set()
        await asyncio.gather(*calls)
        assert not (rota._waiting or rota._held) and rota._free == 1
        return log

    assert asyncio.run(use()) == ["ann", "ann", "bob", "eve", "ann", "bob"]


def test_a_tenant_has_its_share_of_the_places_and_no_more() -> None:
    async def use() -> None:
        rota = Rota(total=4, share=2)
        async with rota.take("ann"), rota.take("ann"):
            third = asyncio.ensure_future(rota.take("ann").__aenter__())
            await asyncio.sleep(0)
            async with rota.take("bob"), rota.take("bob"):
                assert not third.done()
        await third

    asyncio.run(use())


@pytest.mark.parametrize("ticks", range(4))
def test_whoever_leaves_keeps_no_place(ticks: int) -> None:
    """Whether it waits still, was given a place a moment ago, or has begun."""

    async def use() -> None:
        rota = Rota(total=1, share=1)

        async def work() -> None:
            async with rota.take("ann"):
                await asyncio.sleep(60)

        async with rota.take("bob"):
            leaves = asyncio.ensure_future(work())
            await asyncio.sleep(0)
            if not ticks:
                leaves.cancel()
        for _ in range(ticks - 1):
            await asyncio.sleep(0)
        leaves.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaves
        async with rota.take("eve"):
            assert rota._held == {"eve": 1}
        assert not (rota._waiting or rota._held) and rota._free == 1

    asyncio.run(use())


def test_nothing_is_kept_of_those_who_have_left() -> None:
    """There may be a tenant for every link, and a name for every tenant that ever was."""

    async def use() -> None:
        pool = Pool("the bucket", share=2, queue=None, seconds=60)
        turns = Turns("reports", total=2, queue=8)

        async def work(tenant: str) -> None:
            async with turns.take(tenant):
                await pool.run(tenant, int)

        await asyncio.gather(*(work(f"tenant {number % 5}") for number in range(20)))
        await asyncio.sleep(0)
        assert not (pool._limiters or pool._held or pool._tasks or turns._own)

    asyncio.run(use())


def test_streams_of_one_tenant_do_not_delay_the_first_message_to_another() -> None:
    """64 whose looks at the database take as long as they like, and one more."""
    silent = threading.Event()

    def slow() -> tuple[list[Job], str | None]:
        silent.wait(60)
        return [], None

    async def still() -> bool:
        return True

    async def first(messages: AsyncIterator[ServerSentEvent]) -> str | None:
        async for message in messages:
            return message.event
        return None

    async def use() -> None:
        streams = Streams(64)
        many = [asyncio.ensure_future(first(streams.watch("ann", slow, still))) for _ in range(64)]
        while streams._threads.borrowed_tokens < THREADS // 2:
            await asyncio.sleep(0.01)
        try:
            async with asyncio.timeout(30):  # else it would wait for all of them
                assert await first(streams.watch("bob", lambda: ([], None), still)) == "jobs"
            assert not any(one.done() for one in many)
        finally:
            silent.set()
        assert await asyncio.gather(*many) == ["jobs"] * 64

    asyncio.run(use())
