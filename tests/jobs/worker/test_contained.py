"""What one job does to its worker is that job's own trouble: the others of the worker go on, and so does the worker;
and what a job's process is told of the service's environment, and what it can find out.
"""

from collections.abc import Sequence
from typing import Any

import pytest
from houses import House
from structlog.testing import capture_logs

from tcnn_jobs.attempts import starting
from tcnn_jobs.engines.base import environment
from tcnn_jobs.engines.local import LocalEngine, LocalProcess
from tcnn_jobs.housekeeping.janitor import clean
from tcnn_jobs.model.jobs import Beat, Claim, Hold, Status
from tcnn_jobs.model.operation import WorkerInfo
from tcnn_jobs.settings import QueueSettings
from tcnn_jobs.worker import worker
from tcnn_jobs.worker.service import engine_for

BESIDE = """
if json.loads((here / "assignment.json").read_text())["request"]["model"] == "poison":
    event("ready"); wait_for_stop()
time.sleep(0.3); succeed()
"""


def both(house: House, **poison: Any) -> tuple[str, str]:
    """The ids of a job that is nobody's fault, and of one that is."""
    return house.submit().id, house.submit(request={"model": "poison"}, **poison).id


def ends(house: House, *jobs: str) -> list[tuple[Status, str | None]]:
    return [(job.status, job.error and job.error.code) for job in map(house.store.get, jobs)]


@pytest.mark.parametrize(
    ("request_", "told"),
    [
        ({"model": "resnet18", "of_a_newer_version": 1}, "of_a_newer_version"),
        ({"model": "resnet18", "finetune": {"dataset": "/data/" + "x" * 600}}, "at most 500 characters"),
    ],
    ids=["newer", "long path"],
)
def test_a_request_that_no_worker_reads_fails_that_job_in_one_line(
    house: House, request_: dict[str, Any], told: str
) -> None:
    good, poison = house.submit(), house.submit(request=request_, max_attempts=100)
    house.worker("succeed()", slots=2).run(until_empty=True)
    assert ends(house, good.id, poison.id) == [(Status.SUCCEEDED, None), (Status.FAILED, "request")]
    error = house.store.get(poison.id).error
    assert error is not None and told in error.message and "\n" not in error.message
    assert house.store.get(poison.id).attempt == 1


