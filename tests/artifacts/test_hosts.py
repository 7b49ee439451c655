"""Hosts that share a database and a store, and no folder. Jobs are scripts: what is seen is the transfers."""

import hashlib
import threading
from pathlib import Path

import pytest
from apart import Host
from s3 import Gate, fails, full, read_only

from tcnn_jobs.artifacts.bucket import Bucket
from tcnn_jobs.housekeeping import janitor, objects
from tcnn_jobs.model.jobs import Kind, NewJob, Status, Upload

RESUMABLE = """
before = told["paths"].get("previous")
if before is None:
    publish("run/config.json", b"{}"); point(1, b"old"); time.sleep(0.2); point(2, b"new"); wait_for_stop()
names = sorted(str(path.relative_to(before)) for path in Path(before).rglob("*") if path.is_file())
event("previous", names=names, point=(Path(before) / "run/resume/step-000000002.safetensors").read_text())
succeed()
"""
AGAIN = """
before = told["paths"].get("previous")
event("trained" if before is None else "inherited"); succeed()
"""


def keys(gate: Gate) -> set[str]:
    """Keys without the URL's prefix, digests left out."""
    parts = [key.split("/") for key in gate.names()]
    return {"/".join(part for part in one[1:] if len(part) != 64) for one in parts}


def test_a_result_is_in_the_store_and_other_hosts_have_it(hosts: list[Host], gate: Gate) -> None:
    first, second = hosts
    job = first.submit()
    first.courier("print('hello', flush=True); succeed()").run(until_empty=True)
    after = first.store.get(job.id)
    assert after.status is Status.SUCCEEDED and after.result is not None and after.result.checkpoint is not None
    assert first.kinds(job) == ["queued", "started", "phase", "succeeded"]
    assert not first.home.job(job.id).exists(), "here it would only take room"
    expected = {"manifest.json", "best.safetensors", "config.json", "metrics.jsonl", "log.txt"}
    assert keys(gate) == {f"jobs/{job.id}/1/{name}" for name in expected}
    file = after.result.checkpoint
    path = second.artifacts.path(second.artifacts.file(file))
    assert hashlib.sha256(path.read_bytes()).hexdigest() == file.sha256
    log = second.artifacts.attempt_file(job.id, 1, "log.txt")
    assert log is not None and log.read_text() == "hello\n"
    opened = second.artifacts.open(file)
    with opened.handle as handle:
        handle.seek(file.size - 7)
        assert (opened.size, handle.read()) == (file.size, b"weights")


def test_a_host_is_cut_off_and_another_goes_on_from_its_newest_resume_point(near: list[Host]) -> None:
    first, second = near
    job = first.submit()
    lost = first.courier(RESUMABLE, lease=1)
    first.step_until(lost, lambda: f"jobs/{job.id}/1/step-000000002.safetensors" in first.stored())
    worker = second.courier(RESUMABLE, lease=1)  # the first is not stepped any more: nobody hears of it
    second.step_until(worker, lambda: second.store.get(job.id).terminal)
    assert second.store.get(job.id).status is Status.SUCCEEDED
    told = {event.kind: event.data for event in second.store.events(job.id)}
    assert told["previous"]["point"] == "new"
    assert told["previous"]["names"] == ["log.txt", "run/config.json", "run/resume/step-000000002.safetensors"]
    first.step_until(lost, lambda: lost.busy == 0)
    assert second.kinds(job).count("succeeded") == 1
    second.sweep()
    assert {key.split("/")[2] for key in first.stored()} == {"2"}, "what lost is swept"


@pytest.mark.slow
def test_mirrored_resume_points_outlive_attempts_that_got_nowhere(hosts: list[Host], gate: Gate) -> None:
    first, second = hosts
    script = """
claim, before = told["claim"], told["paths"].get("previous")
if claim == 1: publish("run/config.json", b"{}"); point(7, b"progress")
if claim == 2: publish("conversion.json", b"{}")
if claim < 3: sys.exit(1)
event("resumed_from", names=sorted(path.name for path in Path(before).rglob("step-*"))); succeed()
"""
    job = first.submit(max_attempts=2)
    first.courier(script).run(until_empty=True)
    assert first.store.get(job.id).status is Status.FAILED
    first.sweep()
    kept = {"1/step-000000007.safetensors", "1/config.json", "1/manifest.json", "1/log.txt"}
    assert {f"jobs/{job.id}/{name}" for name in kept} <= keys(gate)
    first.store.resume(job.id)
    second.courier(script).run(until_empty=True)
    told = {event.kind: event.data for event in second.store.events(job.id)}
    assert told["resumed_from"]["names"] == ["step-000000007.safetensors"]


