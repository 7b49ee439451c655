"""A submission without a server: what it names is looked up once, and kept as it was found; it is checked, one fault
each, and the field that is to change.
"""

from pathlib import Path
from typing import Any

import pytest

from tcnn.errors import RequestError
from tcnn.zoo import catalogue
from tcnn.zoo.catalogue import Entry
from tcnn_api.errors import Refused
from tcnn_api.settings import ApiSettings
from tcnn_api.submission.body import Submission, read
from tcnn_api.submission.check import check
from tcnn_api.submission.resolve import Dataset, Lookup, Resolved, keep, resolve
from tcnn_jobs.errors import JobNotFound, UploadNotFound
from tcnn_jobs.model.jobs import Artifact, Job, Kind, Result, Status, Upload
from tcnn_jobs.model.operation import Statistics, WorkerInfo
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


def entry(**changed: Any) -> Entry:
    return CNN.model_copy(update=changed)


def refused(asked: Submission, resolved: Resolved) -> tuple[str, str]:
    with pytest.raises(Refused) as caught:
        check(asked, resolved)
    return caught.value.field, str(caught.value)


@pytest.mark.parametrize(
    ("changed", "body", "field", "words"),
    [
        ({"convertible": False, "reason": "nothing there"}, {}, "model", "nothing there"),
        ({"weights": ()}, {}, "pretrained", "set pretrained to false"),
        ({"stride_removable": False}, {"stride": "remove"}, "stride", "use keep"),
        ({"convertible": False, "weights": ()}, {"stage": 1}, "pretrained", "no pretrained weights"),
    ],
)
def test_a_model_that_cannot_be_converted_so(changed: Any, body: Any, field: str, words: str) -> None:
    found = refused(submission("transform", model="resnet18", **body), Resolved(models={"model": entry(**changed)}))
    assert found[0] == field
    assert words in found[1]


@pytest.mark.parametrize(
    ("changed", "body"),
    [
        ({"convertible": False}, {"stage": 1}),
        ({"convertible": False}, {"target": "conv1"}),
        ({"stride_removable": False}, {"stride": "remove", "stage": 1}),
        ({"weights": ()}, {"pretrained": False}),
        ({"weights": ()}, {"weights": "wts_0123456789abcdef01234567"}),
    ],
)
def test_of_another_stage_or_without_weights_the_catalogue_forbids_nothing(changed: Any, body: Any) -> None:
    check(submission("transform", model="resnet18", **body), Resolved(models={"model": entry(**changed)}))


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        ({"stage": 9}, "stage", "resnet18 has 5 stages, found 9; those with convolutions are 1 (layer1)"),
        ({"stage": -6}, "stage", "5 stages"),
        ({"stage": 0}, "stage", "stage 0 (act1) has no convolution"),
        ({"head_dim": 100_000}, "head_dim", "expected at most 512"),
    ],
)
def test_what_a_model_does_not_have_is_refused_before_it_is_queued(body: Any, field: str, words: str) -> None:
    found = refused(submission("transform", model="resnet18", **body), Resolved(models={"model": CNN}))
    assert (found[0], words in found[1]) == (field, True), found
    asked = submission("finetune", model="resnet18", dataset="x", config={"conversion": body})
    named = {"dataset": Dataset("x")}
    assert refused(asked, Resolved(models={"model": CNN}, datasets=named))[0] == f"config.conversion.{field}"


def test_what_a_model_has_is_accepted() -> None:
    for body in ({"stage": 4}, {"stage": -4}, {"head_dim": 512}):
        check(submission("transform", model="resnet18", **body), Resolved(models={"model": CNN}))


def test_what_the_catalogue_cannot_tell_about_passes() -> None:
    check(submission("transform", model="hf-hub:timm/x", stride="remove"), Resolved(models={"model": None}))


def test_a_model_is_judged_by_what_it_is_named_for() -> None:
    vit, bare = entry(convertible=False, reason="nothing there"), entry(weights=())
    named = {"dataset": Dataset("hfds/timm/pets")}
    body = {"model": "resnet18", "dataset": "hfds/timm/pets"}
    assert refused(submission("finetune", **body), Resolved(models={"model": vit}, datasets=named))[0] == "model"
    unconverted = submission("finetune", **body, config={"convert": False})
    check(unconverted, Resolved(models={"model": vit}, datasets=named))
    taught = submission("finetune", **body, config={"teacher": "resnet50"}, pretrained=False)
    models = {"model": bare, "config.teacher": bare}
    assert refused(taught, Resolved(models=models, datasets=named)) == (
        "config.teacher", "resnet18: timm has no pretrained weights for it; name another teacher",
    )  # fmt: skip
    stride = submission("finetune", **body, config={"conversion": {"stride": "remove"}})
    models = {"model": entry(stride_removable=False)}
    assert refused(stride, Resolved(models=models, datasets=named))[0] == "config.conversion.stride"
    compared = submission("evaluate", **body, against=[{"model": "resnet18"}])
    models = {"model": vit, "against.0.model": bare}
    field, message = refused(compared, Resolved(models=models, datasets=named))
    assert (field, "upload your own (POST /weights)" in message) == ("against.0.model", True)


def test_a_job_must_have_made_a_checkpoint() -> None:
    asked, named = submission("finetune", job="job_1", dataset="x"), {"dataset": Dataset("x")}
    check(asked, Resolved(jobs={"job": job()}, datasets=named))
    for unfit, words in (
        (job(Status.FAILED), "goes on, found job_1, which is failed"),
        (job(Status.CANCELLED), "goes on, found job_1, which is cancelled"),
        (job(checkpoint=None), "makes no checkpoint"),
        (job(Status.QUEUED).model_copy(update={"kind": Kind.EVALUATE, "result": None}), "makes no checkpoint"),
    ):
        field, message = refused(asked, Resolved(jobs={"job": unfit}, datasets=named))
        assert (field, words in message) == ("job", True)


