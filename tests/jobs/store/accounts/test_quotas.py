"""Quotas of tenants: what is refused, what waits, and that two at once do not pass together."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from alembic import command
from deeds import OUCH, RESULT, hold, new
from sampled import ON_POSTGRES, ON_SQLITE
from sqlalchemy import delete, insert, text, update

from tcnn_jobs.database import schema
from tcnn_jobs.database.dialects import now
from tcnn_jobs.database.upgrade import alembic_config
from tcnn_jobs.errors import BytesExceeded, QuotaExceeded
from tcnn_jobs.model.accounts import Quotas, Use
from tcnn_jobs.model.jobs import Artifact, IdempotencyKey, Job, Result, Upload
from tcnn_jobs.model.naming import new_id
from tcnn_jobs.store import Store
from tcnn_jobs.store.accounts.quotas import DAY, HOUR


def _use(store: Store, tenant: str = "ann") -> Use:
    (found,) = store.tenants(tenant)
    return found.use


def _dataset(store: Store, size: int, **details: int) -> Upload:
    upload = Upload(id=new_id("ds"), owner="ann", kind="dataset", name="a.zip", path="a", size=size, sha256="0" * 64,
                    details=details)  # fmt: skip
    return store.add_upload(upload)


def _ran(store: Store, seconds: float) -> Job:
    """A job of ann's that is taken, and said to have been for so long."""
    store.enqueue(new())
    taken = store.claim("w1")
    assert taken is not None
    with store.writing() as connection:
        connection.execute(update(schema.jobs).where(schema.jobs.c.id == taken.id).values(started_at=now() - seconds))
    return taken


@ON_SQLITE
def test_quotas_are_set_one_by_one(store: Store) -> None:
    """What is not named stays; None takes one away; a tenant may be set before it has done anything."""
    made = store.set_quotas("ann", queued=2, stored=10**12)
    assert made.quotas == Quotas(queued=2, stored=10**12) and made.use == Use()
    assert store.set_quotas("ann", queued=None, gpu_hours=0.5).quotas == Quotas(gpu_hours=0.5, stored=10**12)
    store.enqueue(new(owner="bob"))
    assert [(one.name, one.quotas) for one in store.tenants()] == [("ann", made.quotas.model_copy(
        update={"queued": None, "gpu_hours": 0.5})), ("bob", Quotas())]  # fmt: skip
    assert store.tenants("nobody") == []


@ON_SQLITE
def test_queued_jobs(store: Store) -> None:
    """One too many is refused, and leaves nothing behind; there is room again when one has started or is cancelled."""
    store.set_quotas("ann", queued=2)
    first, _ = store.enqueue(new()), store.enqueue(new())
    key = IdempotencyKey("ann", "again", "digest")
    with pytest.raises(
        QuotaExceeded, match="expected at most 2 queued jobs of yours, found 2 already; wait"
    ) as refused:
        store.enqueue(new(), key)
    assert refused.value.retry_after and not isinstance(refused.value, BytesExceeded)
    assert store.replay(key) is None
    assert store.enqueue(new(owner="bob")).owner == "bob"
    store.cancel(first.id)
    made = store.enqueue(new(), key)
    assert store.enqueue(new(), key).id == made.id, "what was accepted is not refused when it is asked for again"
    with pytest.raises(QuotaExceeded):
        store.resume(first.id)
    assert store.get(first.id).status == "cancelled"
    store.claim("w1", slots=1)
    store.claim("w1", slots=1)
    assert store.resume(first.id).status == "queued"
    assert _use(store).queued == 2


@ON_POSTGRES
def test_two_at_once_do_not_pass_together(store: Store) -> None:
    store.set_quotas("ann", queued=3)

    def submit(number: int) -> bool:
        try:
            store.enqueue(new())
        except QuotaExceeded:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(submit, range(16))) == 3
    assert _use(store).queued == 3


@ON_SQLITE
def test_running_jobs_are_held_in_the_claim(store: Store) -> None:
    """Others pass, a lower priority too; the tenant's jobs say why they wait."""
    store.set_quotas("ann", running=1)
    for _ in range(3):
        store.enqueue(new(priority=5))
    other = store.enqueue(new(owner="bob"))
    claim = hold(store.claim("w1"))
    taken = store.claim("w1")
    assert taken is not None and taken.id == other.id
    assert store.claim("w1") is None
    waiting = store.list("ann", status=None)[0][0]
    assert waiting.waiting_for == "as many of your jobs run as may: 1"
    store.finish(claim, RESULT)
    again = store.claim("w1")
    assert again is not None and again.owner == "ann"
    store.set_quotas("ann", running=None)
    assert store.claim("w1") is not None
    assert _use(store).running == 2


@ON_POSTGRES
def test_workers_at_once_do_not_start_more_than_may_run(store: Store) -> None:
    store.set_quotas("ann", running=2)
    for _ in range(12):
        store.enqueue(new())
    with ThreadPoolExecutor(8) as pool:
        taken = [job for job in pool.map(store.claim, (f"w{number}" for number in range(24))) if job]
    assert len(taken) == _use(store).running == 2


ENDS: dict[str, Callable[[Store, Job], object]] = {
    "succeeded": lambda store, job: store.finish(hold(job), RESULT),
    "failed": lambda store, job: store.fail(hold(job), OUCH),
    "retried": lambda store, job: store.fail(hold(job), OUCH, retry_after=100.0),
    "handed back": lambda store, job: store.hand_back(hold(job)),
    "lost": lambda store, job: store.reap(-1),
}


