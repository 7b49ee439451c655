"""What is removed, and what never."""

import os
import shutil
import time
from pathlib import Path

import pytest
from houses import House

from tcnn_jobs.database import schema
from tcnn_jobs.database.dialects import now
from tcnn_jobs.errors import JobNotFound
from tcnn_jobs.housekeeping import janitor
from tcnn_jobs.model.jobs import Artifact, Claim, Failure, Job, Result, Status
from tcnn_jobs.model.operation import Actor, acting


def attempt(house: House, job: Job, claim: int, size: int = 10) -> Path:
    folder = house.home.attempt(job.id, claim)
    (folder / "run" / "resume").mkdir(parents=True)
    (folder / "run" / "config.json").write_text("{}")
    (folder / "run" / "best.safetensors").write_bytes(b"x" * size)
    (folder / "run" / "resume" / "step-1.safetensors").write_bytes(b"x" * size)
    return folder


def ended(house: House, how: str, claims: int = 1, size: int = 10, **options: object) -> Job:
    """A job that was claimed so many times, each with files, and ended in the last."""
    job = house.submit(**options)
    for number in range(1, claims + 1):
        taken = house.store.claim("w")
        assert taken is not None and taken.id == job.id
        attempt(house, job, number, size)
        claim = Claim(job=job.id, worker="w", number=number)
        if number < claims:
            house.store.hand_back(claim)
    if how == "succeeded":
        path = f"{job.id}/{claims}/run/best.safetensors"
        file = Artifact(name="best.safetensors", path=path, size=size, sha256="0" * 64)
        return house.store.finish(claim, Result(checkpoint=file, files=(file,)))
    return house.store.fail(claim, Failure(code="request", message="no"))


def files(house: House, job: Job) -> set[str]:
    root = house.home.job(job.id)
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def test_a_succeeded_job_keeps_what_was_published(house: House) -> None:
    job = ended(house, "succeeded", claims=3)
    janitor.clean(house.home, job)
    assert files(house, job) == {"3/run/config.json", "3/run/best.safetensors"}


def test_a_failed_job_keeps_what_it_can_be_resumed_from(house: House) -> None:
    job = ended(house, "failed", claims=2)
    janitor.clean(house.home, job)
    assert files(house, job) == {
        "2/run/config.json", "2/run/best.safetensors", "2/run/resume/step-1.safetensors",
    }  # fmt: skip


def test_a_job_that_goes_on_loses_nothing(house: House) -> None:
    job = house.submit()
    attempt(house, job, 1)
    attempt(house, job, 2)
    before = files(house, job)
    janitor.clean(house.home, job)
    assert files(house, job) == before


def test_a_resume_point_outlives_attempts_that_got_nowhere(house: House) -> None:
    job = ended(house, "failed", claims=3)
    shutil.rmtree(house.home.attempt(job.id, 2) / "run")
    shutil.rmtree(house.home.attempt(job.id, 3) / "run")
    (house.home.attempt(job.id, 3) / "log.txt").write_text("no such device")
    janitor.clean(house.home, job)
    kept = {"run/config.json", "run/best.safetensors", "run/resume/step-1.safetensors"}
    assert files(house, job) == {*(f"1/{name}" for name in kept), "3/log.txt"}


def test_attempts_that_a_restored_database_does_not_know_are_kept_until_it_gives_their_numbers(house: House) -> None:
    job = ended(house, "failed", claims=2)

    def reached(claim: int, steps: int) -> None:
        points = house.home.attempt(job.id, claim) / "run" / "resume"
        (points / "step-1.safetensors").rename(points / f"step-{steps:09d}.safetensors")

    def kept() -> set[str]:
        house.sweep()
        return {path.name.partition(".")[0] for path in house.home.job(job.id).iterdir()}

    reached(2, 5000)
    for claim, steps in ((3, 10), (4, 90_000)):
        attempt(house, job, claim)
        reached(claim, steps)
    assert kept() == {"2", "3", "4"}
    house.store.resume(job.id)
    house.worker("sys.exit(1)").run(until_empty=True)
    assert house.store.get(job.id).claim == 5
    assert kept() == {"4", "5"}, "one to go on from, and one to read"


