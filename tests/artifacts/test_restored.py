"""A database that was restored, or has failed over, gives claim numbers again that the store has attempts of."""

from collections.abc import Callable

import pytest
from apart import Host

from tcnn_jobs.artifacts.bucket import NEVER
from tcnn_jobs.artifacts.layout import parse
from tcnn_jobs.artifacts.mirror import Mirror
from tcnn_jobs.housekeeping import janitor, objects
from tcnn_jobs.model.jobs import Claim, Failure, Job, Status

GOES_ON = """
before = told["paths"].get("previous")
event("previous", names=sorted(str(path.relative_to(before)) for path in Path(before).rglob("*") if path.is_file()))
succeed()
"""
DIES = "print('begun', flush=True); time.sleep(0.5); print('no', flush=True); time.sleep(0.5); sys.exit(1)"
Restored = Callable[..., Job]


def point(steps: int) -> str:
    return f"run/resume/step-{steps:09d}.safetensors"


def sends(host: Host, job: Job, claim: int, steps: int) -> None:
    """What an attempt on a host that is lost by now had written, and its worker had sent."""
    attempt = host.home.root / f"lost-{claim}"
    for name, text in {"log.txt": "begun\n", "run/config.json": "{}", point(steps): str(steps)}.items():
        (attempt / name).parent.mkdir(parents=True, exist_ok=True)
        (attempt / name).write_text(text)
    Mirror(host.artifacts.bucket, attempt, job.id, claim).update(NEVER)


@pytest.fixture
def restored(near: list[Host]) -> Restored:
    """A job of which the store has attempt 1 with 100 steps, and others; its row knows of the first one alone."""

    def make(**steps: int) -> Job:
        job, taken = near[0].submit(), near[0].store.claim("lost")
        assert taken is not None
        for claim, reached in {"1": 100, **{name.strip("_"): number for name, number in steps.items()}}.items():
            sends(near[0], job, int(claim), reached)
        near[0].store.hand_back(Claim.of(taken))
        return job

    return make


def attempts(host: Host) -> set[str]:
    """Those that have a manifest, `2.` for one that was set aside."""
    named = [parse(key) for key in host.artifacts.bucket.keys("jobs")]
    return {one.attempt[: len(str(one.claim)) + 1] for one in named if one is not None and one.name == "manifest.json"}


def previous(host: Host, job: Job) -> list[str]:
    """The files that the attempt which succeeded has found in the one before."""
    assert host.store.get(job.id).status is Status.SUCCEEDED
    return next(event.data["names"] for event in host.store.events(job.id) if event.kind == "previous")


@pytest.mark.parametrize(
    ("steps", "farthest"), [({"_2": 90_000}, 90_000), ({"_2": 7}, 100), ({"_2": 90_000, "_3": 90_001}, 90_001)]
)
def test_it_goes_on_from_the_farthest(
    near: list[Host], restored: Restored, steps: dict[str, int], farthest: int
) -> None:
    (first, second), job = near, restored(**steps)
    second.courier(GOES_ON).run(until_empty=True)
    assert first.store.get(job.id).claim == 2
    assert previous(first, job) == ["log.txt", "run/config.json", point(farthest)]
    manifest = first.artifacts.manifest(job.id, 2)
    assert manifest is not None and "run/best.safetensors" in manifest.names
    assert not any("step-" in name for name in manifest.names), "it is the new attempt's alone"


def test_what_was_set_aside_goes_when_the_job_succeeds(
    near: list[Host], restored: Restored, monkeypatch: pytest.MonkeyPatch
) -> None:
    (first, second), job = near, restored(_2=90_000)
    second.courier(GOES_ON).run(until_empty=True)
    assert attempts(first) == {"1", "2", "2."} and first.artifacts.published(job.id) == [1, 2]
    first.sweep()
    assert attempts(first) == {"2", "2."}, "it names objects that are too young to be judged"
    monkeypatch.setattr(objects, "YOUNG", -1.0)
    first.sweep()
    names = {"manifest.json", "best.safetensors", "config.json", "metrics.jsonl", "log.txt"}
    assert first.stored() == {f"jobs/{job.id}/2/{name}" for name in names}
    janitor.forget(first.artifacts, first.store, first.store.get(job.id), "test")
    assert first.stored() == set()


def test_an_attempt_removes_no_object_that_one_of_its_number_has(near: list[Host], restored: Restored) -> None:
    """Both logs begin with the same line; only the one that was set aside knows of the steps when the new one dies."""
    (first, second), job = near, restored(_2=90_000)
    worker = second.courier(DIES, retry_delay=60)
    second.step_until(worker, lambda: "retrying" in second.kinds(job))
    second.store.cancel(job.id)
    second.store.resume(job.id)
    first.courier(GOES_ON).run(until_empty=True)
    assert first.store.get(job.id).claim == 3
    assert previous(first, job) == ["log.txt", "run/config.json", point(90_000)]


@pytest.mark.parametrize(
    ("steps", "kept"),
    [({"_2": 90_000}, {"1", "2"}), ({"_2": 90_000, "_3": 90_001}, {"1", "3"}), ({"_2": 7}, {"1"})],
)
def test_a_failed_job_keeps_the_farthest_and_the_newest(
    near: list[Host], restored: Restored, steps: dict[str, int], kept: set[str]
) -> None:
    first, job = near[0], restored(**steps)
    first.store.cancel(job.id)  # in its row, attempt 1 is the last
    first.sweep()
    assert attempts(first) == kept
    first.store.resume(job.id)
    taken = first.store.claim("here")
    assert taken is not None and taken.claim == 2
    if "2" in kept:
        first.artifacts.set_aside(job.id, 2)
    sends(first, job, 2, 200)
    first.store.fail(Claim.of(taken), Failure(code="internal", message="no"))
    first.sweep()
    assert attempts(first) == {"2", *({"2."} if "2" in kept else kept & {"3"})}
