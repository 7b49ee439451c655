"""Workers as the store sees them: busy, present, since when, and forgotten when they are long dead."""

from deeds import hold, info, new
from sampled import ON_SQLITE
from sqlalchemy import text

from tcnn_jobs.store import Store
from tcnn_jobs.store.fleet import KEPT


def _silent(store: Store, name: str, seconds: float) -> None:
    with store.writing() as connection:
        connection.execute(
            text("UPDATE workers SET heartbeat_at = heartbeat_at - :by WHERE name = :name"),
            {"by": seconds, "name": name},
        )


def test_how_busy_they_are_and_since_when(store: Store) -> None:
    assert store.workers() == []
    store.heartbeat(info("w2").model_copy(update={"slots": 4, "host": "a"}), [])
    (before,) = store.workers()
    assert (before.busy, before.present, before.info.slots) == (0, True, 4)
    for wide in (1, 3):
        store.enqueue(new(slots=wide))
        store.claim("w2", slots=4)
    store.heartbeat(info("w1"), [])
    store.heartbeat(info("w2").model_copy(update={"slots": 4, "host": "b"}), [])
    first, second = store.workers()
    assert [(one.info.name, one.busy) for one in (first, second)] == [("w2", 4), ("w1", 0)]
    assert second.info.host == "here" and first.info.host == "b"
    assert first.info.started_at == before.info.started_at, "it is the same worker"
    assert (first.info.heartbeat_at or 0) > (before.info.heartbeat_at or 0)


@ON_SQLITE
def test_the_long_dead_are_forgotten_and_nobody_else(store: Store) -> None:
    for name, lease in (("alive", 60.0), ("silent", 60.0), ("dead", 60.0), ("patient", 3 * KEPT)):
        store.heartbeat(info(name).model_copy(update={"lease": lease}), [])
    assert store.forget_dead_workers() == 0
    _silent(store, "silent", KEPT - 60)
    for name in ("dead", "patient"):
        _silent(store, name, KEPT + 60)
    present = {one.info.name: one.present for one in store.workers()}
    assert present == {"alive": True, "silent": False, "patient": True}
    assert store.forget_dead_workers() == 1
    with store.reading() as connection:
        assert set(connection.scalars(text("SELECT name FROM workers"))) == {"alive", "silent", "patient"}


@ON_SQLITE
def test_a_dead_workers_jobs_are_not_forgotten_with_it(store: Store) -> None:
    store.heartbeat(info("dead"), [])
    job = store.enqueue(new())
    claim = hold(store.claim("dead"))
    _silent(store, "dead", KEPT + 60)
    assert store.forget_dead_workers() == 1
    assert store.get(job.id).worker == claim.worker
    (taken,) = store.reap(-1)
    assert taken.id == job.id