def test_an_attempt_that_begins_while_others_are_reaped_keeps_its_files(house: House) -> None:
    """Another worker has it by the time that the one which found its job silent tidies up."""
    job, other = house.submit(max_attempts=1), house.submit(max_attempts=1)
    for one in (job, other):
        assert house.store.claim("gone", slots=1) is not None
        attempt(house, one, 1)
    worker = house.worker("", lease=-1.0)
    reap = house.store.reap

    def meanwhile(lease: float) -> list[Job]:
        reaped = reap(lease)
        house.store.resume(job.id)
        assert house.store.claim("there", slots=1) is not None
        attempt(house, job, 2)
        house.store.delete(other.id)
        return reaped

    house.store.reap = meanwhile  # type: ignore[method-assign]
    worker._reap()
    assert {path.name for path in house.home.job(job.id).iterdir()} == {"1", "2"}
    assert not house.home.job(other.id).exists()


def test_a_resumed_job_goes_on_from_the_attempt_before_the_one_that_died_at_its_start(house: House) -> None:
    script = """
told = json.loads((here / "assignment.json").read_text()); before = told["paths"].get("previous")
if told["claim"] == 1:
    (here / "run/resume").mkdir(parents=True); (here / "run/config.json").write_text("{}")
    (here / "run/resume/step-000000007.safetensors").write_text("progress")
if told["claim"] < 3: sys.exit(1)
event("resumed_from", names=sorted(path.name for path in Path(before).rglob("step-*"))); succeed()
"""
    job = house.submit(max_attempts=2)
    house.worker(script).run(until_empty=True)
    assert house.store.get(job.id).status is Status.FAILED
    house.store.resume(job.id)
    house.worker(script).run(until_empty=True)
    told = {event.kind: event.data for event in house.store.events(job.id)}
    assert told["resumed_from"]["names"] == ["step-000000007.safetensors"]


def test_old_jobs_are_deleted_with_their_files(house: House) -> None:
    job, going_on = ended(house, "succeeded"), house.submit()
    attempt(house, going_on, 1)
    time.sleep(0.01)
    house.sweep(retention_days=1e-9)
    with pytest.raises(JobNotFound):
        house.store.get(job.id)
    assert not house.home.job(job.id).exists()
    assert house.store.get(going_on.id) == going_on
    assert files(house, going_on) != set()


def test_nothing_is_deleted_unless_it_is_asked_for(house: House) -> None:
    job = ended(house, "failed")
    house.sweep()
    assert house.store.get(job.id) == job
    assert files(house, job) != set()


def test_when_room_is_short_the_oldest_go_first_and_no_more_than_needed(house: House) -> None:
    jobs = [ended(house, "succeeded", size=1_000_000) for _ in range(4)]
    for job in jobs:
        janitor.clean(house.home, job)
    house.sweep(retention_gb=0.0025)
    assert [house.home.job(job.id).exists() for job in jobs] == [False, False, True, True]


def test_no_job_goes_for_what_a_sweep_removes(house: House) -> None:
    """Resume points, attempts that lost, folders of jobs that are gone."""
    jobs = [ended(house, "succeeded", claims=2, size=1_000_000) for _ in range(2)]
    gone = house.home.jobs / "job_0123456789abcdef"
    gone.mkdir()
    (gone / "log.txt").write_bytes(b"x" * 1_000_000)
    house.sweep(retention_gb=0.0025)
    assert [house.home.job(job.id).exists() for job in jobs] == [True, True] and gone.exists()


def test_the_audit_log_is_kept_for_so_many_days(house: House) -> None:
    with acting(Actor(tenant="ann", key="key_1")):
        old, young = house.submit(), house.submit()
    with house.store.writing() as connection:
        mine = schema.audit.c.resource == old.id
        connection.execute(schema.audit.update().where(mine).values(at=now() - 3 * 86400))
    house.sweep()
    assert len(house.store.audit()[0]) == 2
    house.sweep(audit_days=2)
    assert [entry.resource for entry in house.store.audit()[0]] == [young.id]


def test_strays_are_swept_once_nobody_can_be_making_them(house: House) -> None:
    old = house.home.jobs / "job_0123456789abcdef"
    young = house.home.datasets / "ds_0123456789abcdef"
    upload = house.home.incoming / "half-an-upload"
    for path in (old, young):
        path.mkdir()
    upload.write_bytes(b"x")
    for path, age in ((old, 2 * janitor.YOUNG), (upload, 25 * janitor.YOUNG)):
        os.utime(path, (time.time() - age,) * 2)
    house.sweep()
    assert not old.exists() and not upload.exists() and young.exists()


def test_losing_attempts_that_reappeared_are_swept(house: House) -> None:
    job = ended(house, "succeeded", claims=2)
    janitor.clean(house.home, job)
    attempt(house, job, 1)  # a worker that was frozen woke up, wrote on, and died
    house.sweep()
    assert [path.name for path in house.home.job(job.id).iterdir()] == ["2"]
