"""Jobs that wait for others: in order, never for ever, and ended with what they wait for; what the one makes the
next one finds.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from deeds import OUCH, RESULT, Child, hold, kinds, new
from houses import House
from sampled import ON_POSTGRES, ON_SQLITE, sampled

from tcnn_jobs.errors import WrongState
from tcnn_jobs.model.jobs import Job, Kind, Status
from tcnn_jobs.store import Store


def _after(store: Store, *sources: Job, **options: object) -> Job:
    request = {"job": sources[0].id, "depends_on": [source.id for source in sources[1:]]}
    return store.enqueue(new(kind=Kind.FINETUNE, request=request, **options))


def test_a_chain_is_done_in_its_order(store: Store) -> None:
    first = store.enqueue(new())
    second = _after(store, first, priority=100)
    third = _after(store, second, priority=100)
    other = store.enqueue(new(priority=-1))
    for job, source in ((second, first), (third, second)):
        assert store.get(job.id).waiting_for == f"waits for {source.id}"
    done = []
    while (job := store.claim("w1")) is not None:
        done.append(job.id)
        store.finish(hold(job), RESULT)
    assert done == [first.id, second.id, third.id, other.id]
    assert store.get(third.id).waiting_for is None


@ON_SQLITE
def test_all_that_it_needs_is_waited_for(store: Store) -> None:
    made = store.enqueue(new())
    store.finish(hold(store.claim("w1")), RESULT)
    one, two = store.enqueue(new()), store.enqueue(new())
    job = _after(store, made, one, two)
    assert job.waiting_for == f"waits for {' and '.join(sorted((one.id, two.id)))}"
    for source in (one, two):
        taken = store.claim("w1")
        assert taken is not None and taken.id == source.id
        if source is two:
            assert store.claim("w2") is None
        store.finish(hold(taken), RESULT)
    taken = store.claim("w1")
    assert taken is not None and taken.id == job.id


@ON_SQLITE
def test_its_place_is_behind_all_that_could_start(store: Store) -> None:
    """And it is not old: its age counts from when it could have been taken."""
    source = store.enqueue(new())
    job = _after(store, source)
    later = store.enqueue(new())
    assert [store.get(one.id).queue_position for one in (source, later, job)] == [0, 1, 2]
    for one in (source, later):
        assert store.claim("w1") is not None, one.id
    assert store.get(job.id).queue_position == 0
    found = store.statistics()
    assert (found.queued, found.blocked, found.oldest_queued_seconds) == ({}, {"finetune": 1}, 0)


def _fail(store: Store, job: Job) -> object:
    return store.fail(hold(store.claim("w1")), OUCH)


def _lose(store: Store, job: Job) -> object:
    assert store.claim("w1") is not None
    return store.reap(-1)


ENDS: dict[str, Callable[[Store, Job], object]] = {
    "has failed": _fail,
    "was cancelled": lambda store, job: store.cancel(job.id),
}


@ON_SQLITE
@pytest.mark.parametrize("end", ENDS)
def test_it_fails_with_its_source_and_can_be_resumed_after_it(store: Store, end: str) -> None:
    source = store.enqueue(new())
    job = _after(store, source, webhook="http://127.0.0.1/hook")
    last = _after(store, job)
    ENDS[end](store, source)
    found = store.get(job.id)
    assert found.status is Status.FAILED and found.error is not None
    assert (found.error.code, found.attempt) == ("source_failed", 0)
    assert found.error.message == f"{source.id} {end}, and this job needs it; resume that one, then this one"
    assert kinds(store, job.id) == ["queued", "failed"]
    error = store.get(last.id).error
    assert error is not None and error.message.startswith(f"{job.id} has failed, and this job needs it")
    assert [call.body["type"] for call in store.due_deliveries()] == ["job.failed"]
    with pytest.raises(WrongState, match=f"{source.id}: {end}, and {job.id} needs it; resume that one first"):
        store.resume(job.id)
    with pytest.raises(WrongState, match=end):
        _after(store, source)
    store.resume(source.id)
    assert store.resume(job.id).waiting_for == f"waits for {source.id}"
    store.finish(hold(store.claim("w1")), RESULT)
    taken = store.claim("w1")
    assert taken is not None and (taken.id, taken.error) == (job.id, None)


@ON_SQLITE
def test_a_source_that_is_tried_again_is_waited_for(store: Store) -> None:
    source = store.enqueue(new(max_attempts=9))
    job = _after(store, source)
    store.fail(hold(store.claim("w1")), OUCH, retry_after=0)
    store.hand_back(hold(store.claim("w1")))
    _lose(store, source)
    store.finish(hold(store.claim("w1")), RESULT)
    taken = store.claim("w1")
    assert taken is not None and taken.id == job.id


@ON_SQLITE
def test_the_last_worker_lost_ends_them_too(store: Store) -> None:
    source = store.enqueue(new(max_attempts=1))
    job = _after(store, source)
    _lose(store, source)
    assert store.get(job.id).status is Status.FAILED


@ON_SQLITE
def test_a_source_stays_while_somebody_waits_for_it(store: Store) -> None:
    source = store.enqueue(new())
    job = _after(store, source)
    store.finish(hold(store.claim("w1")), RESULT)
    with pytest.raises(WrongState, match=f"{job.id} is queued and needs it"):
        store.delete(source.id)
    assert store.expired(None) == []
    store.cancel(job.id)
    store.delete(source.id)


@ON_SQLITE
def test_one_that_was_cancelled_while_it_waited_is_left_alone(store: Store) -> None:
    source = store.enqueue(new())
    job = _after(store, source)
    store.cancel(job.id)
    store.finish(hold(store.claim("w1")), RESULT)
    assert store.get(job.id).status is Status.CANCELLED
    store.resume(job.id)
    assert store.claim("w1") is not None


@ON_SQLITE
def test_another_tenants_job_is_not_waited_for(store: Store) -> None:
    """Nor does the refusal say anything of how that one fares."""
    theirs = store.enqueue(new(owner="bob"))
    for _ in range(2):
        with pytest.raises(WrongState, match=f"^{theirs.id}: is no longer there, and this job needs it"):
            _after(store, theirs)
        store.cancel(theirs.id)


@ON_POSTGRES
@pytest.mark.parametrize("end", sampled(["failed", "succeeded"], ["failed"]))
def test_a_race_of_ending_and_naming(store: Store, end: str) -> None:
    """Whoever names a job that ends at this moment finds it ended, or ends or starts with it: nobody waits for ever."""
    for _ in range(8):
        source = store.enqueue(new())
        claim = hold(store.claim("w1"))
        with ThreadPoolExecutor(2) as pool:
            named = pool.submit(_after, store, source)
            store.finish(claim, RESULT) if end == "succeeded" else store.fail(claim, OUCH)
        if named.exception() is not None:
            assert end == "failed" and isinstance(named.exception(), WrongState)
        elif end == "failed":
            assert store.get(named.result().id).status is Status.FAILED
        else:
            taken = store.claim("w1")
            assert taken is not None and taken.id == named.result().id
            store.finish(hold(taken), RESULT)
    assert store.list(status=Status.QUEUED) == ([], None)


@ON_SQLITE
def test_a_long_chain_ends_with_its_first(store: Store) -> None:
    last = first = store.enqueue(new())
    for _ in range(60):
        last = store.enqueue(new(request={"job": last.id}))
    store.cancel(first.id)
    assert store.get(last.id).status is Status.FAILED
    assert store.list(status=Status.QUEUED) == ([], None)


@ON_POSTGRES
def test_a_worker_that_dies_between_an_end_and_those_that_wait_for_it_has_done_neither(store: Store, url: str) -> None:
    source = store.enqueue(new())
    job = _after(store, source)
    child = Child("die", url, "w2", "needs", "met")
    assert child.rest() == ["dying"]
    assert child.exitcode == -9
    assert store.get(source.id).status is Status.RUNNING
    assert store.get(job.id).waiting_for == f"waits for {source.id}"


SCRIPT = """
told = json.loads((here / "assignment.json").read_text())
if told["kind"] != "transform": event("found", text=Path(told["paths"]["source"]).read_text())
made = here / "converted.safetensors"
made.write_text(f"of {told['kind']}")
name = f"{told['job']}/{told['claim']}/{made.name}"
file = {"name": made.name, "path": name, "size": made.stat().st_size, "sha256": "0" * 64}
outcome(result={"checkpoint": file, "files": [file]})
"""


def test_what_one_makes_the_next_one_finds(house: House) -> None:
    first = house.submit()
    second = house.submit(kind=Kind.FINETUNE, request={"job": first.id, "dataset": "x"}, priority=5)
    third = house.submit(kind=Kind.EVALUATE, request={"job": second.id, "dataset": "x"}, priority=9)
    house.worker(SCRIPT, slots=3).run(until_empty=True)
    for job, text in ((second, "of transform"), (third, "of finetune")):
        assert house.store.get(job.id).status is Status.SUCCEEDED, house.store.get(job.id).error
        assert [event.data["text"] for event in house.store.events(job.id) if event.kind == "found"] == [text]


def test_nothing_of_a_job_is_begun_whose_source_fails(house: House) -> None:
    first = house.submit(max_attempts=2)
    second = house.submit(kind=Kind.FINETUNE, request={"job": first.id, "dataset": "x"})
    house.worker("sys.exit(1)", slots=2).run(until_empty=True)
    after = house.store.get(second.id)
    assert (after.status, after.claim) == (Status.FAILED, 0)
    assert house.kinds(first).count("retrying") == 1
    assert not house.home.job(second.id).exists()