@ON_SQLITE
@pytest.mark.parametrize("end", ENDS)
def test_gpu_hours_of_every_attempt_count(store: Store, end: str) -> None:
    job = _ran(store, HOUR)
    assert _use(store).gpu_hours == pytest.approx(1.0, abs=0.01), "while it runs"
    ENDS[end](store, job)
    assert _use(store).gpu_hours == pytest.approx(1.0, abs=0.01)
    if end == "succeeded":
        store.delete(job.id)
        assert _use(store).gpu_hours == pytest.approx(1.0, abs=0.01), "deleting a job gives nothing back"


def test_used_gpu_hours_hold_up_what_is_new_and_what_waits(store: Store) -> None:
    store.finish(hold(_ran(store, 2 * HOUR)), RESULT)
    waits = store.enqueue(new())
    store.set_quotas("ann", gpu_hours=1.5)
    with pytest.raises(QuotaExceeded, match=r"have used 2\.0 GPU hours in 30 days, and may use 1\.5") as refused:
        store.enqueue(new())
    assert refused.value.retry_after is not None and 29 * DAY <= refused.value.retry_after <= 30 * DAY
    assert store.claim("w1") is None
    assert store.get(waits.id).waiting_for == "your jobs have used the 1.5 GPU hours that they may in 30 days"
    with store.writing() as connection:
        connection.execute(update(schema.usage).values(day=schema.usage.c.day - 29))
    assert _use(store).gpu_hours == pytest.approx(2.0, abs=0.01), "the last day that counts"
    with store.writing() as connection:
        connection.execute(update(schema.usage).values(day=schema.usage.c.day - 1))
    assert _use(store).gpu_hours == 0.0
    assert store.claim("w1") is not None


@ON_SQLITE
def test_all_gpu_hours_used_are_too_many_for_another_job(store: Store) -> None:
    """To the second, now and when a day counts no more: then the day after it must go, too."""
    today = int(time.time() // DAY)
    store.finish(hold(_ran(store, HOUR)), RESULT)
    store.set_quotas("ann", gpu_hours=1.5)
    for days, expected in (([10, 5], 25), ([10], 20)):
        with store.writing() as connection:
            connection.execute(delete(schema.usage))
            rows = [{"tenant": "ann", "day": today - day, "shard": 0, "seconds": 1.5 * HOUR} for day in days]
            connection.execute(insert(schema.usage), rows)
        with pytest.raises(QuotaExceeded) as refused:
            store.enqueue(new())
        assert refused.value.retry_after is not None
        assert (expected - 1) * DAY <= refused.value.retry_after <= (expected + 1) * DAY


@ON_SQLITE
def test_wide_jobs_use_as_many_hours_as_they_have_slots(store: Store) -> None:
    store.enqueue(new(slots=4))
    job = store.claim("w1", slots=4)
    assert job is not None
    with store.writing() as connection:
        connection.execute(update(schema.jobs).values(started_at=now() - HOUR))
    store.finish(hold(job), RESULT)
    assert _use(store).gpu_hours == pytest.approx(4.0, abs=0.01)


@ON_SQLITE
def test_days_that_count_no_more_are_forgotten(store: Store) -> None:
    store.finish(hold(_ran(store, HOUR)), RESULT)
    store.forget_use()
    assert _use(store).gpu_hours > 0
    with store.writing() as connection:
        connection.execute(update(schema.usage).values(day=schema.usage.c.day - 31))
    store.forget_use()
    with store.reading() as connection:
        assert connection.execute(schema.usage.select()).all() == []


def test_bytes_of_uploads_and_results(store: Store) -> None:
    """As they lie on disk; what is deleted makes room."""
    data = _dataset(store, 10, bytes=600)
    store.enqueue(new())
    files = tuple(Artifact(name=name, path=f"a/1/{name}", size=150, sha256="0" * 64) for name in "ab")
    job = store.finish(hold(store.claim("w1")), Result(checkpoint=files[0], files=files))
    assert _use(store).stored == 900
    store.set_quotas("ann", stored=1000)
    with pytest.raises(BytesExceeded, match="you store 900 bytes and these are 101, and may store 1,000; delete"):
        _dataset(store, 101)
    assert store.uploads("ann", "dataset")[0] == [data]
    store.check_room("ann")
    store.enqueue(new())
    _dataset(store, 100)
    for refused in (lambda: store.check_room("ann"), lambda: store.enqueue(new()), lambda: _dataset(store, 1)):
        with pytest.raises(BytesExceeded):
            refused()
    store.delete(job.id)
    store.remove_upload(data.id)
    assert _use(store).stored == 100
    store.enqueue(new())


@ON_SQLITE
def test_a_result_is_kept_whatever_it_takes(store: Store) -> None:
    store.enqueue(new())
    claim = hold(store.claim("w1"))
    store.set_quotas("ann", stored=1)
    assert store.finish(claim, RESULT).status == "succeeded"
    assert _use(store).stored == 7


@ON_SQLITE
def test_what_was_there_before_quotas_counts(store: Store) -> None:
    """Uploads and results of a database of an older version."""
    store.finish(hold(_ran(store, 1.0)), RESULT.model_copy(update={"files": (RESULT.checkpoint,)}))
    _dataset(store, 5)
    with store.writing() as connection:
        command.downgrade(alembic_config(connection), "0005")
    store.migrate()
    assert _use(store).stored == 12
    with store.reading() as connection:
        assert connection.scalar(text("SELECT started_at FROM tenants")) > time.time() - 1000