def test_what_a_job_needs_is_fetched_once(near: list[Host], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = near
    found = tmp_path / "first" / "home" / "incoming" / "unpacked"
    (found / "cat").mkdir(parents=True)
    (found / "cat" / "1.png").write_bytes(b"picture")
    weights = tmp_path / "first" / "home" / "incoming" / "file"
    weights.write_bytes(b"weights")
    digest = hashlib.sha256(b"weights").hexdigest()
    rows = [
        ("ds_0123456789", "dataset", found, "0" * 64),
        ("ckpt_0123456789", "checkpoint", weights, digest),
    ]
    for identifier, kind, path, sha256 in rows:
        upload = Upload(id=identifier, owner="local", kind=kind, name="x", path=identifier, size=7, sha256=sha256)
        first.store.add_upload(first.artifacts.add(upload, path))
    sent = first.stored() | set(first.artifacts.bucket.keys("checkpoints"))
    assert sent == {"datasets/ds_0123456789.tar", "checkpoints/ckpt_0123456789.safetensors"}
    request = {"checkpoint": "ckpt_0123456789", "dataset": "ds_0123456789", "config": {"epochs": 1}}
    jobs = [second.store.enqueue(NewJob(owner="local", kind=Kind.FINETUNE, request=request)) for _ in range(2)]
    asked: list[str] = []
    get = Bucket.get
    monkeypatch.setattr(Bucket, "get", lambda bucket, key, *more: (asked.append(key), get(bucket, key, *more))[1])
    second.courier(
        "places = told['paths']; event('found', names=[str(p.relative_to(places['dataset'])) for p in "
        "Path(places['dataset']).rglob('*.png')], weights=Path(places['source']).read_text()); succeed()"
    ).run(until_empty=True)
    for job in jobs:
        told = {event.kind: event.data for event in second.store.events(job.id)}
        assert told["found"] == {"names": ["cat/1.png"], "weights": "weights"}
    assert sorted(asked) == ["checkpoints/ckpt_0123456789.safetensors", "datasets/ds_0123456789.tar"]


def test_without_rights_the_job_fails_keeps_its_files_and_a_resume_sends_them(hosts: list[Host], gate: Gate) -> None:
    (first, _), job = hosts, hosts[0].submit(max_attempts=3)
    gate.refuse = read_only
    first.courier(AGAIN).run(until_empty=True)
    after = first.store.get(job.id)
    assert (after.status, after.attempt) == (Status.FAILED, 1), "no second try will get more rights"
    assert after.error is not None and after.error.code == "storage"
    assert after.error.message.startswith("the store of results: cannot send ") and "\n" not in after.error.message
    assert "Denied" in after.error.message and after.error.message.endswith("resume the job when the store works")
    assert (first.home.attempt(job.id, 1) / "run/best.safetensors").read_bytes() == b"weights" * 1000
    gate.empty()
    first.store.resume(job.id)
    first.courier(AGAIN).run(until_empty=True)
    assert first.store.get(job.id).status is Status.SUCCEEDED
    assert [kind for kind in first.kinds(job) if kind in ("trained", "inherited")] == ["trained", "inherited"]
    assert f"jobs/{job.id}/2/best.safetensors" in keys(gate)


@pytest.mark.slow  # `test_bucket.py` has what is tried again, and above is a job whose result cannot be sent
@pytest.mark.parametrize("trouble", ["full", "briefly"])
def test_a_store_that_does_not_work_for_a_while(hosts: list[Host], gate: Gate, trouble: str) -> None:
    (first, _), job = hosts, hosts[0].submit(max_attempts=2)
    gate.refuse = full if trouble == "full" else fails(times=2)
    first.courier("succeed()").run(until_empty=True)
    after = first.store.get(job.id)
    if trouble == "briefly":
        assert (after.status, after.attempt) == (Status.SUCCEEDED, 1)
        return
    assert (after.status, after.attempt) == (Status.FAILED, 2), "it might have had room by then"
    assert after.error is not None and "XMinioStorageFull" in after.error.message
    assert (first.home.attempt(job.id, 2) / "run/best.safetensors").is_file()


@pytest.mark.slow  # jobs are cancelled in tests/jobs/worker, results sent above
def test_cancelled_while_the_result_is_sent(hosts: list[Host], gate: Gate) -> None:
    (first, _), job = hosts, hosts[0].submit()
    arrived, leave = threading.Event(), threading.Event()

    def hold(method: str, path: str) -> None:
        if method == "PUT" and "best" in path:
            arrived.set()
            leave.wait(30)

    gate.refuse = hold
    worker = first.courier("succeed()", grace=1)
    first.step_until(worker, arrived.is_set)
    first.step_until(worker, lambda: "uploading" in str(first.store.get(job.id).progress))
    before = first.store.get(job.id)
    first.step_until(worker, lambda: first.store.get(job.id).heartbeat_at != before.heartbeat_at)
    first.store.cancel(job.id)
    first.step_until(worker, lambda: first.store.get(job.id).terminal)
    assert first.store.get(job.id).status is Status.CANCELLED
    assert worker.busy == 0
    leave.set()


@pytest.mark.slow
def test_a_drained_host_sends_the_last_resume_point_before_it_hands_the_job_back(hosts: list[Host]) -> None:
    first, second = hosts
    job = first.submit()
    script = """
if told["paths"].get("previous"): event("went on"); succeed(); sys.exit()
def leave(*_): point(7, b"last"); sys.exit(75)
signal.signal(signal.SIGTERM, leave); publish("run/config.json", b"{}"); event("ready"); time.sleep(60)
"""
    worker = first.courier(script)
    worker.step()
    first.step_until(worker, lambda: "ready" in first.kinds(job))
    worker.drain()
    first.step_until(worker, lambda: worker.busy == 0)
    manifest = second.artifacts.manifest(job.id, 1)
    assert manifest is not None and manifest.file(job.id, 1, "run/resume/step-000000007.safetensors") is not None
    second.courier(script).run(until_empty=True)
    assert "went on" in second.kinds(job) and second.store.get(job.id).status is Status.SUCCEEDED


def test_what_no_row_speaks_of_is_swept(near: list[Host], monkeypatch: pytest.MonkeyPatch) -> None:
    (first, _), job = near, near[0].submit()
    first.courier("point(3, b'point'); succeed()").run(until_empty=True)
    bucket = first.artifacts.bucket
    for key in ("jobs/job_00000000/1/manifest.json", "datasets/ds_00000000.tar", f"jobs/{job.id}/1/{'0' * 64}/stray"):
        bucket.put_text(key, "{}")
    first.sweep()
    assert {"jobs/job_00000000/1/manifest.json", "datasets/ds_00000000.tar"} <= first.stored(), "too young to be judged"
    assert not any("step-" in key for key in first.stored())
    manifest = first.artifacts.manifest(job.id, 1)
    assert manifest is not None and not any("step-" in file.name for file in manifest.files)
    monkeypatch.setattr(objects, "YOUNG", -1.0)
    bucket.put_text(f"jobs/{job.id}/1/{'0' * 64}/step-1", "{}")
    first.sweep()
    assert {key.rpartition("/")[2] for key in first.stored()} == {
        "manifest.json", "best.safetensors", "config.json", "metrics.jsonl", "log.txt",
    }  # fmt: skip
    job = first.store.get(job.id)
    janitor.forget(first.artifacts, first.store, job, "test")
    assert first.stored() == set()


def test_what_a_worker_could_not_remove_is_swept_and_a_baselines_files_are_left(
    near: list[Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    (first, _), job = near, near[0].submit()
    first.courier(
        """
for run in ("run", "run/baseline"):
    for name in ("config.json", "metrics.jsonl", "best.safetensors"): publish(f"{run}/{name}", f"{run}/{name}".encode())
best = publish("run/best.safetensors", b"weights"); outcome(result={"checkpoint": best, "files": [best]})
"""
    ).run(until_empty=True)
    bucket, before = first.artifacts.bucket, set(first.artifacts.bucket.keys("jobs"))
    monkeypatch.setattr(objects, "YOUNG", -1.0)
    first.sweep()
    assert set(bucket.keys("jobs")) == before and len(before) == 8
    for digest in ("0" * 64, "1" * 64):
        bucket.put_text(f"jobs/{job.id}/1/{digest}/best.safetensors", "superseded long ago")
        first.sweep()
        assert set(bucket.keys("jobs")) == before


def test_an_object_that_may_not_be_deleted_holds_up_no_other(near: list[Host], monkeypatch: pytest.MonkeyPatch) -> None:
    first, bucket = near[0], near[0].artifacts.bucket
    keys = [f"jobs/job_0000000{number}/1/manifest.json" for number in range(3)]
    for key in keys:
        bucket.put_text(key, "{}")
    remove = bucket._fs.rm_file

    def held(path: str) -> None:
        if "job_00000001" in path:
            raise PermissionError("there is a legal hold on it")
        remove(path)

    monkeypatch.setattr(bucket._fs, "rm_file", held)
    monkeypatch.setattr(objects, "YOUNG", -1.0)
    first.sweep()
    assert list(bucket.keys("jobs")) == [keys[1]]


def test_no_job_goes_for_what_a_sweep_removes(near: list[Host]) -> None:
    """Resume points of what has ended, what no manifest names or will, what no row speaks of: of these more than there
    is room for."""
    first, bucket = near[0], near[0].artifacts.bucket
    jobs = [first.submit() for _ in range(2)]
    first.courier("point(3, b'p' * 50_000); succeed(b'w' * 10_000)").run(until_empty=True)
    waste = "w" * 50_000
    for key in (f"jobs/{jobs[0].id}/1/{'0' * 64}/best.safetensors", "jobs/job_00000000/1/manifest.json"):
        bucket.put_text(key, waste)
    first.sweep(retention_gb=3e-5)
    assert first.store.known([job.id for job in jobs]) == {job.id for job in jobs}
    kept = objects.sweep_store(first.store, first.artifacts)
    assert kept.keys() == {job.id for job in jobs} and all(10_000 < size < 12_000 for size in kept.values())
    first.sweep(retention_gb=1.2e-5)
    assert first.store.known([job.id for job in jobs]) == {jobs[1].id}, "of what is kept there is too much"
    assert not any(jobs[0].id in key for key in first.stored())
