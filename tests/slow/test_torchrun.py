"""A job of two processes that loses one: the other does not stay, the queue tries again, and the job finishes."""

import os
import signal
from pathlib import Path
from typing import Any

from houses import House, RealWorkers, processes_of, wait_for
from tiny_runs import colours

from jobs.model import Kind, Status

CONFIG: dict[str, Any] = {
    "epochs": 12, "warmup_epochs": 1, "batch_size": 8, "size": 32, "workers": 0, "val_split": 0.2,
    "checkpoint_steps": 1, "anneal_epochs": None, "device": "cpu",
}  # fmt: skip


def test_a_killed_rank_costs_no_more_than_the_steps_since_the_last_checkpoint(tmp_path: Path) -> None:
    house = House(tmp_path / "home")
    request = {
        "model": "test_resnet", "pretrained": False, "dataset": str(colours(tmp_path / "images")), "preset": "quick",
        "config": CONFIG, "num_workers": 2,
    }  # fmt: skip
    job = house.submit(kind=Kind.FINETUNE, slots=2, request=request)
    workers = RealWorkers(house.settings.root)
    try:
        workers.start("--slots", "2")
        wait_for(lambda: "epoch" in house.kinds(job), 240)
        ranks = [pid for pid in processes_of(house.home.job(job.id)) if b"tcnn.training.rank" in words(pid)]
        assert len(ranks) == 2
        os.kill(ranks[1], signal.SIGKILL)
        wait_for(lambda: house.store.get(job.id).terminal, 240)
    finally:
        workers.end()
    after = house.store.get(job.id)
    assert (after.status, after.attempt) == (Status.SUCCEEDED, 2), after.error
    events = house.store.events(job.id)
    assert [event.data["message"] for event in events if event.kind == "retrying"] == [
        "one of the 2 training processes ended without a word, as it does when memory runs out; "
        "go on with --resume; the log says more"
    ]
    assert any(text.startswith("going on in epoch") and "epoch 1 at step 0" not in text for text in house.messages(job))
    told = [event.data["epoch"] for event in events if event.kind == "epoch"]
    assert told == list(range(CONFIG["epochs"])), "every epoch is told once, whoever trained it"
    assert processes_of(house.home.job(job.id)) == []


def words(pid: int) -> bytes:
    """The command line of a process, empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
