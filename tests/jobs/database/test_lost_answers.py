"""The database carries out what a worker asks, and the answer is lost: nothing happens twice or is given up."""

from collections.abc import Callable
from typing import Any

import pytest
from deeds import hold, info, kinds, new
from houses import House, wait_for

from tcnn_jobs.errors import StoreUnavailable
from tcnn_jobs.model.jobs import Beat, Hold, NewEvent, Status
from tcnn_jobs.store import Store


class Unheard(Store):
    """`lost`: how many answers to each of its calls will not arrive."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.lost: dict[str, int] = {}


def _losing(name: str) -> Callable[..., Any]:
    def call(self: Unheard, *arguments: Any, **options: Any) -> Any:
        answer = getattr(Store, name)(self, *arguments, **options)
        if answer is not None and self.lost.get(name, 0):
            self.lost[name] -= 1
            error = StoreUnavailable("the connection broke")
            error.in_doubt = True
            raise error
        return answer

    return call


for _name in ("claim", "heartbeat", "finish", "fail", "cancelled", "hand_back"):
    setattr(Unheard, _name, _losing(_name))


@pytest.fixture
def lossy(house: House) -> Unheard:
    """The house's queue from now on."""
    house.store.close()
    store = house.store = Unheard(house.settings.database)
    return store


def test_a_beat_that_is_repeated_tells_nothing_twice(store: Store) -> None:
    """Whether the earlier call arrived or not, and whatever was told before it; the owner's wish is none of it."""
    claim = hold(store.enqueue(new()) and store.claim("w1"))
    told = tuple(NewEvent(kind=f"e{number}") for number in range(5))

    def beat(first: int, last: int, known: int | None = None) -> Hold:
        return store.heartbeat(info(), [Beat(claim=claim, events=told[first:last], told=known)])[claim]

    beat(0, 2)
    assert beat(0, 2, 0) is beat(0, 3, 0) is Hold.HELD
    store.cancel(claim.job)
    assert beat(3, 5, 3) is beat(3, 5, 3) is Hold.CANCEL
    expected = ["queued", "started", "e0", "e1", "e2", "cancel_requested", "e3", "e4"]
    assert kinds(store, claim.job) == expected
    assert beat(4, 5, 7) is Hold.CANCEL, "an older copy of the database has less than was told"
    assert kinds(store, claim.job) == [*expected, "e4"]
    store.hand_back(claim)
    assert beat(0, 2, 0) is Hold.LOST


def test_events_are_told_once(house: House, lossy: Unheard) -> None:
    job = house.submit()
    worker = house.worker(
        "event('a'); event('a')\nwhile not (here / 'go').exists(): time.sleep(0.01)\nevent('b'); succeed()"
    )
    worker.step()
    attempt = house.home.attempt(job.id, 1)
    wait_for((attempt / "events.jsonl").exists)
    lossy.lost["heartbeat"] = 3
    house.step_until(worker, lambda: "a" in house.kinds(job) and not lossy.lost["heartbeat"])
    lossy.lost["heartbeat"] = 2
    (attempt / "go").touch()
    house.step_until(worker, lambda: house.store.get(job.id).terminal)
    assert kinds(lossy, job.id) == ["queued", "started", "a", "a", "b", "succeeded"]
    assert not lossy.lost["heartbeat"]


def test_a_worker_finds_the_job_whose_claim_it_did_not_hear_of(house: House, lossy: Unheard) -> None:
    job = house.submit(max_attempts=1)
    worker = house.worker("event('a'); succeed()")
    lossy.lost["claim"] = 1
    worker.run(until_empty=True)
    after = lossy.get(job.id)
    assert (after.status, after.attempt, after.claim) == (Status.SUCCEEDED, 1, 1)
    assert kinds(lossy, job.id) == ["queued", "started", "a", "succeeded"]


def test_what_is_carried_out_late_is_found_too(house: House, lossy: Unheard) -> None:
    """The worker has asked what it holds, and that was nothing yet; nothing of what it does hold is taken twice."""
    first = house.submit()
    worker = house.worker("event('a'); succeed()")
    lossy.lost["claim"] = 1
    house.step_until(worker, lambda: lossy.get(first.id).terminal)
    late = house.submit()
    assert hold(Store.claim(lossy, worker.name)).job == late.id
    worker._due["beat"] = 0.0
    house.step_until(worker, lambda: lossy.get(late.id).terminal)
    for job in (first, late):
        assert kinds(lossy, job.id) == ["queued", "started", "a", "succeeded"]


def test_a_worker_that_leaves_hands_back_what_it_did_not_hear_of(house: House, lossy: Unheard) -> None:
    job = house.submit(max_attempts=1)
    worker = house.worker("succeed()")
    lossy.lost["claim"] = 1
    worker.step()
    worker.drain()
    worker.run()
    after = lossy.get(job.id)
    assert (after.status, after.attempt) == (Status.QUEUED, 0)
    assert kinds(lossy, job.id) == ["queued", "started", "handed_back"]


def test_why_a_job_waits_is_told_once(house: House, lossy: Unheard) -> None:
    """Also if the job starts before the worker has heard that this arrived."""
    script = "event('ready')\nwhile not (here.parent / 'go').exists(): time.sleep(0.01)\nsucceed()"
    first = house.submit()
    worker = house.worker(script, slots=2)
    house.step_until(worker, lambda: "ready" in house.kinds(first))
    wide = house.submit(slots=2)
    house.step_until(worker, lambda: worker.busy == 2)
    lossy.lost["heartbeat"] = 1
    house.step_until(worker, lambda: "message" in house.kinds(wide))
    assert not lossy.lost["heartbeat"]
    for job in (first, wide):
        house.home.job(job.id).mkdir(exist_ok=True)
        (house.home.job(job.id) / "go").touch()
    worker._due["beat"] = float("inf")
    house.step_until(worker, lambda: lossy.get(wide.id).terminal)
    assert kinds(lossy, wide.id) == ["queued", "started", "message", "ready", "succeeded"]


SUCCEEDS, FAILS, WAITS = "event('a'); succeed()", "event('a'); sys.exit(1)", "event('a'); wait_for_stop()"


@pytest.mark.parametrize(
    ("call", "script", "end"),
    [
        ("finish", SUCCEEDS, ["succeeded"]),
        ("fail", FAILS, ["failed"]),
        ("cancelled", WAITS, ["ready", "cancel_requested", "cancelled"]),
        ("hand_back", WAITS, ["ready", "handed_back"]),
    ],
)
def test_a_job_ends_once(house: House, lossy: Unheard, call: str, script: str, end: list[str]) -> None:
    job = house.submit(max_attempts=1)
    worker = house.worker(script)
    lossy.lost[call] = 1
    if script is WAITS:
        house.step_until(worker, lambda: "ready" in house.kinds(job))
        (lossy.cancel(job.id) if call == "cancelled" else worker.drain())
    house.step_until(worker, lambda: not (lossy.lost[call] or worker.busy))
    assert kinds(lossy, job.id) == ["queued", "started", "a", *end]
    after = lossy.get(job.id)
    assert (after.terminal, after.attempt) == ((False, 0) if call == "hand_back" else (True, 1))
