"""What a job needs that has not ended stays."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from alembic import command
from deeds import OUCH, RESULT, hold, new
from sampled import ON_POSTGRES, ON_SQLITE
from sqlalchemy import text

from tcnn_jobs.database.upgrade import alembic_config
from tcnn_jobs.errors import WrongState
from tcnn_jobs.model.jobs import IdempotencyKey, Job, Upload
from tcnn_jobs.model.naming import new_id
from tcnn_jobs.store import Store
from tcnn_jobs.store.needs import named

GONE = "is no longer there, and this job needs it"


def _source(store: Store) -> Job:
    store.enqueue(new())
    return store.finish(hold(store.claim("w1")), RESULT)


def _dataset(store: Store) -> str:
    upload = Upload(id=new_id("ds"), owner="ann", kind="dataset", name="a.zip", path="a", size=1, sha256="0" * 64)
    return store.add_upload(upload).id


def test_what_a_request_names() -> None:
    """Ids at any place, each once; nothing else, and no depth is too much."""
    deep: object = "ds_0123456789abcdef"
    for _ in range(5000):
        deep = [deep]
    request = {"job": "job_0123456789", "model": "job_", "against": [{"checkpoint": "ckpt_01234567"}] * 2, "x": deep}
    assert named(request) == ["ckpt_01234567", "ds_0123456789abcdef", "job_0123456789"]


ENDS: dict[str, Callable[[Store, Job], object]] = {
    "cancelled": lambda store, job: store.cancel(job.id),
    "failed": lambda store, job: store.fail(hold(store.claim("w1")), OUCH),
    "succeeded": lambda store, job: store.finish(hold(store.claim("w1")), RESULT),
}


@ON_SQLITE
@pytest.mark.parametrize("end", ENDS)
def test_neither_a_source_nor_a_data_set_is_deleted_under_a_job(store: Store, end: str) -> None:
    """Queued, running, resumed: refused, and named. Once the job has ended both can go."""
    source, dataset = _source(store), _dataset(store)
    job = store.enqueue(new(request={"job": source.id, "dataset": dataset}))

    def both_are_kept(status: str) -> None:
        for call in (lambda: store.delete(source.id), lambda: store.remove_upload(dataset)):
            with pytest.raises(WrongState, match=f"{job.id} is {status} and needs it; cancel the job first"):
                call()
        assert store.expired(None) == [] and store.get(source.id) == source

    both_are_kept("queued")
    ENDS[end](store, job)
    if end != "succeeded":
        store.resume(job.id)
        both_are_kept("queued")
        ENDS[end](store, job)
    assert source.id in {found.id for found in store.expired(None)}
    store.delete(source.id)
    assert store.remove_upload(dataset).id == dataset


@ON_SQLITE
def test_another_tenants_things_are_not_there(store: Store) -> None:
    """Whatever id is written: it is refused as one that is gone, and keeps nothing."""
    source, dataset = _source(store), _dataset(store)
    for request in ({"job": source.id}, {"dataset": dataset}, {"depends_on": [source.id]}):
        with pytest.raises(WrongState, match=GONE):
            store.enqueue(new(owner="bob", request=request))
    store.delete(source.id)
    store.remove_upload(dataset)
    assert store.list()[0] == []


@ON_SQLITE
@pytest.mark.parametrize("request_", [
    lambda id: {"dataset": id}, lambda id: {"checkpoint": id, "dataset": "x"}, lambda id: {"finetune": {"val": id}},
    lambda id: {"model": "resnet18", "against": [{"model": "resnet18"}, {"model": "resnet18", "weights": id}]},
], ids=["dataset", "checkpoint", "val", "against"])  # fmt: skip
def test_without_its_upload_it_is_neither_queued_nor_queued_again(
    store: Store, request_: Callable[[str], dict[str, object]]
) -> None:
    """It stays what it was, and the same request is refused; its key is as if it had not been asked."""
    dataset = _dataset(store)
    job = store.cancel(store.enqueue(new(request=request_(dataset))).id)
    store.remove_upload(dataset)
    key = IdempotencyKey("ann", "again", "digest")
    for call in (lambda: store.resume(job.id, "ann", key), lambda: store.enqueue(new(request=request_(dataset)), key)):
        with pytest.raises(WrongState, match=f"{dataset}: {GONE}"):
            call()
    assert store.get(job.id) == job and len(store.list()[0]) == 1 and store.replay(key) is None


@ON_SQLITE
def test_what_was_only_waited_for_may_go_once_it_has_succeeded_for_a_job_that_began(store: Store) -> None:
    """One that never began cannot know how it ended; and a model that is gone cannot be read."""
    awaited, cancelled, read = _source(store), store.cancel(store.enqueue(new()).id), _source(store)
    with pytest.raises(WrongState, match="was cancelled"):
        store.enqueue(new(request={"depends_on": [cancelled.id]}))
    waits = store.enqueue(new(request={"depends_on": [awaited.id]}))
    reads = store.enqueue(new(request={"job": read.id, "depends_on": [read.id]}))
    for job in (waits, reads):
        assert store.fail(hold(store.claim("w1")), OUCH).id == job.id
    never = store.cancel(store.enqueue(new(request={"depends_on": [awaited.id]})).id)
    for source in (awaited, cancelled, read):
        store.delete(source.id)
    assert store.resume(waits.id).status == "queued"
    taken = store.claim("w1")
    assert taken is not None and taken.id == waits.id
    for job in (reads, never):
        with pytest.raises(WrongState, match=GONE):
            store.resume(job.id)


@ON_SQLITE
def test_text_that_looks_like_an_id_needs_nobody(store: Store) -> None:
    text = "job_0123456789"
    store.enqueue(new(request={"model": "resnet18", "finetune": {"config": {"model_kwargs": {"job": text}}}}))
    assert store.claim("w1") is not None


@ON_SQLITE
@pytest.mark.parametrize("known_before", [False, True])
def test_text_of_another_tenant_keeps_nobodys_job(store: Store, known_before: bool) -> None:
    """Retention deletes it as any other, also where a row of an earlier release says that it is needed."""
    mine, theirs = _source(store), store.cancel(store.enqueue(new(owner="bob")).id)
    job = store.enqueue(new(owner="bob", request={"model": "resnet18", "finetune": {"config": {"opt": mine.id}}}))
    with store.reading() as connection:
        assert connection.execute(text("SELECT resource FROM needs")).all() == []
    if known_before:
        with store.writing() as connection:
            row = {"id": mine.id, "job": job.id}
            connection.execute(text("INSERT INTO needs SELECT number, :id FROM jobs WHERE id = :job"), row)
    assert {found.id for found in store.expired(None)} == {mine.id, theirs.id}
    store.enqueue(new(request={"job": mine.id}))
    assert {found.id for found in store.expired(None)} == {theirs.id}


@ON_POSTGRES
@pytest.mark.parametrize("field", ["job", "depends_on", "dataset"])
def test_a_race_of_deleting_and_naming(store: Store, field: str) -> None:
    """Of a deletion and a submission one is refused, whichever comes second."""
    for _ in range(10):
        name = _dataset(store) if field == "dataset" else _source(store).id
        delete = store.remove_upload if field == "dataset" else store.delete
        with ThreadPoolExecutor(2) as pool:
            deletion = pool.submit(delete, name)
            named = [name] if field == "depends_on" else name
            job = pool.submit(store.enqueue, new(request={"model": "resnet18", field: named}))
        refused = [call.exception() for call in (deletion, job)]
        assert [type(one) for one in refused if one is not None] == [WrongState], refused
        if job.exception() is None:
            store.cancel(job.result().id)
            delete(name)
        assert store.known([name]) == set()


@pytest.mark.parametrize("url", ["postgres"], indirect=True)
def test_a_submission_waits_for_a_deletion_under_way(store: Store) -> None:
    """And finds nothing; as long as it is not over, the row is there for whoever only looks."""
    dataset = _dataset(store)
    with ThreadPoolExecutor(1) as pool:
        with store.writing() as connection:
            connection.execute(text("DELETE FROM uploads WHERE id = :id"), {"id": dataset})
            assert store.known([dataset]) == {dataset}
            job = pool.submit(store.enqueue, new(request={"dataset": dataset}))
            waits = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
            while not job.done() and not connection.scalar(waits):
                pass
        assert isinstance(job.exception(), WrongState)
    assert store.list()[0] == []


@ON_SQLITE
def test_jobs_that_were_queued_before_the_table_was_there(store: Store) -> None:
    """The migration reads their requests."""
    source = _source(store)
    store.enqueue(new(request={"job": source.id}))
    with store.writing() as connection:
        command.downgrade(alembic_config(connection), "0003")
    store.migrate()
    with pytest.raises(WrongState):
        store.delete(source.id)
    with store.reading() as connection:
        assert connection.scalar(text("SELECT count(*) FROM needs")) == 1
