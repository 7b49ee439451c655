"""A worker that comes back from the dead cannot touch a job that was given to another."""

from collections.abc import Callable

import pytest
from deeds import OUCH, RESULT, hold, info, new
from sampled import ON_SQLITE

from tcnn_jobs.errors import LostClaim
from tcnn_jobs.model.jobs import Beat, Claim, Hold, NewEvent, Progress
from tcnn_jobs.store import Store

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
