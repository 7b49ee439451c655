"""Two processes on one host: of a job, where one is killed or the job cancelled, and none stays behind; of a user's
own script under `torchrun`, whose run one process goes on with.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from data_pictures import draw_classes
from houses import House, RealWorkers, processes_of, wait_for
from tiny_runs import colours

from tcnn.config import finetune_config
from tcnn.training.finetune import finetune
from tcnn.training.runs.rundir import RunDirectory
from tcnn_jobs.model.jobs import Job, Kind, Status
from tcnn_jobs.settings import QueueSettings

CONFIG: dict[str, Any] = {
    "epochs": 12, "warmup_epochs": 1, "batch_size": 8, "size": 32, "workers": 0, "val_split": 0.2,
    "checkpoint_steps": 1, "anneal_epochs": None, "device": "cpu",
}  # fmt: skip


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    """A house with a worker of two slots, a process of its own."""
    house = House(tmp_path / "home")
    workers = RealWorkers(house.settings.root)
    workers.start("--slots", "2")
    yield house
    workers.end()
    house.store.close()


def trained_a_little(house: House, tmp_path: Path) -> tuple[Job, list[int]]:
    """A job that has finished an epoch, and its two ranks."""
    request = {
        "model": "test_resnet", "pretrained": False, "dataset": str(colours(tmp_path / "images")), "preset": "quick",
        "config": CONFIG, "num_workers": 2,
    }  # fmt: skip
    job = house.submit(kind=Kind.FINETUNE, slots=2, request=request)
    wait_for(lambda: "epoch" in house.kinds(job), 240)
    ranks = [pid for pid in processes_of(house.home.job(job.id)) if b"tcnn.training.launch.rank" in words(pid)]
    assert len(ranks) == 2
    return job, ranks


def test_a_killed_rank_costs_no_more_than_the_steps_since_the_last_checkpoint(house: House, tmp_path: Path) -> None:
    """The other process does not stay behind, the queue tries again, and the job finishes."""
    job, ranks = trained_a_little(house, tmp_path)
    os.kill(ranks[1], signal.SIGKILL)
    wait_for(lambda: house.store.get(job.id).terminal, 240)
    after = house.store.get(job.id)
    assert (after.status, after.attempt) == (Status.SUCCEEDED, 2), after.error
    events = house.store.events(job.id)
    assert [event.data["message"] for event in events if event.kind == "retrying"] == [
        "one of the 2 training processes ended without a word, as it does when memory runs out; "
        "resume the job; the log says more"
    ]
    assert any(text.startswith("going on in epoch") and "epoch 1 at step 0" not in text for text in house.messages(job))
    told = [event.data["epoch"] for event in events if event.kind == "epoch"]
    assert told == list(range(CONFIG["epochs"])), "every epoch is told once, whoever trained it"
    assert processes_of(house.home.job(job.id)) == []


def test_a_cancelled_job_leaves_nobody_behind_and_can_go_on(house: House, tmp_path: Path) -> None:
    """Both processes end within the grace time, what they had is saved, and both slots are free again."""
    job, _ = trained_a_little(house, tmp_path)
    house.store.cancel(job.id)
    wait_for(lambda: house.store.get(job.id).terminal, QueueSettings().grace + 10)
    assert house.store.get(job.id).status is Status.CANCELLED
    assert processes_of(house.home.job(job.id)) == []
    house.store.resume(job.id)
    wait_for(lambda: any(text.startswith("going on in epoch") for text in house.messages(job)), 120)


def words(pid: int) -> bytes:
    """The command line of a process, empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


OPTIONS = {
    "size": 48, "epochs": 2, "batch_size": 8, "workers": 0, "device": "cpu", "val_split": 0.25, "mixup": 0.8,
    "drop_path": 0.2, "log_steps": 1, "checkpoint_steps": 2, "hold": "gates", "bn_reestimate": 2,
    "anneal": "warmup", "conversion": {"content_heads": 0},
}  # fmt: skip
SCRIPT = """
import json, sys
import torch
from tcnn.config import finetune_config
from tcnn.training.finetune import finetune

torch.set_num_threads(1)
out, data, options = sys.argv[1:4]
config = finetune_config("quick", options=json.loads(options))
finetune("test_resnet", data, config=config, out=out, pretrained=False, resume=True)
"""


def test_two_processes_of_torchrun_make_one_run(tmp_path: Path) -> None:
    images = draw_classes(tmp_path / "data", ["a", "b", "c"], images=15)
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts=0", "--nproc-per-node=2",
        "train.py", "run", str(images), json.dumps(OPTIONS),
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    run = RunDirectory(tmp_path / "run")
    assert [row["updates"] for row in run.rows("epoch")] == [4, 8]  # of 34 images in batches of 8
    config = finetune_config("quick", options=OPTIONS)
    result = finetune("test_resnet", str(images), config=config, out=run.path, resume=True, pretrained=False)
    assert result.epochs == 2
