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
from tcnn_jobs.model.jobs import Job, Upload
from tcnn_jobs.model.naming import new_id
from tcnn_jobs.store import Store
from tcnn_jobs.store.needs import named


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
def test_another_tenants_job_keeps_nothing(store: Store) -> None:
    """Whatever id it writes."""
    source = _source(store)
    theirs = store.enqueue(new(owner="bob", request={"job": source.id}))
    store.delete(source.id)
    assert [job.id for job in store.list()[0]] == [theirs.id]


@ON_POSTGRES
def test_a_race_of_deleting_and_naming(store: Store) -> None:
    """A deletion that has succeeded came before every job that names it."""
    for _ in range(5):
        source = _source(store)
        with ThreadPoolExecutor(2) as pool:
            deletion = pool.submit(store.delete, source.id)
            job = pool.submit(store.enqueue, new(request={"job": source.id})).result()
        if deletion.exception() is None:
            assert store.known([source.id]) == set()
        else:
            assert isinstance(deletion.exception(), WrongState)
        store.cancel(job.id)


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
