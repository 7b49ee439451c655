"""What leaves a job's process in words."""

import subprocess
import sys
from pathlib import Path

from jobs.attempt import Assignment, AttemptDirectory
from jobs.model import Kind
from jobs.retry import HandBack, decide
from jobs.runner import public


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


def test_a_transforms_data_set_is_named_inside_its_fine_tuning() -> None:
    request = {"model": "resnet18", "finetune": {"dataset": "ds_1", "val": "ds_2"}}
    paths = {"dataset": "/srv/datasets/ds_1", "val": "/srv/datasets/ds_2", "previous": "/srv/jobs/job_1/1"}
    assignment = Assignment(job="job_1", claim=2, kind=Kind.TRANSFORM, request=request, paths=paths)
    assert public("/srv/datasets/ds_2: empty; /srv/jobs/job_1/1/run", assignment) == "ds_2: empty; previous/run"


SWALLOWS = """
import os, signal, sys
import subprocess
import sys
from pathlib import Path
from jobs import runner, tasks
from jobs.model import Kind
from tcnn.errors import CheckpointError, Stopped

def task(assignment, directory, reporter):
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        while True: pass
    except Stopped as error:
        raise CheckpointError("damaged") from error

tasks.TASKS[Kind.TRANSFORM] = task
sys.exit(runner.main(Path(sys.argv[1]), os.getppid()))
"""


def test_a_stop_that_a_library_turns_into_its_own_error_is_still_a_stop(tmp_path: Path) -> None:
    """safetensors, interrupted in the middle of a file, calls the file damaged: a drained job would have failed."""
    directory = AttemptDirectory(tmp_path / "1")
    directory.write(Assignment(job="job_1", claim=1, kind=Kind.TRANSFORM, request={"model": "resnet18"}))
    done = subprocess.run([sys.executable, "-c", SWALLOWS, str(directory.path)], check=False, timeout=120)
    assert done.returncode == 75
    assert directory.outcome() is None
    assert decide(75, None, draining=True, attempt=1, max_attempts=1, delay=0) == HandBack()
