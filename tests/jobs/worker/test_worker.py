"""A worker and its jobs' processes. The jobs are small scripts, so that what is seen is the worker."""

import os
import signal
import time
from pathlib import Path

import pytest
from houses import House, processes_of, wait_for

from tcnn_jobs.errors import StoreUnavailable
from tcnn_jobs.model.jobs import Status
from tcnn_jobs.settings import QueueSettings
from tcnn_jobs.store import Store

pytestmark = pytest.mark.usefixtures("house")


def test_a_job_runs_to_its_end(house: House) -> None:
    job = house.submit()
    worker = house.worker("progress(epoch=1, percent=50); event('epoch', epoch=0); succeed()")
    worker.run(until_empty=True)
    after = house.store.get(job.id)
    assert after.status is Status.SUCCEEDED
    assert after.result is not None and after.result.metrics == {"top1": 0.5}
    assert after.progress is not None and after.progress.percent == 50
    assert house.kinds(job) == ["queued", "started", "epoch", "succeeded"]
    assert worker.busy == 0


def test_progress_arrives_while_the_job_runs(house: House) -> None:
    job = house.submit()
    worker = house.worker("for i in range(1000):\n  progress(step=i); time.sleep(0.02)", poll=0.1)

    def step() -> int:
        progress = house.store.get(job.id).progress
        return (progress.step or 0) if progress else 0

    house.step_until(worker, lambda: step() > 5)
    first = step()
    house.step_until(worker, lambda: step() > first)
    assert step() > first > 5


def test_no_more_jobs_than_slots(house: House) -> None:
    jobs = [house.submit() for _ in range(3)]
    worker = house.worker("event('ready'); time.sleep(0.2); succeed()", slots=2)
    most = 0
    deadline = time.monotonic() + 120
    while any(not house.store.get(job.id).terminal for job in jobs):
        assert time.monotonic() < deadline
        worker.step()
        most = max(most, len(processes_of(house.home.jobs)))
        time.sleep(0.01)
    assert most == 2


def test_a_wrong_request_is_not_tried_again(house: House) -> None:
    job = house.submit(max_attempts=3)
    house.worker("outcome(error={'code': 'request', 'message': 'no'}); sys.exit(2)").run(until_empty=True)
    after = house.store.get(job.id)
    assert (after.status, after.attempt) == (Status.FAILED, 1)
    assert after.error is not None and after.error.code == "request"


def test_a_crash_is_tried_again_up_to_max_attempts(house: House) -> None:
    job = house.submit(max_attempts=3)
    house.worker("print('the end is near', flush=True); os.kill(os.getpid(), 9)").run(until_empty=True)
    after = house.store.get(job.id)
    assert (after.status, after.attempt) == (Status.FAILED, 3)
    assert after.error is not None and after.error.code == "crashed"
    assert "SIGKILL" in after.error.message and "the end is near" in after.error.message
    assert house.kinds(job).count("retrying") == 2


def test_a_stop_that_its_worker_did_not_ask_for_is_an_attempt(house: House) -> None:
    job = house.submit(max_attempts=3)
    house.worker("sys.exit(75)").run(until_empty=True)
    after = house.store.get(job.id)
    assert (after.status, after.attempt, after.claim) == (Status.FAILED, 3, 3)
    assert "handed_back" not in house.kinds(job)


def test_a_second_attempt_goes_on_from_the_first(house: House) -> None:
    script = """
told = json.loads((here / "assignment.json").read_text())
run = here / "run"; run.mkdir(); (run / "config.json").write_text("{}")
if told["claim"] < 3: sys.exit(1)
event("previous", path=told["paths"]["previous"]); succeed()
"""
    job = house.submit()
    house.worker(script).run(until_empty=True)
    events = {event.kind: event.data for event in house.store.events(job.id)}
    assert events["previous"]["path"] == str(house.home.attempt(job.id, 2))
    assert [path.name for path in house.home.job(job.id).iterdir()] == ["3"], "losing attempts are cleaned away"


