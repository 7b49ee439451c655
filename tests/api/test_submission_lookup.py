"""What a submission names is looked up once, and kept as it was found."""

from pathlib import Path
from typing import Any

import pytest
from submissions import CNN, SETTINGS, dataset, job, submission

from tcnn.errors import RequestError
from tcnn_api.errors import Refused
from tcnn_api.settings import ApiSettings
from tcnn_api.submission.check import check
from tcnn_api.submission.resolve import Lookup, keep, resolve
from tcnn_jobs.errors import JobNotFound, UploadNotFound
from tcnn_jobs.model.jobs import Job, Upload
from tcnn_jobs.model.operation import Statistics, WorkerInfo


class Store:
    """What a lookup asks of the store, and how often."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def get(self, name: str, tenant: str) -> Job:
        self.asked.append(name)
        if (name, tenant) != ("job_1", "alice"):
            raise JobNotFound(name)
        return job()

    def upload(self, name: str, kind: str, tenant: str) -> Upload:
        self.asked.append(name)
        found = dataset(train=99, val=9).upload
        if found is None or tenant != "alice" or not name.startswith({"dataset": "ds_", "checkpoint": "ckpt_"}[kind]):
            raise UploadNotFound(name)
        return found

    def statistics(self) -> Statistics:
        self.asked.append("statistics")
        return Statistics(workers=(WorkerInfo(name="w", host="here", slots=2, version="0"),))


def test_every_name_is_looked_up_once_and_kept_as_it_was_found(tmp_path: Path) -> None:
    (tmp_path / "pets").mkdir()
    settings = ApiSettings(dataset_roots=(tmp_path,), database="sqlite:///x")
    store = Store()
    lookup = Lookup(settings, store, "alice")  # type: ignore[arg-type]
    body = {
        "job": "job_1", "dataset": "pets/.", "against": [{"checkpoint": "ckpt_1"}, {"model": "resnet18"}],
        "config": {"split": "val"},
    }  # fmt: skip
    asked = submission("evaluate", **body)
    found = resolve(asked, lookup)
    assert (list(found.jobs), list(found.checkpoints)) == (["job"], ["against.0.checkpoint"])
    assert found.models == {"against.1.model": CNN}
    assert store.asked == ["job_1", "ckpt_1"]
    check(asked, found)
    assert keep(asked.request, found) == body | {"dataset": str(tmp_path / "pets")}
    store.asked.clear()
    training = {"dataset": "ds_1", "val": "pets", "num_workers": 2, "config": {"teacher": "resnet50"}}
    asked = submission("transform", model="resnet18", finetune=training)
    found = resolve(asked, lookup)
    assert store.asked == ["ds_1", "statistics"]
    assert (list(found.models), found.slots) == (["model", "finetune.config.teacher"], 2)
    kept = keep(asked.request, found)
    assert kept == {"model": "resnet18", "finetune": training | {"val": str(tmp_path / "pets")}}


@pytest.mark.parametrize(
    ("kind", "body", "field"),
    [
        ("evaluate", {"job": "job_2"}, "job"),
        ("evaluate", {"model": "resnet18", "against": [{"checkpoint": "ds_1"}]}, "against.0.checkpoint"),
        ("finetune", {"model": "resnet51"}, "model"),
        ("finetune", {"model": "resnet18", "dataset": "ckpt_1"}, "dataset"),
        ("finetune", {"model": "resnet18", "val": "hfds/stranger/x"}, "val"),
    ],
)
def test_a_name_that_is_none(kind: str, body: Any, field: str) -> None:
    with pytest.raises(RequestError) as caught:
        resolve(submission(kind, **{"dataset": "ds_1"} | body), Lookup(SETTINGS, Store(), "alice"))  # type: ignore[arg-type]
    assert isinstance(caught.value, Refused)
    assert caught.value.field == field
