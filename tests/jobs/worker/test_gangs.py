"""Jobs that need several slots at once: all or none, and no narrow job gets in between."""

import pytest
from houses import House
from sqlalchemy import update

from tcnn.training.launch.exchange import Placement
from tcnn_jobs.database import schema
from tcnn_jobs.engines.local import LocalEngine
from tcnn_jobs.model.jobs import Job, Status
from tcnn_jobs.model.operation import WorkerInfo
from tcnn_jobs.settings import QueueSettings
from tcnn_jobs.store import fleet
from tcnn_jobs.worker import claims
from tcnn_jobs.worker.service import engine_for
from tcnn_jobs.worker.slots import gang, left_over, widest
from tcnn_jobs.worker.worker import Worker


def test_all_or_none() -> None:
    assert gang([None, None, None], 2) == [None, None]
    assert gang([None], 2) is None
    assert gang(["0", "1", "2"], 2) == ["0", "1"]


def test_no_gpu_twice() -> None:
    assert gang(["0", "0", "1"], 2) == ["0", "1"]
    assert gang(["0", "0"], 2) is None
    assert (widest(["0", "1", "0"]), widest([None, None])) == (2, 2)


def test_what_is_left_over() -> None:
    assert left_over([None, None, None], [2]) == [None]
    assert left_over(["0", "1"], []) == ["0", "1"]
    assert left_over([None, None], [3]) == [], "a job that waits for more gets all that comes free"


def test_a_wide_job_goes_to_the_worker_that_can_start_it(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "PATIENCE", 10_000)
    first = house.submit()
    busy, idle = (house.worker("event('ready'); wait_for_stop()", slots=2) for _ in range(2))
    house.step_until(busy, lambda: "ready" in house.kinds(first))
    wide = house.submit(slots=2)
    busy._due["claim"] = 0.0
    busy.step()
    assert house.store.get(wide.id).status is Status.QUEUED, "it could not start there"
    house.step_until(idle, lambda: "ready" in house.kinds(wide))
    assert house.store.get(wide.id).worker == idle.name


def test_narrow_jobs_do_not_starve_a_wide_one(house: House) -> None:
    script = "event('ready')\nwhile not (here.parent / 'go').exists(): time.sleep(0.01)\nsucceed()"
    first = house.submit()
    worker = house.worker(script, slots=2)
    house.step_until(worker, lambda: "ready" in house.kinds(first))
    wide = house.submit(slots=2)
    house.step_until(worker, lambda: "message" in house.kinds(wide))
    last = house.submit()
    for _ in range(20):
        worker.step()
    assert house.store.get(last.id).status is Status.QUEUED, "one slot is free, and promised"
    held = house.store.get(wide.id)
    assert held.progress is not None and held.progress.phase == "waiting"
    texts = [event.data["text"] for event in house.store.events(wide.id) if event.kind == "message"]
    assert texts == ["needs 2 slots at once, 1 of 2 are free; no other job is started here"], "said once"
    (house.home.job(first.id) / "go").touch()
    house.step_until(worker, lambda: "ready" in house.kinds(wide))
    assert house.store.get(last.id).status is Status.QUEUED
    (house.home.job(wide.id) / "go").touch()
    house.step_until(worker, lambda: "ready" in house.kinds(last))
    (house.home.job(last.id) / "go").touch()
    house.step_until(worker, lambda: not worker.busy)
    assert {house.store.get(job.id).status for job in (first, wide, last)} == {Status.SUCCEEDED}


def test_a_wide_job_that_waits_can_be_cancelled_and_handed_back(house: House) -> None:
    running = house.submit()
    worker = house.worker("wait_for_stop()", slots=2)
    house.step_until(worker, lambda: "ready" in house.kinds(running))
    cancelled = house.submit(slots=2)
    house.step_until(worker, lambda: house.store.get(cancelled.id).status is Status.RUNNING)
    house.store.cancel(cancelled.id)
    house.step_until(worker, lambda: house.store.get(cancelled.id).status is Status.CANCELLED)
    waiting = house.submit(slots=2)
    house.step_until(worker, lambda: house.store.get(waiting.id).status is Status.RUNNING)
    worker.drain()
    worker.run()
    assert house.store.get(waiting.id).status is Status.QUEUED
    assert house.store.get(waiting.id).attempt == 0


def _claimed_ago(house: House, job: Job, seconds: float) -> None:
    with house.store.writing() as connection:
        mine = schema.jobs.c.id == job.id
        connection.execute(update(schema.jobs).where(mine).values(started_at=schema.jobs.c.started_at - seconds))


