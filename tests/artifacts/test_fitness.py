"""A host that can do no jobs, because of its home or of what the store says to it, gives back what it has taken and
takes no more until it can; a failure that every host would have counts as the job's.
"""

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import structlog
from apart import Host
from houses import House
from s3 import Gate

from tcnn.errors import EnvironmentFailure
from tcnn_jobs.model.jobs import Job, Kind, NewJob, Status, Upload
from tcnn_jobs.worker.worker import Worker

DATASET, MODEL, WEIGHTS = "ds_0123456789", "ckpt_0123456789", hashlib.sha256(b"weights").hexdigest()


def goes(home: Path) -> None:
    """As a disk that is lost."""
    home.rename(home.with_name("gone"))
    home.touch()


def is_moved(home: Path) -> None:
    home.rename(home.with_name("gone"))


def is_put_back(home: Path) -> None:
    home.unlink(missing_ok=True)
    assert not home.exists(), "nobody makes it anew"
    home.with_name("gone").rename(home)


def gives_back(house: House, worker: Worker, jobs: list[Job]) -> None:
    """One of the jobs is taken and given back, and then none is taken."""
    with structlog.testing.capture_logs() as said:
        house.step_until(worker, lambda: "handed_back" in house.kinds(jobs[0]) and not worker.busy)
        for _ in range(20):
            worker.step()
    assert [(row["event"][:24], row["log_level"]) for row in said if "can do" in row["event"]] == [
        ("this host can do no jobs", "error")
    ]
    assert [[kind for kind in house.kinds(job) if kind != "phase"] for job in jobs] == [
        ["queued", "started", "handed_back"],
        ["queued"],
    ]
    assert [(job.status, job.attempt) for job in map(house.store.get, (job.id for job in jobs))] == [
        (Status.QUEUED, 0)
    ] * 2


def does(house: House, worker: Worker, jobs: list[Job]) -> None:
    house.step_until(worker, lambda: all(house.store.get(job.id).terminal for job in jobs))
    assert [(one.status, one.attempt) for one in map(house.store.get, (job.id for job in jobs))] == [
        (Status.SUCCEEDED, 1)
    ] * 2


@pytest.mark.parametrize("happens", [goes, is_moved])
def test_a_home_that_is_gone(house: House, happens: Callable[[Path], None]) -> None:
    jobs, worker = [house.submit(max_attempts=1) for _ in range(2)], house.worker("succeed()")
    happens(house.home.jobs)
    gives_back(house, worker, jobs)
    is_put_back(house.home.jobs)
    does(house, worker, jobs)


@pytest.mark.parametrize("happens", [goes, is_moved])
def test_a_home_that_is_gone_where_results_are_in_a_store(near: list[Host], happens: Callable[[Path], None]) -> None:
    """Another host does the jobs meanwhile."""
    (first, second), jobs = near, [near[0].submit(max_attempts=1) for _ in range(2)]
    worker = first.courier("succeed()")
    happens(first.home.root)
    gives_back(first, worker, jobs)
    does(second, second.courier("succeed()"), jobs)
    is_put_back(first.home.root)


@pytest.mark.parametrize("refusal", ["RequestTimeTooSkewed", "InvalidAccessKeyId", "AccessDenied"])
def test_a_host_to_which_the_store_refuses_everything(hosts: list[Host], gate: Gate, refusal: str) -> None:
    """Its clock is wrong, or its key."""
    first, jobs = hosts[0], [hosts[0].submit(max_attempts=1) for _ in range(2)]
    gate.refuse = lambda method, path: (403, refusal)
    worker = first.courier("succeed()")
    gives_back(first, worker, jobs)
    gate.refuse = lambda method, path: None
    does(first, worker, jobs)


def trains(host: Host) -> Job:
    """A job that needs what was uploaded."""
    found = host.home.incoming / "unpacked"
    found.mkdir()
    (found / "1.png").write_bytes(b"picture")
    (host.home.incoming / "file").write_bytes(b"weights")
    rows = (DATASET, "dataset", found, "0" * 64), (MODEL, "checkpoint", host.home.incoming / "file", WEIGHTS)
    for id, kind, path, sha256 in rows:
        upload = Upload(id=id, owner="local", kind=kind, name="x", path=id, size=7, sha256=sha256)
        host.store.add_upload(host.artifacts.add(upload, path))
    shutil.rmtree(host.home.cache)
    host.home.cache.mkdir()
    request = {"checkpoint": MODEL, "dataset": DATASET, "config": {"epochs": 1}}
    return host.store.enqueue(NewJob(owner="local", kind=Kind.FINETUNE, request=request, max_attempts=2))


def test_a_key_that_may_not_read(hosts: list[Host], gate: Gate) -> None:
    first, jobs = hosts[0], [trains(hosts[0]), hosts[0].submit()]

    def may_not(method: str, path: str) -> tuple[int, str] | None:
        return (403, "AccessDenied") if method == "GET" and "list-type" not in path else None

    gate.refuse = may_not
    worker = first.courier("succeed()")
    gives_back(first, worker, jobs)
    gate.refuse = lambda method, path: None
    does(first, worker, jobs)


def test_what_is_refused_to_every_host_ends_its_job(hosts: list[Host], gate: Gate) -> None:
    """After as many attempts as it may have, of which others may be another host's; and other jobs are done."""
    first, job, other = hosts[0], trains(hosts[0]), hosts[0].submit()
    gate.refuse = lambda method, path: (403, "AccessDenied") if DATASET in path else None
    worker = first.courier("succeed()")
    first.step_until(worker, lambda: first.store.get(job.id).terminal and first.store.get(other.id).terminal)
    after = first.store.get(job.id)
    assert (after.status, after.attempt, first.store.get(other.id).status) == (Status.FAILED, 2, Status.SUCCEEDED)
    assert after.error is not None and after.error.code == "storage" and "Denied" in after.error.message


def test_one_that_works_until_the_queue_is_empty_says_that_it_is_not(house: House) -> None:
    job, worker = house.submit(), house.worker("succeed()")
    goes(house.home.jobs)
    with pytest.raises(EnvironmentFailure, match="this host can do no jobs, and leaves those there are: TCNN_HOME="):
        worker.run(until_empty=True)
    assert house.store.get(job.id).status is Status.QUEUED
    is_put_back(house.home.jobs)
