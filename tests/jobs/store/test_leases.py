"""Leases: one process at a time has one; who is killed is followed by another when it is over, and not before; and a
worker that comes back from the dead cannot touch a job that was given to another.
"""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from deeds import OUCH, RESULT, Child, hold, info, new
from sampled import ON_SQLITE
from sqlalchemy import text

from tcnn_jobs.errors import LostClaim
from tcnn_jobs.model.jobs import Beat, Claim, Hold, NewEvent, Progress
from tcnn_jobs.store import Store
from tcnn_jobs.store.fleet import HOUSE


def _shift(store: Store, seconds: float) -> None:
    """The database's clock goes back by so much: what it has given lies as much further in the future."""
    with store.writing() as connection:
        connection.execute(text("UPDATE leases SET ends_at = ends_at + :by"), {"by": seconds})


def test_one_at_a_time_has_it_and_renews_it(store: Store) -> None:
    assert store.hold(HOUSE, "w1", 10).mine
    other = store.hold(HOUSE, "w2", 10)
    assert not other.mine and 8 < other.left <= 10
    _shift(store, -5)
    assert store.hold(HOUSE, "w2", 10).left < 6
    assert store.hold(HOUSE, "w1", 10).mine
    assert store.hold(HOUSE, "w2", 10).left > 8
    assert store.hold("another", "w2", 10).mine


@ON_SQLITE
def test_who_leaves_is_followed_at_once(store: Store) -> None:
    assert store.hold(HOUSE, "w1", 60).mine
    store.give_up("w2")
    assert not store.hold(HOUSE, "w2", 60).mine
    store.give_up("w1")
    assert store.hold(HOUSE, "w2", 60).mine
    assert not store.hold(HOUSE, "w1", 60).mine


def test_who_is_killed_is_followed_when_its_lease_is_over(store: Store, url: str) -> None:
    child = Child("keep", url, "w2", 600.0)
    assert child.hear() == "True"
    child.kill()
    assert not store.hold(HOUSE, "w1", 600).mine
    _shift(store, -300)
    assert not store.hold(HOUSE, "w1", 600).mine
    _shift(store, -300)
    assert store.hold(HOUSE, "w1", 600).mine


@pytest.mark.parametrize("lease", [3000.0, 60_000.0, math.inf])
def test_a_lease_that_was_too_long_ends_with_its_holder(store: Store, lease: float) -> None:
    """Who asks with the right one follows a holder that is silent for as long, whatever the row says."""
    store.heartbeat(info("w2").model_copy(update={"lease": lease}), [])
    assert store.hold(HOUSE, "w2", lease).mine
    assert not store.hold(HOUSE, "w1", 60).mine
    _shift(store, -61)
    assert not store.hold(HOUSE, "w1", 60).mine, "it is still heard of"
    with store.writing() as connection:
        connection.execute(text("UPDATE workers SET heartbeat_at = heartbeat_at - 61"))
    assert store.hold(HOUSE, "w1", 60).mine
    assert not store.hold(HOUSE, "w2", lease).mine


@ON_SQLITE
def test_a_clock_that_is_set_back_does_not_keep_it_for_the_dead(store: Store) -> None:
    assert store.hold(HOUSE, "dead", 60).mine
    _shift(store, 3600)
    assert store.hold(HOUSE, "w1", 60).mine


@pytest.mark.parametrize("before", ["free", "over"])
def test_of_many_who_ask_at_once_one_gets_it(store: Store, url: str, before: str) -> None:
    if before == "over":
        store.hold(HOUSE, "dead", 60)
        _shift(store, -61)

    def ask(name: str) -> bool:
        own = Store(url)
        try:
            return own.hold(HOUSE, name, 60).mine
        finally:
            own.close()

    with ThreadPoolExecutor(6) as pool:
        assert sorted(pool.map(ask, [f"w{number}" for number in range(6)])) == [False] * 5 + [True]


WRITES: dict[str, Callable[[Store, Claim], object]] = {
    "finish": lambda store, claim: store.finish(claim, RESULT),
    "fail": lambda store, claim: store.fail(claim, OUCH),
    "retry": lambda store, claim: store.fail(claim, OUCH, retry_after=0),
    "cancelled": lambda store, claim: store.cancelled(claim),
    "hand_back": lambda store, claim: store.hand_back(claim),
}