def test_a_wide_job_that_only_waited_has_its_time_to_run(house: House) -> None:
    """Handed back after more than its `max_runtime`, and begun then: it is charged for what it ran."""
    running = house.submit()
    worker = house.worker("event('ready'); wait_for_stop()", slots=2)
    house.step_until(worker, lambda: "ready" in house.kinds(running))
    wide = house.submit(slots=2, max_runtime=600.0)
    house.step_until(worker, lambda: "message" in house.kinds(wide))
    _claimed_ago(house, wide, 1000)
    worker.drain()
    worker.run()
    house.store.cancel(running.id)
    assert house.store.get(wide.id).ran == 0 and house.store.tenants("local")[0].use.gpu_hours < 0.1
    house.worker("succeed()", slots=2).run(until_empty=True)
    done = house.store.get(wide.id)
    assert (done.status, done.error) == (Status.SUCCEEDED, None)


def test_a_wide_job_that_waited_counts_from_its_start(house: House) -> None:
    """Even one that ends before its worker has told of it."""
    running = house.submit()
    house.home.job(running.id).mkdir(parents=True)
    wait = f"while {running.id!r} in str(here) and not (here.parent / 'go').exists(): time.sleep(0.01)"
    worker = house.worker(f"{wait}\nsucceed()", slots=2)
    house.step_until(worker, lambda: worker._running)
    wide = house.submit(slots=2)
    house.step_until(worker, lambda: "message" in house.kinds(wide))
    _claimed_ago(house, wide, 1000)
    (house.home.job(running.id) / "go").touch()
    house.step_until(worker, lambda: house.store.get(wide.id).terminal)
    done = house.store.get(wide.id)
    assert done.status is Status.SUCCEEDED and done.started_at is not None and done.finished_at is not None
    assert 0 < done.ran < 500 and done.finished_at - done.started_at < 500
    assert house.store.tenants("local")[0].use.gpu_hours < 0.1


def test_a_job_too_wide_for_a_worker_waits_for_a_larger_one_and_says_so(house: House) -> None:
    wide = house.submit(slots=3)
    assert house.store.get(wide.id).waiting_for == "needs 3 slots of one worker at once; no worker is there"
    house.worker("succeed()", slots=2).run(until_empty=True)
    assert house.store.get(wide.id).status is Status.QUEUED
    small = house.worker("succeed()", slots=2)
    small.step()
    assert house.store.get(wide.id).waiting_for == "needs 3 slots of one worker at once; the largest worker has 2"
    house.worker("succeed()", slots=3).run(until_empty=True)
    done = house.store.get(wide.id)
    assert (done.status, done.waiting_for) == (Status.SUCCEEDED, None)


def test_a_worker_with_more_slots_than_gpus_says_how_many_a_job_can_have(house: House) -> None:
    """Where jobs share its GPUs: a wide job is not for it, whatever its slots."""
    wide = house.submit(slots=2)
    narrow = house.worker("succeed()")
    shared = Worker(
        house.store, house.home, narrow.engine, house.settings, name="w", host="here", slots=["0", "0", "0"]
    )
    house.workers.append(shared)
    assert not shared.step()
    (info,) = house.store.statistics().workers
    assert (info.slots, info.widest, info.largest_job) == (3, 1, 1)
    needs = "needs 2 slots of one worker at once, on different GPUs; the largest worker has 1"
    assert house.store.get(wide.id).waiting_for == needs
    with house.store.reading() as connection:
        assert not fleet.others(connection, "another", 2) and fleet.others(connection, "another", 1)
    older = WorkerInfo(name="older", host="there", slots=2, version="0")
    house.store.heartbeat(older, [])
    assert house.store.get(wide.id).waiting_for is None, "of an older release's nothing else is known"
    with house.store.reading() as connection:
        assert fleet.others(connection, "another", 2)


def test_a_wide_job_has_as_many_gpus(house: House) -> None:
    script = "(here / 'gpus').write_text(os.environ['CUDA_VISIBLE_DEVICES']); wait_for_stop()"
    job = house.submit(slots=2, request={"model": "resnet18", "finetune": {"dataset": "x/", "num_workers": 2}})
    narrow = house.worker(script)
    worker = Worker(
        house.store, house.home, LocalEngine(narrow.engine._command), house.settings, name="w", host="here",
        slots=["0", "0", "1"],
    )  # fmt: skip
    house.workers.append(worker)
    house.step_until(worker, lambda: "ready" in house.kinds(job))
    directory = house.home.attempt(job.id, 1)
    assert (directory / "gpus").read_text() == "0,1"
    assert '"num_workers": 2' in (directory / "assignment.json").read_text()
    worker.drain()
    worker.run()


def test_the_deployment_chooses_the_engine() -> None:
    assert engine_for(QueueSettings()).placement(2) == Placement(num_workers=2)
    settings = QueueSettings(engine="ray", ray_address="head:6379", grace=7)
    assert engine_for(settings).placement(2) == Placement(engine="ray", num_workers=2, address="head:6379", grace=7)
