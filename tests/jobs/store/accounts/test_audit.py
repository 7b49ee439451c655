"""The audit log: a row for every change that somebody asked for, in its transaction, and none else."""

import threading
from collections.abc import Iterator

import pytest
from deeds import RESULT, hold, new
from sampled import ON_SQLITE
from sqlalchemy import update

from tcnn_jobs.database import schema
from tcnn_jobs.database.dialects import now
from tcnn_jobs.errors import QuotaExceeded, WrongState
from tcnn_jobs.model.accounts import NewKey
from tcnn_jobs.model.jobs import IdempotencyKey, Upload
from tcnn_jobs.model.naming import new_id
from tcnn_jobs.model.operation import Actor, acting
from tcnn_jobs.store import Store
from tcnn_jobs.store.accounts import ledger

ANN = Actor(tenant="ann", key="key_1", request="r1")


@pytest.fixture
def ann() -> Iterator[None]:
    """All that the test does is done by ann."""
    with acting(ANN):
        yield


def _log(store: Store) -> list[tuple[str, str]]:
    """Actions and resources, the oldest first."""
    return [(entry.action, entry.resource) for entry in reversed(store.audit()[0])]


@ON_SQLITE
def test_what_an_owner_does(store: Store, ann: None) -> None:
    key = IdempotencyKey("ann", "once", "digest")
    job = store.enqueue(new(), key)
    store.enqueue(new(), key)
    store.cancel(job.id)
    store.resume(job.id)
    store.cancel(job.id)
    store.delete(job.id)
    upload = Upload(id=new_id("ds"), owner="ann", kind="dataset", name="a", path="a", size=1, sha256="0" * 64)
    store.add_upload(upload)
    store.remove_upload(upload.id, "ann")
    assert _log(store) == [
        ("job.submit", job.id), ("job.cancel", job.id), ("job.resume", job.id), ("job.cancel", job.id),
        ("job.delete", job.id), ("dataset.upload", upload.id), ("dataset.delete", upload.id),
    ]  # fmt: skip
    first = store.audit()[0][-1]
    assert (first.by, first.key, first.request, first.tenant) == ("ann", "key_1", "r1", "ann")
    assert first.details == {"kind": "transform"} and first.at == pytest.approx(job.created_at, abs=60)


@ON_SQLITE
def test_what_an_operator_does(store: Store) -> None:
    with acting(Actor(tenant="root", key="command line")):
        key, secret = store.create_key(NewKey(tenant="ann"))
        store.set_quotas("ann", queued=3)
        store.revoke_key(key.id)
    entries, _ = store.audit()
    assert [(one.action, one.resource, one.tenant, one.by, one.key) for one in reversed(entries)] == [
        ("key.create", key.id, "ann", "root", "command line"), ("tenant.set", "ann", "ann", "root", "command line"),
        ("key.revoke", key.id, "ann", "root", "command line"),
    ]  # fmt: skip
    assert entries[1].details == {"queued": 3}
    assert secret not in str(entries)


@ON_SQLITE
def test_what_was_refused_or_nobody_asked_for_is_not_in_it(store: Store) -> None:
    """A worker acts for nobody; a refused change has not happened."""
    store.set_quotas("ann", queued=1)
    store.enqueue(new())
    with acting(ANN):
        with pytest.raises(QuotaExceeded):
            store.enqueue(new())
        with pytest.raises(WrongState):
            store.resume(store.list()[0][0].id)
    store.finish(hold(store.claim("w1")), RESULT)
    assert _log(store) == []


@ON_SQLITE
def test_what_changes_nothing_is_not_in_it(store: Store, ann: None) -> None:
    """Each of these is said twice, and happens once."""
    job, running = store.enqueue(new()), store.enqueue(new(priority=1))
    key, _ = store.create_key(NewKey(tenant="ann"))
    store.claim("w1")
    told = _log(store)
    for _ in range(2):
        store.cancel(job.id)
        store.cancel(running.id)
        store.revoke_key(key.id)
        store.set_quotas("ann", queued=3, gpu_hours=0.1)
        store.set_quotas("ann", queued=3)
        store.set_webhook_secret("ann", "hush")
        store.set_quotas("bob", queued=None)
    assert _log(store) == [
        *told, ("job.cancel", job.id), ("job.cancel", running.id), ("key.revoke", key.id), ("tenant.set", "ann"),
        ("tenant.webhook_secret", "ann"), ("tenant.set", "bob"),
    ]  # fmt: skip


@ON_SQLITE
def test_threads_of_others_are_not_ann(store: Store, ann: None) -> None:
    thread = threading.Thread(target=store.enqueue, args=(new(),))
    thread.start()
    thread.join()
    assert _log(store) == []


def test_pages_and_filters(store: Store) -> None:
    for number in range(5):
        with acting(ANN.model_copy(update={"key": f"key_{number % 2}"})):
            store.enqueue(new(owner="ann" if number < 3 else "bob"))
    whole, more = store.audit()
    assert len(whole) == 5 and not more
    page, more = store.audit(limit=2)
    assert (page, more) == (whole[:2], True)
    assert store.audit(after=page[-1].number, limit=3) == (whole[2:], False)
    assert store.audit(tenant="ann") == (whole[2:], False)
    assert store.audit(key="key_1") == ([whole[1], whole[3]], False)
    assert store.audit(tenant="bob", key="key_1") == ([whole[1]], False)


@ON_SQLITE
def test_it_is_forgotten_after_its_time(store: Store, ann: None) -> None:
    old, young = store.enqueue(new()), store.enqueue(new())
    with store.writing() as connection:
        mine = schema.audit.c.resource == old.id
        connection.execute(update(schema.audit).where(mine).values(at=now() - 11 * 86400))
    store.forget_audit(12)
    assert len(_log(store)) == 2
    store.forget_audit(10)
    assert _log(store) == [("job.submit", young.id)]
    assert store.audit()[0][0].number > 1, "numbers are not given again"


def test_it_is_forgotten_in_portions(store: Store, ann: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A statement for millions of entries would be ended before it has removed one."""
    monkeypatch.setattr(ledger, "PORTION", 2)
    for _ in range(5):
        store.enqueue(new())
    with store.writing() as connection:
        connection.execute(update(schema.audit).values(at=now() - 11 * 86400))
    young = store.enqueue(new())
    more = []
    while not more or more[-1]:
        more.append(store.forget_audit(10))
    assert more == [True, True, False]
    assert _log(store) == [("job.submit", young.id)]
