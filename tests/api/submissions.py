"""Submissions and what they name, made without a server."""

from typing import Any

from tcnn.zoo import catalogue
from tcnn_api.settings import ApiSettings
from tcnn_api.submission.body import Submission, read
from tcnn_api.submission.resolve import Dataset
from tcnn_jobs.model.jobs import Artifact, Job, Kind, Result, Status, Upload
from tcnn_jobs.model.requests import KINDS

SETTINGS = ApiSettings(webhook_hosts=("hooks.example.org",), hub_names=("hfds/timm/*",), max_loader_workers=4)


CNN = catalogue.entries()["resnet18"]


CHECKPOINT = Artifact(name="converted.safetensors", path="job_1/1/converted.safetensors", size=1, sha256="0" * 64)


def submission(kind: str, **body: Any) -> Submission:
    return read(KINDS[kind](**body), SETTINGS)


def job(status: Status = Status.SUCCEEDED, checkpoint: Artifact | None = CHECKPOINT) -> Job:
    return Job(
        id="job_1", number=1, owner="alice", kind=Kind.TRANSFORM, status=status, request={}, created_at=0, not_before=0,
        result=Result(checkpoint=checkpoint),
    )  # fmt: skip


def dataset(images: int = 0, classes: tuple[str, ...] = (), **splits: int) -> Dataset:
    details = {"images": images or sum(splits.values()), "splits": splits, "classes": list(classes)}
    upload = Upload(id="ds_1", owner="alice", kind="dataset", name="pets.zip", path="ds_1", size=1, sha256="0" * 64,
                    details=details)  # fmt: skip
    return Dataset("ds_1", upload)
