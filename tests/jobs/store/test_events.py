"""What happened to a job: numbered without gaps, in the order of commits, whoever writes."""

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
from deeds import OUCH, hold, info, kinds, new
from sampled import ON_POSTGRES, ON_SQLITE

from tcnn_jobs.errors import JobNotFound
from tcnn_jobs.model.jobs import Beat, NewEvent
from tcnn_jobs.store import Store


@ON_SQLITE
def test_replay_from_anywhere(store: Store) -> None:
    """`after` and `limit` page through them; each says what is to be known."""
    job = store.enqueue(new()).id
    claim = hold(store.claim("w1"))
    store.heartbeat(info(), [Beat(claim=claim, events=tuple(NewEvent(kind="epoch", data={"n": n}) for n in range(3)))])
    store.fail(claim, OUCH, retry_after=5)
    events = store.events(job)
    assert [event.kind for event in events] == ["queued", "started", "epoch", "epoch", "epoch", "retrying"]
    assert [event.data.get("n") for event in events[2:5]] == [0, 1, 2]
    assert events[1].data == {"attempt": 1, "worker": "w1"}
    assert events[5].data == {"code": OUCH.code, "message": OUCH.message, "after": 5}
    assert all(before.at <= after.at for before, after in pairwise(events))
    assert store.events(job, after=2, limit=2) == events[2:4]
    assert store.events(job, after=6) == store.events(job, after=10**30) == []
    assert store.events(job, "ann") == events
    assert [store.count_events(job, kind) for kind in ("epoch", "queued", "failed")] == [3, 1, 0]
    with pytest.raises(JobNotFound):
        store.events(job, "bob")
    with pytest.raises(JobNotFound):
        store.count_events("job_of_nobody", "epoch")


@ON_POSTGRES
def test_no_gaps_when_many_write_at_once(store: Store) -> None:
    """Beats, a wish to cancel, and readers that follow by `after`: all see one sequence."""
    job = store.enqueue(new()).id
    claim = hold(store.claim("w1"))

    def beat(number: int) -> None:
        store.heartbeat(info(f"w{number}"), [Beat(claim=claim, events=(NewEvent(kind=f"e{number}"),) * (number % 3))])

    def follow(_: int) -> list[int]:
        seen: list[int] = []
        while not seen or len(seen) < 43:
            seen += [event.seq for event in store.events(job, after=seen[-1] if seen else 0, limit=7)]
        return seen

    with ThreadPoolExecutor(10) as pool:
        readers = [pool.submit(follow, number) for number in range(2)]
        writers = [pool.submit(beat, number) for number in range(40)]
        wish = pool.submit(store.cancel, job)
        for writer in (*writers, wish):
            writer.result(60)
        written = 2 + sum(number % 3 for number in range(40)) + 1
        assert written == 42
        store.cancelled(claim)
        for reader in readers:
            assert reader.result(60) == list(range(1, 44))
    found = kinds(store, job)
    assert sorted(found[2:-1]) == sorted(
        ["cancel_requested"] + [f"e{number}" for number in range(40) for _ in range(number % 3)]
    )
