"""PostgreSQL: all transactions lock rows in one order, so that no two wait for each other until one is refused."""

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from deeds import OUCH, RESULT, hold, info, new

from tcnn.errors import RequestError
from tcnn_jobs.database.schema import SHARDS
from tcnn_jobs.errors import LostClaim
from tcnn_jobs.model.jobs import Beat, Claim, IdempotencyKey, Job, NewEvent
from tcnn_jobs.model.naming import Labels
from tcnn_jobs.store import Store

pytestmark = pytest.mark.parametrize("url", ["postgres"], indirect=True)
Call = Callable[[], object]
ROUNDS = 8


def at_once(*calls: Call) -> list[BaseException]:
    """What went wrong with calls that begin together, but for what is refused for a reason of the queue."""
    start = threading.Barrier(len(calls))

    def one(call: Call) -> object:
        start.wait(30)
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        ended = [future.exception() for future in [pool.submit(one, call) for call in calls]]
    return [error for error in ended if error is not None and not isinstance(error, RequestError)]


def behind(store: Store, *sources: Job) -> Job:
    return store.enqueue(new(request={"depends_on": [source.id for source in sources]}))


def _resumed_and_named(store: Store) -> list[Call]:
    job = store.enqueue(new())
    store.cancel(job.id)
    return [lambda: store.resume(job.id), lambda: behind(store, store.enqueue(new()), job)]


def _ends_of_one_kind(store: Store) -> list[Call]:
    """A job and one that waits for it are counted in the same row."""
    source = store.enqueue(new())
    for _ in range(SHARDS - 1):
        store.enqueue(new())
    waits = behind(store, source)
    return [lambda: store.cancel(source.id), lambda: store.cancel(waits.id)]


def _ends_with_several(store: Store) -> list[Call]:
    """The last job waits for the first and, by way of others, for the one in the middle."""
    first = store.enqueue(new())
    second = behind(store, first)
    middle = behind(store, second)
    behind(store, first, middle)
    return [lambda: store.cancel(first.id), lambda: store.cancel(middle.id)]


def _ends_and_names(store: Store) -> list[Call]:
    """Ids are no order of jobs: every other time the source has the greater one."""
    source = store.enqueue(new())
    waits = behind(store, source)
    third = behind(store, waits)
    return [lambda: store.cancel(source.id), lambda: behind(store, third, waits, source)]


def _one_key(store: Store) -> list[Call]:
    """A key that two requests use, of which one names the other's job."""
    job = store.enqueue(new())
    key, other = (IdempotencyKey("ann", job.id, digest) for digest in ("1", "2"))
    named = new(request={"job": job.id})
    return [lambda: store.label(job.id, "ann", Labels(name="a"), key), lambda: store.enqueue(named, other)]


@pytest.mark.parametrize(
    "calls", [_resumed_and_named, _ends_of_one_kind, _ends_with_several, _ends_and_names, _one_key]
)
def test_no_two_wait_for_each_other(store: Store, calls: Callable[[Store], list[Call]]) -> None:
    store.set_quotas("ann", queued=100_000)
    for _ in range(ROUNDS):
        assert at_once(*calls(store)) == []


@pytest.mark.slow
def test_nor_any_of_many(store: Store) -> None:
    """Owners and workers do at random what they may, to few jobs."""
    store.set_quotas("ann", queued=60, running=8)
    ids, until = [store.enqueue(new()).id for _ in range(5)], time.monotonic() + 8

    def anybody(seed: int) -> int:
        chance, claims, done = random.Random(seed), list[Claim](), 0

        def job() -> str:
            return chance.choice(ids[-14:])

        def key() -> IdempotencyKey | None:
            return chance.choice([*[None] * 4, IdempotencyKey("ann", f"key-{chance.randrange(12)}", "digest")])

        def submit() -> None:
            sources = [job() for _ in range(chance.randrange(4))]
            ids.append(store.enqueue(new(request={"depends_on": sources}), key()).id)

        def claim() -> None:
            if (taken := store.claim(f"w{seed}")) is not None:
                claims.append(hold(taken))

        def end() -> None:
            if claims:
                claim = claims.pop(chance.randrange(len(claims)))
                if chance.random() < 0.5:
                    store.finish(claim, RESULT)
                else:
                    store.fail(claim, OUCH, chance.choice([None, 0.0]))

        def beat() -> None:
            told = chance.choice([None, 0])
            beats = [Beat(claim=claim, events=(NewEvent(kind="epoch"),), told=told) for claim in claims]
            store.heartbeat(info(f"w{seed}"), beats)

        deeds: list[tuple[Call, int]] = [
            (submit, 6), (claim, 5), (end, 5), (beat, 3), (lambda: store.cancel(job(), None, key()), 3),
            (lambda: store.resume(job(), None, key()), 4), (lambda: store.delete(job()), 1),
            (lambda: store.label(job(), None, Labels(name=str(seed)), key()), 1), (lambda: store.reap(-1), 1),
            (lambda: store.create_share(job(), "ann", 60, key()), 1), (lambda: store.set_quotas("ann", queued=50), 1),
        ]  # fmt: skip
        calls, weights = zip(*deeds, strict=True)
        while time.monotonic() < until:
            try:
                chance.choices(calls, weights)[0]()
                done += 1
            except (RequestError, LostClaim):
                continue
        return done

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(anybody, range(8))) > 200