def test_what_lies_where_an_attempt_is_to_begin_is_not_believed_but_resumed_from(house: House) -> None:
    job = house.submit()
    stale = house.home.attempt(job.id, 1)
    (stale / "run/resume").mkdir(parents=True)
    (stale / "run/config.json").write_text("{}")
    (stale / "run/resume/step-000000007.safetensors").write_text("progress")
    (stale / "outcome.json").write_text('{"result": {"metrics": {"top1": 0.1}}}')
    (stale / "events.jsonl").write_text('{"kind": "stale"}\n')
    script = """
told = json.loads((here / "assignment.json").read_text())
event("found", names=sorted(path.name for path in here.iterdir()), previous=told["paths"].get("previous")); sys.exit(1)
"""
    worker = house.worker(script)
    house.step_until(worker, lambda: "retrying" in house.kinds(job))
    assert "stale" not in house.kinds(job)
    found = next(event.data for event in house.store.events(job.id) if event.kind == "found")
    assert found["names"] == ["assignment.json", "log.txt"]
    assert (Path(found["previous"]) / "run/resume/step-000000007.safetensors").read_text() == "progress"


def test_cancel_ends_the_job_and_frees_the_slot(house: House) -> None:
    job, other = house.submit(), house.submit()
    worker = house.worker("wait_for_stop()")
    house.step_until(worker, lambda: "ready" in house.kinds(job))
    house.store.cancel(job.id)
    house.step_until(worker, lambda: house.store.get(job.id).terminal)
    assert house.store.get(job.id).status is Status.CANCELLED
    assert processes_of(house.home.job(job.id)) == []
    house.step_until(worker, lambda: house.store.get(other.id).status is Status.RUNNING)


def test_a_process_that_will_not_leave_is_ended_with_all_it_started(house: House) -> None:
    script = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
deaf = "import signal, sys, time; signal.signal(15, signal.SIG_IGN); time.sleep(60)"
subprocess.Popen([sys.executable, "-S", "-c", deaf, str(here)])
event("ready"); time.sleep(60)
"""
    job = house.submit()
    worker = house.worker(script, grace=0.2)
    house.step_until(worker, lambda: "ready" in house.kinds(job))
    assert len(wait_for(lambda: processes_of(house.home.job(job.id)))) == 2
    house.store.cancel(job.id)
    began = time.monotonic()
    house.step_until(worker, lambda: house.store.get(job.id).terminal)
    assert time.monotonic() - began >= 0.2, "it had its time"
    assert house.store.get(job.id).status is Status.CANCELLED
    assert wait_for(lambda: not processes_of(house.home.job(job.id)))


def test_what_a_process_leaves_running_ends_with_it(house: House) -> None:
    script = """
subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)", str(here)]); succeed()
"""
    job = house.submit()
    house.worker(script).run(until_empty=True)
    assert house.store.get(job.id).status is Status.SUCCEEDED
    assert wait_for(lambda: not processes_of(house.home.job(job.id)))


def test_a_drained_worker_hands_its_jobs_back(house: House) -> None:
    job, waiting = house.submit(), house.submit()
    worker = house.worker("wait_for_stop()")
    house.step_until(worker, lambda: "ready" in house.kinds(job))
    worker.drain()
    worker.run()
    for one in (job, waiting):
        assert house.store.get(one.id).status is Status.QUEUED
        assert house.store.get(one.id).attempt == 0, "a drain is no attempt"
    assert "handed_back" in house.kinds(job)
    assert house.store.statistics().workers == ()
    house.worker("succeed()").run(until_empty=True)
    assert house.store.get(job.id).status is Status.SUCCEEDED


def test_a_result_that_was_ready_when_the_drain_came_is_published(house: House) -> None:
    job = house.submit()
    worker = house.worker("signal.signal(15, lambda *a: (succeed(), sys.exit(0))); event('ready'); time.sleep(60)")
    house.step_until(worker, lambda: "ready" in house.kinds(job))
    worker.drain()
    worker.run()
    assert house.store.get(job.id).status is Status.SUCCEEDED


def test_a_worker_that_lost_its_job_ends_the_process_and_changes_nothing(house: House) -> None:
    job = house.submit()
    frozen = house.worker("event('ready'); time.sleep(3); succeed()", lease=1)
    house.step_until(frozen, lambda: "ready" in house.kinds(job))
    wait_for(lambda: house.store.reap(0.3))  # nobody steps the first worker meanwhile: it is silent
    second = house.worker("outcome(result={'metrics': {'by': 'second'}})")
    second.run(until_empty=True)
    before = house.store.get(job.id)
    assert before.result is not None and before.result.metrics == {"by": "second"}
    house.step_until(frozen, lambda: not frozen.busy)
    assert house.store.get(job.id) == before
    assert processes_of(house.home.job(job.id)) == []
    assert [path.name for path in house.home.job(job.id).iterdir()] == ["2"]


def test_a_worker_that_has_a_job_twice_ends_the_claim_that_it_lost(house: House) -> None:
    job = house.submit()
    script = """
