"""A host in a network of its own, whose wire is pulled while it trains: the job goes on elsewhere and ends once."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from houses import processes_of, wait_for
from postgres import NoPostgres, Server, postgres
from s3 import BUCKET, Gate, s3
from tiny_runs import colours

from tcnn_jobs.artifacts.bucket import ObjectGone
from tcnn_jobs.artifacts.layout import home_of, manifest_key
from tcnn_jobs.artifacts.shared import SharedArtifacts, open_artifacts
from tcnn_jobs.model.jobs import Kind, NewJob, Status
from tcnn_jobs.settings import QueueSettings
from tcnn_jobs.store import Store

HERE, THERE = "10.77.31.1", "10.77.31.2"
CONFIG = {
    "epochs": 20, "warmup_epochs": 1, "anneal_epochs": None, "batch_size": 8, "size": 32, "workers": 0,
    "val_split": 0.2, "checkpoint_steps": 1, "device": "cpu",
}  # fmt: skip


class Wire:
    """A pair of network devices; the far end is in the namespace of a process that only keeps it open."""

    def __init__(self) -> None:
        self.keeper = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        wait_for(lambda: Path(f"/proc/{self.keeper.pid}/ns/net").readlink() != Path("/proc/self/ns/net").readlink())
        self.inside = ["nsenter", "--target", str(self.keeper.pid), "--net"]
        self._ip("link add tcnn-near type veth peer name tcnn-far netns", str(self.keeper.pid))
        self._ip(f"address add {HERE}/30 dev tcnn-near")
        self.join()
        for words in (f"address add {THERE}/30 dev tcnn-far", "link set tcnn-far up", "link set lo up"):
            subprocess.run([*self.inside, "ip", *words.split()], check=True)

    def pull(self) -> None:
        """From now on nothing arrives, and nobody is told."""
        self._ip("link set tcnn-near down")

    def join(self) -> None:
        self._ip("link set tcnn-near up")

    def remove(self) -> None:
        self.keeper.kill()
        self.keeper.wait()
        subprocess.run(["ip", "link", "delete", "tcnn-near"], check=False, capture_output=True)

    def _ip(self, words: str, *more: str) -> None:
        subprocess.run(["ip", *words.split(), *more], check=True)


@contextmanager
def wire() -> Iterator[Wire]:
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "unshare", "nsenter"))):
        pytest.skip("NOT TESTED WITH A NETWORK THAT IS CUT: it takes root, ip, unshare and nsenter")
    made = Wire()
    try:
        yield made
    finally:
        made.remove()


@pytest.fixture
def network() -> Iterator[tuple[Wire, Server, Gate]]:
    try:
        with wire() as between, postgres(listen="*") as cluster, s3(HERE) as gate:
            cluster.create("shared")
            yield between, cluster, gate
    except NoPostgres as missing:
        pytest.skip(f"NOT TESTED ON POSTGRESQL: {missing}")


def manifest(artifacts: SharedArtifacts, job: str) -> str:
    """What the first attempt is known to have sent; a file that it does not name helps nobody."""
    try:
        return artifacts.bucket.text(manifest_key(job, 1))
    except ObjectGone:
        return ""


def test_the_wire_is_pulled(
    network: tuple[Wire, Server, Gate], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    between, cluster, gate = network
    shared = {
        **gate.environment, "TCNN_ARTIFACTS": f"s3://{BUCKET}/x", "TCNN_DATABASE_URL": cluster.over_tcp("shared", HERE),
        "TCNN_LEASE": "5", "TCNN_POLL": "0.2", "TCNN_MIRROR": "0.5", "TCNN_RETRY_DELAY": "0.1", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    for name, value in shared.items():
        monkeypatch.setenv(name, value)
    settings = QueueSettings(home=tmp_path / "watching")
    store, home = Store(settings.database), home_of(settings).create()
    store.migrate()
    artifacts = open_artifacts(settings, home)
    assert isinstance(artifacts, SharedArtifacts)

    def start(name: str, *before: str) -> subprocess.Popen[bytes]:
        log = (tmp_path / f"{name}.log").open("wb")
        environment = os.environ | {"TCNN_HOME": str(tmp_path / name)}
        return subprocess.Popen(
            [*before, sys.executable, "-m", "tcnn", "worker"], env=environment, stdout=log, stderr=log
        )

    training = {"dataset": str(colours(tmp_path / "images")), "preset": "quick", "config": CONFIG}
    request = {"model": "test_resnet", "pretrained": False, "finetune": training}
    job = store.enqueue(NewJob(owner="local", kind=Kind.TRANSFORM, request=request))

    def epoch() -> int:
        now = store.get(job.id).progress
        return (now.epoch or 0) if now is not None and now.phase == "training" else 0

    cut = start("cut", *between.inside)
    other = None
    try:
        wait_for(lambda: epoch() >= 3, 900)
        wait_for(lambda: "step-" in manifest(artifacts, job.id), 60)
        between.pull()
        other = start("other")
        after = wait_for(lambda: (now := store.get(job.id)).terminal and now, 900)
        assert after.status is Status.SUCCEEDED and after.result is not None and after.result.checkpoint is not None
        assert after.worker is not None and str(other.pid) in after.worker
        assert after.result.checkpoint.path.startswith(f"{job.id}/2/")
        log = artifacts.attempt_file(job.id, 2, "log.txt")
        assert log is not None and "going on in epoch" in log.read_text(), "it did not begin anew"
        between.join()
        wait_for(lambda: not [pid for pid in processes_of(tmp_path / "cut") if pid != cut.pid], 120)
        kinds = [event.kind for event in store.events(job.id)]
        assert (kinds.count("started"), kinds.count("stalled"), kinds.count("succeeded")) == (2, 1, 1)
        epochs = [event.data["epoch"] for event in store.events(job.id) if event.kind == "epoch"]
        assert epochs == list(range(CONFIG["epochs"]))
        assert store.get(job.id) == after
        assert cut.poll() is None, "it works on"
    finally:
        for process in (cut, other):
            if process is not None:
                process.kill()
                process.wait()
        store.close()
