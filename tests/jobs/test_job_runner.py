"""What leaves a job's process in words."""

import errno
import importlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from forked import processes
from nets import seeded_model
from tiny_runs import TINY, colours

import tcnn
from tcnn.errors import CheckpointError, Stopped
from tcnn.training.runs.rundir import RunDirectory
from tcnn.workflows.pipeline import convert_to_file
from tcnn_jobs.attempt import Assignment, AttemptDirectory, Reporter, public, unplaced
from tcnn_jobs.child import runner, tasks
from tcnn_jobs.confined import reports
from tcnn_jobs.model.jobs import Kind, Result
from tcnn_jobs.retry import HandBack, decide


def test_errors_speak_of_the_request_not_of_the_servers_folders() -> None:
    assignment = Assignment(
        job="job_1", claim=1, kind=Kind.EVALUATE,
        request={"checkpoint": "ckpt_1", "dataset": "ds_1", "against": [{"model": "resnet18"}, {"job": "job_0"}]},
        paths={"source": "/srv/checkpoints/ckpt_1.safetensors", "dataset": "/srv/datasets/ds_1",
               "against.1": "/srv/jobs/job_0/1/run/best.safetensors"},
    )  # fmt: skip
    message = (
        "/srv/checkpoints/ckpt_1.safetensors tells 10 classes apart, /srv/datasets/ds_1 has 3; "
        f"/srv/jobs/job_0/1/run/best.safetensors and {Path.cwd()}/run/config.json"
    )
    assert public(message, assignment) == "ckpt_1 tells 10 classes apart, ds_1 has 3; job_0 and run/config.json"


def test_a_result_speaks_of_the_request_in_all_of_its_parts() -> None:
    paths = {"source": "/srv/ckpt_1.safetensors", "against.0.weights": "/srv/wts_1.pth"}
    request = {"checkpoint": "ckpt_1", "against": [{"model": "resnet18", "weights": "wts_1"}]}
    assignment = Assignment(job="job_1", claim=1, kind=Kind.EVALUATE, request=request, paths=paths)
    result = {"rows": [{"model": "/srv/ckpt_1.safetensors", "top1": 0.5}, ["/srv/wts_1.pth", None]], "images": 9}
    told = {"rows": [{"model": "ckpt_1", "top1": 0.5}, ["wts_1", None]], "images": 9}
    assert unplaced(result, assignment) == told


def test_a_transforms_data_set_is_named_inside_its_fine_tuning() -> None:
    request = {"model": "resnet18", "finetune": {"dataset": "ds_1", "val": "ds_2"}}
    paths = {"dataset": "/srv/datasets/ds_1", "val": "/srv/datasets/ds_2", "previous": "/srv/jobs/job_1/1"}
    assignment = Assignment(job="job_1", claim=2, kind=Kind.TRANSFORM, request=request, paths=paths)
    assert public("/srv/datasets/ds_2: empty; /srv/jobs/job_1/1/run", assignment) == "ds_2: empty; previous/run"


def swallow(directory: Path) -> None:
    """A job's process whose task makes an error of its own of a signal."""

    def task(assignment: Assignment, directory: AttemptDirectory, reporter: Reporter) -> Result:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            while True:
                pass
        except Stopped as error:
            raise CheckpointError("damaged") from error

    tasks.TASKS[Kind.TRANSFORM] = task
    sys.exit(runner.main(directory, os.getppid()))


LIBRARY = """
import os, signal
try:
    os.kill(os.getpid(), signal.SIGTERM)
    while True:
        pass
except Exception:  # an optional part cannot be loaded, and is done without
    pass
"""


def load(directory: Path) -> None:
    """A job's process that is asked to stop while its task loads a library."""

    def task(assignment: Assignment, directory: AttemptDirectory, reporter: Reporter) -> Result:
        importlib.import_module("a_library_of_the_task")
        os._exit(1)  # here it would go on for hours

    sys.path.insert(0, str(directory.parent))
    tasks.TASKS[Kind.TRANSFORM] = task
    sys.exit(runner.main(directory, os.getppid()))