event("ready")
if json.loads((here / "assignment.json").read_text())["claim"] == 1:
    while not (here.parent / "go").exists(): time.sleep(0.01)
    event("last_words"); succeed(); sys.exit()
time.sleep(0.2); succeed()
"""
    worker = house.worker(script, slots=2)
    house.step_until(worker, lambda: "ready" in house.kinds(job))
    wait_for(lambda: house.store.reap(0.1))  # it was silent for too long, and has a slot free to claim the job again
    worker._due["beat"] = float("inf")
    house.step_until(worker, lambda: house.store.get(job.id).claim == 2)
    worker._due["beat"] = float("inf")
    (house.home.job(job.id) / "go").touch()  # the lost process ends before its worker has heard that it is lost
    house.step_until(worker, lambda: not worker.busy)
    after = house.store.get(job.id)
    assert (after.status, after.claim, after.attempt) == (Status.SUCCEEDED, 2, 2)
    assert "last_words" not in house.kinds(job) and house.kinds(job).count("stalled") == 1


def test_a_process_that_ended_while_its_worker_was_frozen_publishes_nothing(house: House) -> None:
    job = house.submit()
    frozen = house.worker("event('ready'); succeed()")
    frozen.step()
    wait_for((house.home.attempt(job.id, 1) / "outcome.json").exists)
    wait_for(lambda: house.store.reap(0.2))
    assert house.store.get(job.id).status is Status.QUEUED
    house.step_until(frozen, lambda: house.store.get(job.id).claim == 2)
    assert house.store.get(job.id).worker == frozen.name, "it may well get the job again, as a new claim"
    house.step_until(frozen, lambda: house.store.get(job.id).terminal)
    assert house.store.get(job.id).attempt == 2


def test_jobs_go_on_while_the_database_is_away(house: House) -> None:
    import sqlite3

    house.store.close()
    house.store = Store(house.settings.database, wait=0.1)
    job = house.submit()
    worker = house.worker("for i in range(10):\n  progress(step=i); time.sleep(0.02)\nsucceed()")
    house.step_until(worker, lambda: house.store.get(job.id).status is Status.RUNNING)
    lock = sqlite3.connect(house.settings.root / "tcnn.db", isolation_level=None)
    lock.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StoreUnavailable):
        house.store.cancel(job.id)
    worker.step()
    outcome = house.home.attempt(job.id, 1) / "outcome.json"
    wait_for(outcome.exists)
    worker.step()
    assert worker.busy == 1, "what the store has not accepted is not forgotten"
    lock.execute("ROLLBACK")
    lock.close()
    house.step_until(worker, lambda: house.store.get(job.id).terminal)
    assert house.store.get(job.id).status is Status.SUCCEEDED


def test_a_reference_that_is_gone_fails_the_job_in_one_line(house: House) -> None:
    request = {"model": "resnet18", "finetune": {"dataset": "ds_0123456789abcdef"}}
    job = house.submit(request=request)
    house.worker("succeed()").run(until_empty=True)
    after = house.store.get(job.id)
    assert after.status is Status.FAILED
    assert after.error is not None and after.error.code == "upload_not_found"
    assert "\n" not in after.error.message


def test_secrets_are_not_handed_to_jobs(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TCNN_DATABASE_URL", "postgresql://user:hush@db/tcnn")
    monkeypatch.setenv("TCNN_WEBHOOK_SECRET", "hush")
    monkeypatch.setenv("TCNN_API_KEYS", "a:hush")
    job = house.submit()
    house.worker("event('environment', text=repr(dict(os.environ))); succeed()").run(until_empty=True)
    text = next(event.data["text"] for event in house.store.events(job.id) if event.kind == "environment")
    assert "hush" not in text


def test_a_stopped_process_hears_that_it_is_cancelled(house: House) -> None:
    job = house.submit()
    worker = house.worker("event('pid', pid=os.getpid()); wait_for_stop()")
    house.step_until(worker, lambda: "ready" in house.kinds(job))
    pid = next(event.data["pid"] for event in house.store.events(job.id) if event.kind == "pid")
    os.kill(pid, signal.SIGSTOP)
    house.store.cancel(job.id)
    house.step_until(worker, lambda: house.store.get(job.id).terminal)
    assert house.store.get(job.id).status is Status.CANCELLED


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TCNN_HOME", str(tmp_path / "h"))
    monkeypatch.setenv("TCNN_LEASE", "90")
    settings = QueueSettings()
    assert settings.lease == 90
    assert settings.database == f"sqlite:///{tmp_path}/h/tcnn.db"