def test_what_cannot_be_started_for_any_reason_is_tried_a_few_times(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    def resolve(job: Any, *others: Any) -> Any:
        return {}[job.id] if job.request["model"] == "poison" else {}

    monkeypatch.setattr(starting, "resolve", resolve)
    good, poison = both(house, max_attempts=100)
    house.worker("succeed()", slots=2).run(until_empty=True)
    assert ends(house, good, poison) == [(Status.SUCCEEDED, None), (Status.FAILED, "internal")]
    assert house.store.get(poison).attempt == 3


def test_a_process_that_cannot_be_watched_costs_no_other_job(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    poll = LocalProcess.poll

    def broken(process: LocalProcess) -> int | None:
        if process.pid in strange:
            raise ChildProcessError("no such child")
        return poll(process)

    strange: set[int] = set()
    monkeypatch.setattr(LocalProcess, "poll", broken)
    good, poison = both(house, max_attempts=1)
    one = house.worker(BESIDE, slots=2)
    house.step_until(one, lambda: "ready" in house.kinds(house.store.get(poison)))
    strange.update(attempt.process.pid for attempt in one._running if attempt.job.id == poison)  # type: ignore[attr-defined]
    one.run(until_empty=True)
    assert ends(house, good, poison) == [(Status.SUCCEEDED, None), (Status.FAILED, "internal")]
    assert sorted(map(str, one._free)) == ["None", "None"], "its slot is free again"


def test_what_the_store_cannot_be_told_costs_no_other_job(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    good, poison = both(house, max_attempts=1)
    heartbeat = house.store.heartbeat

    def refuse(info: WorkerInfo, beats: Sequence[Beat]) -> dict[Claim, Hold]:
        if any(beat.claim.job == poison and beat.events for beat in beats):
            raise ValueError("cannot be stored")
        return heartbeat(info, beats)

    monkeypatch.setattr(house.store, "heartbeat", refuse)
    house.worker(BESIDE, slots=2).run(until_empty=True)
    assert ends(house, good, poison) == [(Status.SUCCEEDED, None), (Status.FAILED, "internal")]


def test_a_result_that_cannot_be_stored_fails_its_job(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    def finish(claim: Claim, result: Any) -> Any:
        raise OverflowError("too large")

    job = house.submit(max_attempts=1)
    monkeypatch.setattr(house.store, "finish", finish)
    house.worker("succeed()").run(until_empty=True)
    assert ends(house, job.id) == [(Status.FAILED, "internal")]


def test_an_end_that_cannot_be_stored_at_all_is_left_to_the_lease(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job is tried again by whoever finds that its worker says no more of it; this one goes on with others."""

    def refuse(claim: Claim, *others: Any) -> Any:
        raise OverflowError("too large")

    job = house.submit(max_attempts=1)
    monkeypatch.setattr(house.store, "finish", refuse)
    monkeypatch.setattr(house.store, "fail", refuse)
    one = house.worker("succeed()")
    with capture_logs() as logged:
        house.step_until(one, lambda: any(row["event"] == "left to its lease" for row in logged))
    (row,) = (row for row in logged if row["event"] == "left to its lease")
    assert (row["job"], row["claim"]) == (job.id, 1)
    assert one.busy == 0 and ends(house, job.id) == [(Status.RUNNING, None)]


def test_files_that_cannot_be_removed_cost_nothing(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> None:
        clean(*arguments)
        raise PermissionError("not ours")

    monkeypatch.setattr("tcnn_jobs.housekeeping.janitor.clean", refuse)
    job = house.submit()
    house.worker("succeed()").run(until_empty=True)
    assert ends(house, job.id) == [(Status.SUCCEEDED, None)]


def test_a_worker_whose_every_step_fails_says_so_and_ends(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    one = house.worker("succeed()")
    monkeypatch.setattr(worker, "MOST_FAILURES", 3)
    monkeypatch.setattr(house.store, "reap", {}.__getitem__)
    steps = 0
    with pytest.raises(KeyError):
        while True:
            one._due["reap"] = 0.0
            one.step()
            steps += 1
    assert steps == 2


SECRET = (
    "TCNN_DATABASE_URL", "TCNN_API_KEYS", "TCNN_WEBHOOK_SECRET", "TCNN_API_KEY", "PGPASSWORD", "POSTGRES_PASSWORD",
    "HF_TOKEN", "HF_HUB_TOKEN", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "GITHUB_TOKEN",
    "WANDB_API_KEY", "GOOGLE_APPLICATION_CREDENTIALS", "AZURE_CLIENT_SECRET", "RAY_AUTH_TOKEN", "SOMETHING_NEW",
)  # fmt: skip
NEEDED = (
    "PATH", "HOME", "LC_ALL", "TMPDIR", "PYTHONPATH", "LD_LIBRARY_PATH", "HF_HOME", "HF_HUB_OFFLINE", "https_proxy",
    "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "NCCL_DEBUG", "PYTORCH_CUDA_ALLOC_CONF", "TRITON_CACHE_DIR",
    "AWS_PROFILE", "AWS_SHARED_CREDENTIALS_FILE", "TCNN_ATTENTION", "XDG_CACHE_HOME", "SSL_CERT_FILE",
)  # fmt: skip


def test_only_what_is_named_is_passed_on() -> None:
    given = dict.fromkeys((*SECRET, *NEEDED), "x")
    assert set(environment(given=given)) == set(NEEDED)
    assert set(environment(["HF_TOKEN", "AWS_*"], given)) - set(NEEDED) == {
        "HF_TOKEN", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN",
    }  # fmt: skip


def test_a_job_has_nobodys_secrets_but_those_it_was_given(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SECRET:
        monkeypatch.setenv(name, f"hush-{name}.")
    monkeypatch.setenv("TCNN_JOB_ENVIRONMENT", "HF_TOKEN, WANDB_*")
    monkeypatch.delenv("TCNN_DATABASE_URL")
    engine = engine_for(QueueSettings())
    assert isinstance(engine, LocalEngine)
    job = house.submit()
    worker = house.worker("event('environment', text=repr(dict(os.environ))); succeed()")
    assert isinstance(worker.engine, LocalEngine)
    worker.engine._passed = engine._passed
    worker.run(until_empty=True)
    text = next(event.data["text"] for event in house.store.events(job.id) if event.kind == "environment")
    assert {name for name in SECRET if f"hush-{name}." in text} == {"HF_TOKEN", "WANDB_API_KEY"}