@pytest.mark.parametrize("target", [swallow, load])
def test_a_stop_that_a_library_turns_into_its_own_error_is_still_a_stop(
    tmp_path: Path, target: Callable[[Path], None]
) -> None:
    """safetensors, interrupted in the middle of a file, calls the file damaged: a drained job would have failed.

    Others, interrupted while they are loaded, do without a part, or abort the process in C++.
    """
    directory = AttemptDirectory(tmp_path / "1")
    directory.create()
    directory.write(Assignment(job="job_1", claim=1, kind=Kind.TRANSFORM, request={"model": "resnet18"}))
    (tmp_path / "a_library_of_the_task.py").write_text(LIBRARY, encoding="utf-8")
    process = processes.Process(target=target, args=(directory.path,))
    process.start()
    process.join(120)
    assert process.exitcode == 75
    assert directory.outcome() is None
    assert decide(75, None, draining=True, attempt=1, max_attempts=1, delay=0) == HandBack()


@pytest.mark.slow
def test_another_worker_goes_on_with_files_that_lie_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Uploads and resume points of one job, in the home of one worker and then of another."""
    request = {
        "checkpoint": "ckpt_1", "dataset": "ds_1", "val": "ds_2", "preset": "quick", "baseline": True,
        "config": {**TINY, "epochs": 1, "checkpoint_steps": 1},
    }  # fmt: skip
    for claim, home in ((1, tmp_path / "one"), (2, tmp_path / "two")):
        home.mkdir()
        model = home / "ckpt_1.safetensors"
        convert_to_file("test_resnet", model, pretrained=False)
        paths = {"source": str(model), "dataset": str(colours(home / "ds_1")), "val": str(colours(home / "ds_2", 2))}
        if claim == 2:
            paths["previous"] = str(shutil.copytree(tmp_path / "one" / "1", home / "1"))
        directory = AttemptDirectory(home / str(claim))
        assignment = Assignment(job="job_1", claim=claim, kind=Kind.FINETUNE, request=request, paths=paths)
        directory.create()
        directory.write(assignment)
        monkeypatch.chdir(directory.path)
        here = AttemptDirectory(Path())  # as the runner has it, so that no record says where it lies
        result = tasks.run(assignment, here, Reporter(here))
        for run in (directory.run, directory.run / "baseline"):
            record = RunDirectory(run).record()
            assert (record["model"], record["data"], record["val"]) == ("ckpt_1", "ds_1", "ds_2")
    lines = (tmp_path / "one" / "1" / "events.jsonl").read_text(encoding="utf-8").splitlines()
    told = [(event["kind"], event.get("data", {}).get("text", "")) for event in map(json.loads, lines)]
    baseline = next(place for place, (_, text) in enumerate(told) if "training the CNN with the same recipe" in text)
    assert [place for place, (kind, _) in enumerate(told) if kind == "epoch" and place < baseline], (
        "the last epoch is not kept back until the CNN is trained"
    )
    assert "is finished already" in (tmp_path / "two" / "2" / "events.jsonl").read_text(), "and not trained again"
    files = {file.name: tmp_path / "two" / file.path.partition("/")[2] for file in result.files}
    assert {"before-after.json", "baseline.safetensors", "best.safetensors"} <= files.keys()
    for path in files.values():
        assert str(tmp_path).encode() not in path.read_bytes(), "no path leaves the server"
    assert result.metrics is not None
    rows = result.metrics["before_after"]["rows"]
    assert [(row["role"], row["missing"]) for row in rows] == [
        ("cnn", None), ("tuned_cnn", None), ("converted", None), ("t_cnn", None)
    ]  # fmt: skip


def test_a_report_where_files_cannot_be_linked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On exFAT, say: the attempt is copied into the room in which its page is made."""

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    for folder in ("attempt", "room"):
        (tmp_path / folder).mkdir()
    tcnn.save(tcnn.convert(seeded_model("test_resnet")).model, tmp_path / "attempt" / "converted.safetensors")
    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "page.html"
    written = reports.write(str(tmp_path / "attempt"), "job_1", str(page), str(tmp_path / "room"), "{}")
    assert written["bytes"] == len(page.read_text(encoding="utf-8"))
    assert not list((tmp_path / "room").iterdir())
