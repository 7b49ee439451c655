"""What leaves a job's process in words."""

from pathlib import Path

from jobs.attempt import Assignment
from jobs.model import Kind
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