def test_a_baseline_starts_where_the_t_cnn_does() -> None:
    asked, named = submission("finetune", job="job_1", dataset="x", baseline=True), {"dataset": Dataset("x")}
    check(asked, Resolved(jobs={"job": job()}, datasets=named))
    trained = job().model_copy(update={"request": {"model": "resnet18", "finetune": {"dataset": "x"}}})
    for one in (trained, job().model_copy(update={"kind": Kind.FINETUNE})):
        field, message = refused(asked, Resolved(jobs={"job": one}, datasets=named))
        assert (field, "has been trained since" in message) == ("baseline", True)
    with pytest.raises(Refused) as error:
        submission("finetune", model="resnet18", dataset="x", baseline=True, config={"convert": False})
    assert error.value.field == "baseline"


def test_a_job_that_goes_on_is_waited_for() -> None:
    asked, named = submission("finetune", job="job_1", dataset="x", depends_on=["job_2"]), {"dataset": Dataset("x")}
    for status in (Status.QUEUED, Status.RUNNING):
        coming = job(status).model_copy(update={"result": None})
        measuring = coming.model_copy(update={"kind": Kind.EVALUATE})
        check(asked, Resolved(jobs={"job": coming}, waited_for={"depends_on.0": measuring}, datasets=named))
    gone = Resolved(jobs={"job": job()}, waited_for={"depends_on.0": job(Status.FAILED)}, datasets=named)
    field, message = refused(asked, gone)
    assert field == "depends_on.0" and "which is failed" in message


@pytest.mark.parametrize(
    ("data", "body", "field"),
    [
        (dataset(test=9), {}, "dataset"),
        (dataset(train=100, val=1), {"config": {"batch_size": 102}}, "config.batch_size"),
        (dataset(images=100), {"config": {"batch_size": 52, "val_split": 0.5}}, "config.batch_size"),
        (dataset(images=100), {"config": {"batch_size": 92}}, "config.batch_size"),  # a tenth is held out
        (dataset(train=100), {}, "config.val_split"),
    ],
)
def test_an_upload_that_does_not_suffice(data: Dataset, body: Any, field: str) -> None:
    asked = {"config": {"batch_size": 2}, "dataset": "ds_1"} | body
    alone = submission("finetune", checkpoint="ckpt_1", **asked)
    assert refused(alone, Resolved(datasets={"dataset": data}))[0] == field
    inside = submission("transform", model="resnet18", finetune=asked)
    resolved = Resolved(models={"model": CNN}, datasets={"finetune.dataset": data})
    assert refused(inside, resolved)[0] == f"finetune.{field}"


@pytest.mark.parametrize(
    ("data", "config"),
    [
        (dataset(train=100, val=1), {"batch_size": 100}),
        (dataset(images=100), {"batch_size": 50, "val_split": 0.5}),
        (dataset(images=100), {"batch_size": 90}),
        (dataset(images=120, classes=tuple("abcdefghij")), {"batch_size": 110}),  # one of each twelve is held out
        (Dataset("hfds/timm/pets"), {"batch_size": 4096}),
    ],
)
def test_an_upload_that_just_suffices(data: Dataset, config: Any) -> None:
    asked = submission("finetune", checkpoint="ckpt_1", dataset="ds_1", config=config)
    check(asked, Resolved(datasets={"dataset": data}))


def test_validation_and_evaluation_have_their_split() -> None:
    body = {"dataset": "ds_1", "val": "ds_1", "config": {"batch_size": 2}}
    asked = submission("finetune", checkpoint="ckpt_1", **body)
    check(asked, Resolved(datasets={"dataset": dataset(train=9), "val": dataset(val=9)}))
    assert refused(asked, Resolved(datasets={"dataset": dataset(train=9), "val": dataset(train=9)}))[0] == "val"
    both = submission("finetune", checkpoint="ckpt_1", **body | {"config": {"batch_size": 2, "val_split": 0.1}})
    found = refused(both, Resolved(datasets={"dataset": dataset(train=9), "val": dataset(val=9)}))
    assert found[0] == "config.val_split"
    asked = submission("evaluate", checkpoint="ckpt_1", dataset="ds_1", config={"split": "validation"})
    check(asked, Resolved(datasets={"dataset": dataset(val=9)}))
    check(asked, Resolved(datasets={"dataset": dataset(images=9)}))
    alone = {"dataset": dataset(train=9)}
    assert refused(asked, Resolved(datasets=alone))[0] == "config.split"
    asked = submission("evaluate", job="job_1", dataset="ds_1")
    check(asked, Resolved(jobs={"job": job()}, datasets=alone))  # its file tells whether a part was held out
    assert refused(submission("evaluate", model="x", dataset="ds_1"), Resolved(datasets=alone))[0] == "config.split"


def test_as_many_processes_as_the_largest_worker_has_slots() -> None:
    asked = submission("finetune", checkpoint="ckpt_1", dataset="x", num_workers=4, config={"batch_size": 64})
    for slots in (None, 4):
        check(asked, Resolved(datasets={"dataset": Dataset("x")}, slots=slots))
    field, message = refused(asked, Resolved(datasets={"dataset": Dataset("x")}, slots=3))
    assert (field, "at most 3" in message) == ("num_workers", True)