def _beat(claim: Claim) -> Beat:
    return Beat(claim=claim, progress=Progress(phase="train", percent=50), events=(NewEvent(kind="epoch"),))


def _taken_away(store: Store, again: str) -> tuple[Claim, Claim]:
    """An old claim and the newer one of the same job."""
    store.enqueue(new())
    old = hold(store.claim("frozen"))
    store.reap(-1)
    return old, hold(store.claim(again))


@pytest.mark.parametrize("again", ["other", "frozen"])  # the same worker's own later claim is another claim, too
def test_an_old_claim_changes_nothing(store: Store, again: str) -> None:
    """While the job runs elsewhere, and after it has ended there."""
    old, newer = _taken_away(store, again)
    assert old.number < newer.number
    for _ in range(2):
        before, events = store.get(newer.job), store.events(newer.job)
        for name, write in WRITES.items():
            with pytest.raises(LostClaim, match=rf"{newer.job}: .* claim 1 of frozen changes nothing"):
                write(store, old)
            assert store.get(newer.job) == before, name
        assert store.heartbeat(info("frozen"), [_beat(old)]) == {old: Hold.LOST}
        assert store.get(newer.job) == before
        assert store.events(newer.job) == events
        if not before.terminal:
            store.finish(newer, RESULT)


@ON_SQLITE
def test_claims_that_never_were(store: Store) -> None:
    """Another worker's, a future one, a deleted job's, a queued job's."""
    store.enqueue(new())
    held = hold(store.claim("w1"))
    store.enqueue(new(owner="bob"))
    queued = store.list("bob")[0][0]
    claims = [
        held.model_copy(update={"worker": "w2"}),
        held.model_copy(update={"number": 2}),
        held.model_copy(update={"job": "job_" + "0" * 24}),
        Claim(job=queued.id, worker="w1", number=0),
    ]
    for claim in claims:
        for write in WRITES.values():
            with pytest.raises(LostClaim):
                write(store, claim)
        assert store.heartbeat(info(), [_beat(claim)]) == {claim: Hold.LOST}
    now = store.get(queued.id)  # of the workers that were heard of meanwhile it may wait for another reason
    assert now.model_copy(update={"waiting_for": queued.waiting_for}) == queued
    assert store.heartbeat(info(), [_beat(held)]) == {held: Hold.HELD}


def test_one_beat_of_many_jobs(store: Store) -> None:
    """Each job hears its own word: held, cancel, lost; only those that are held are written."""
    ids = [store.enqueue(new()).id for _ in range(3)]
    claims = [hold(store.claim("w1")) for _ in ids]
    store.cancel(ids[1])
    store.fail(claims[2], OUCH)
    before = store.get(ids[0])
    heard = store.heartbeat(info(), [_beat(claim) for claim in claims])
    assert heard == dict(zip(claims, (Hold.HELD, Hold.CANCEL, Hold.LOST), strict=True))
    held, asked, lost = (store.get(job) for job in ids)
    assert held.progress == asked.progress == Progress(phase="train", percent=50) and lost.progress is None
    assert held.heartbeat_at is not None and before.heartbeat_at is not None
    assert held.heartbeat_at > before.heartbeat_at
    assert store.heartbeat(info(), [Beat(claim=claims[0])]) == {claims[0]: Hold.HELD}
    assert store.get(ids[0]).progress == held.progress  # a beat without progress leaves what was said before
    assert [event.kind for event in store.events(ids[0])][-1] == "epoch"


@ON_SQLITE
def test_saying_twice_that_a_job_is_done(store: Store) -> None:
    """A worker that did not hear the answer repeats its call: same job, nothing twice; another result is refused."""
    store.enqueue(new(webhook="https://example.org/hook"))
    claim = hold(store.claim("w1"))
    result = RESULT.model_copy(update={"metrics": {"top1": 0.5, "loss": float("nan")}})
    done = store.finish(claim, result)
    assert done.result is not None and done.result.metrics == {"top1": 0.5, "loss": None}
    assert store.finish(claim, result) == done
    with pytest.raises(LostClaim):
        store.finish(claim, RESULT)
    assert len(store.events(claim.job)) == 3 and len(store.due_deliveries()) == 1
    assert store.statistics().finished["transform"]["succeeded"][0] == 1
