"""One worker keeps house for all, and another one when it is gone; names that it looks up are shared and bounded."""

import asyncio
import signal
import socket
import threading
import time
from pathlib import Path

import pytest
import structlog
from houses import House, RealWorkers, wait_for
from sqlalchemy import update

from tcnn_jobs.artifacts.local import LocalArtifacts
from tcnn_jobs.database.schema import leases
from tcnn_jobs.errors import StoreUnavailable, WrongState
from tcnn_jobs.housekeeping import janitor, lookups
from tcnn_jobs.housekeeping.coordination import Election
from tcnn_jobs.housekeeping.janitor import Chores
from tcnn_jobs.model.jobs import Status
from tcnn_jobs.model.operation import Actor, acting
from tcnn_jobs.store import Store
from tcnn_jobs.store.accounts import ledger


def keeper(house: House) -> str | None:
    return next((one.info.name for one in house.store.workers() if one.keeps_house), None)


def test_one_is_elected_and_stays_it(house: House) -> None:
    first, second = (Election(house.store, name, 60, late=0.0) for name in ("w1", "w2"))
    assert [first.won(), second.won(), first.won(), second.won()] == [True, False, True, False]


def test_most_looks_ask_nobody(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0
    hold = Store.hold

    def counted(*given: object) -> object:
        nonlocal asked
        asked += 1
        return hold(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(Store, "hold", counted)
    first, second = (Election(house.store, name, 60) for name in ("w1", "w2"))
    for _ in range(100):
        first.won(), second.won()
    assert asked == 2


def test_one_that_was_frozen_does_not_believe_that_it_still_is(house: House) -> None:
    first, second = (Election(house.store, name, 60, late=0.0) for name in ("w1", "w2"))
    assert first.won()
    first._until, first._due = first._until - 61, first._due - 61
    with house.store.writing() as connection:  # for longer than its lease
        connection.execute(update(leases).values(ends_at=leases.c.ends_at - 61))
    assert second.won()
    assert not first.won()


def test_only_the_housekeeper_takes_jobs_from_silent_workers_and_a_follower_does(house: House) -> None:
    job = house.submit()
    dead = house.worker("event('ready'); time.sleep(60)", lease=1)
    house.step_until(dead, lambda: "ready" in house.kinds(job))
    assert dead.election.won()
    dead._running[0].process.kill()  # and nobody steps its worker any more
    follower = house.worker("succeed()", lease=1)
    house.step_until(follower, lambda: "stalled" in house.kinds(job), 30)  # others have a minute
    assert keeper(house) == follower.name
    house.step_until(follower, lambda: house.store.get(job.id).terminal)
    assert house.store.get(job.id).status is Status.SUCCEEDED


def test_a_worker_that_leaves_gives_the_house_up(house: House) -> None:
    first = house.worker("succeed()")
    house.submit()
    first.run(until_empty=True)
    assert Election(house.store, "w2", 60).won()


def test_chores_of_all_are_the_housekeepers_and_a_home_of_its_own_is_each_workers(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file goes in the first minutes of a worker: somebody may have started it with the wrong settings."""
    done: list[str] = []
    for name in ("expire", "sweep_home", "sweep_store", "drop_unfinished"):
        monkeypatch.setattr(janitor, name, lambda *_, name=name: done.append(name))

    def chores(name: str, later: float = 0.0) -> list[str]:
        election = Election(house.store, name, 60)
        own = Chores(house.store, house.home, house.settings, LocalArtifacts(house.home), election)
        with monkeypatch.context() as patch:
            now = time.monotonic() + later
            patch.setattr(janitor.time, "monotonic", lambda: now)
            own.step()
        found = list(done)
        done.clear()
        return found

    assert chores("w1") == ["expire"]
    assert chores("w1", janitor.SWEEP) == ["expire", "sweep_home", "sweep_store", "drop_unfinished"]
    assert chores("w2", janitor.SWEEP) == []
    house.home.shared = True
    assert chores("w2", janitor.SWEEP) == ["sweep_home"]


@pytest.mark.parametrize("setting", [{"retention_days": 1e-9}, {"retention_gb": 0.0}])
def test_retention_goes_on_until_nothing_is_due(
    house: House, monkeypatch: pytest.MonkeyPatch, setting: dict[str, float]
) -> None:
    """Pass by pass, between which the other chores have their turns."""
    monkeypatch.setattr(janitor, "PASS", 2)
    monkeypatch.setattr(janitor, "ROOM_PASS", 2)
    for _ in range(5):
        job = house.submit()
        house.home.job(job.id).mkdir()
        (house.home.job(job.id) / "log.txt").write_text("no" * 5000)
        house.store.cancel(job.id)
    time.sleep(0.01)
    settings = house.settings.model_copy(update=setting)
    own = Chores(house.store, house.home, settings, LocalArtifacts(house.home), Election(house.store, "w1", 60))
    own._due = dict.fromkeys(own._due, time.monotonic())

    def left_after_a_step() -> int:
        own.step()
        return len(house.store.expired(None))

    assert [left_after_a_step() for _ in range(3)] == [3, 1, 0]
    house.store.cancel(house.submit().id)
    assert left_after_a_step() == 1, "the next look is as late as ever"


def test_old_entries_of_the_audit_log_go_portion_by_portion(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "PORTION", 2)
    with acting(Actor(tenant="ann", key="key_1", request="r")):
        for _ in range(5):
            house.submit()
    settings = house.settings.model_copy(update={"audit_days": 1e-9})
    own = Chores(house.store, house.home, settings, LocalArtifacts(house.home), Election(house.store, "w1", 60))
    left = []
    for _ in range(3):
        own.step()
        left.append(len(house.store.audit()[0]))
    assert left == [3, 1, 0]


def test_what_the_database_does_not_do_is_logged(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker with nothing but a slow statement to complain of says nothing itself."""

    def slow(store: Store, days: float) -> bool:
        raise StoreUnavailable("canceling statement due to statement timeout")

    monkeypatch.setattr(Store, "forget_audit", slow)
    own = Chores(house.store, house.home, house.settings, LocalArtifacts(house.home), Election(house.store, "w1", 60))
    with structlog.testing.capture_logs() as said:
        own.step()
        own.step()
    (warning,) = (one for one in said if "chore" in one)
    assert (warning["log_level"], warning["chore"]) == ("warning", "retention")
    assert "statement timeout" in warning["why"]


def test_what_cannot_be_deleted_is_not_tried_again_and_again(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(store: Store, job: str) -> None:
        raise WrongState(f"{job}: is queued; cancel it before deleting it")

    house.store.cancel(house.submit().id)
    time.sleep(0.01)
    monkeypatch.setattr(janitor, "PASS", 1)
    monkeypatch.setattr(janitor, "ROOM_PASS", 1)
    monkeypatch.setattr(Store, "delete", refuse)
    settings = house.settings.model_copy(update={"retention_days": 1e-9, "retention_gb": -1.0})
    for chore in (janitor.expire, janitor.keep_room):
        assert not chore(house.store, settings, LocalArtifacts(house.home))


@pytest.mark.slow
def test_a_killed_housekeeper_is_followed_within_its_lease(house: House, tmp_path: Path) -> None:
    """Of real workers."""
    workers = RealWorkers(house.settings.root, TCNN_LEASE="2")
    try:
        first = workers.start()
        name = wait_for(lambda: keeper(house))
        workers.start()
        wait_for(lambda: house.store.count_workers() == 2)
        first.send_signal(signal.SIGKILL)
        first.wait()
        wait_for(lambda: keeper(house) not in (None, name), 30)  # two seconds, and what a busy machine needs
    finally:
        workers.end()


def test_lookups_are_shared_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    over, asked = threading.Event(), []

    def silent(host: str, *more: object) -> list[str]:
        asked.append(host)
        over.wait(60)
        return [host]

    async def look_up(*names: str) -> list[object]:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(30):
            waiting = [asyncio.ensure_future(loop.getaddrinfo(name, 80)) for name in names]
            await asyncio.sleep(0)  # all have asked
            over.set()
            return await asyncio.gather(*waiting, return_exceptions=True)

    monkeypatch.setattr(socket, "getaddrinfo", silent)
    monkeypatch.setattr(lookups, "AT_ONCE", 2)
    *found, refused = lookups.run(look_up("a", "a", "b", "c"))
    assert found == [["a"], ["a"], ["b"]]
    assert isinstance(refused, OSError)
    assert sorted(asked) == ["a", "b"]
