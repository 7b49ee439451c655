"""Workers of two releases share a queue; those of more do not, and a request says which one it takes."""

import pytest
from houses import House, wait_for

from tcnn.config import ConversionConfig, FinetuneConfig
from tcnn.config.evaluation import EvaluationConfig
from tcnn.errors import EnvironmentFailure
from tcnn_jobs.model.jobs import REQUEST_VERSION, Kind, NewJob, Status
from tcnn_jobs.model.naming import Labels
from tcnn_jobs.model.operation import WorkerInfo
from tcnn_jobs.model.requests import ADDED, KINDS, ModelReference, Training, version_of
from tcnn_jobs.worker.heartbeats import check_fellows, own
from tcnn_jobs.worker.service import work

OF_VERSION_1 = """
against amp anneal anneal_epochs anneal_path attention_lr auto_augment baseline batch_size bn_reestimate channels_last
checkpoint checkpoint_minutes checkpoint_steps clip_grad color_jitter compile config content content_heads conversion
convert convert_at corruptions crop_padding crop_pct cuda_graph cutmix dataset device distillation
distillation_temperature distillation_weight drop_path ema epochs filters finetune fraction freeze freeze_gpsa
gate_temperature gating gating_lr head_dim hflip hold input_size job keep layout limit log_steps lr matching
max_attempts max_runtime max_unreadable micro_batch min_lr mixup mixup_prob mixup_switch_prob model momentum
num_classes num_workers opt per_class position_lr position_temperature preset pretrained priority query_key ratio
repeats reprob scale seed severities size sizes smoothing split stage stall_minutes stride target teacher temperature
tensorboard train_interpolation val val_split vflip warmup_epochs warmup_lr webhook weight_decay workers
"""
"""Fields of requests, and settings in them, that every worker of a release before `ADDED` understands."""


def _fellow(version: str, requests: int) -> WorkerInfo:
    return WorkerInfo(name="old", host="there", slots=1, version=version, request_version=requests)


def test_workers_two_releases_apart_do_not_share_a_queue(house: House) -> None:
    """The one that comes leaves, and names both."""
    house.store.heartbeat(_fellow("tcnn 0.0.9, torch 2.1.0", REQUEST_VERSION + 2), [])
    with pytest.raises(EnvironmentFailure) as caught:
        work(house.settings, until_empty=True)
    message = str(caught.value)
    assert f"this worker has {own()}, but" in message
    assert "workers with tcnn 0.0.9, torch 2.1.0 are at this queue, more than one release apart" in message
    assert "\n" not in message
    house.store.forget_worker("old")
    check_fellows(house.store)


@pytest.mark.parametrize("requests", [REQUEST_VERSION - 1, REQUEST_VERSION, REQUEST_VERSION + 1])
def test_a_worker_of_the_release_before_or_after_is_a_fellow(
    house: House, requests: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """The log is told, for two torches do not train the same to the last bit."""
    house.store.heartbeat(_fellow("tcnn 0.0.9, torch 2.1.0", requests), [])
    work(house.settings, until_empty=True)
    assert "workers of other versions are at this queue" in capsys.readouterr().err


@pytest.mark.parametrize("real", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_worker_says_what_it_has(house: House, request: pytest.FixtureRequest, real: bool) -> None:
    """As soon as it is there."""
    if real:
        request.getfixturevalue("workers").start()
    else:
        house.worker("succeed()").step()
    wait_for(house.store.versions)
    assert house.store.versions() == {own(): REQUEST_VERSION}
    check_fellows(house.store)


def test_every_field_of_a_request_belongs_to_a_version() -> None:
    """A new one goes into `ADDED`, so that workers of the release before leave it to those that understand it. What a
    job is called is in its row and not in what workers are given."""
    kinds = (*KINDS.values(), Training, ModelReference, FinetuneConfig, ConversionConfig, EvaluationConfig)
    fields = {name for kind in kinds for name in kind.model_fields} - set(Labels.model_fields)
    assert fields == {*OF_VERSION_1.split(), *ADDED}
    assert max(ADDED.values()) == REQUEST_VERSION


def test_a_request_takes_the_version_of_its_newest_field() -> None:
    assert version_of({"model": "resnet18", "finetune": {"dataset": "depends_on"}}) == 1
    assert version_of({"model": "resnet18", "depends_on": ["job_1"]}) == 2
    assert version_of({"job": "job_1", "against": [{"model": "resnet18", "weights": "wts_1"}]}) == 2
    assert version_of({"job": "job_1", "config": {"depends_on": 1, "value_lr": 1e-4}}) == 3
    assert version_of({"job": "job_1", "against": [{"config": {"depends_on": 1}}]}) == 2


def test_a_worker_leaves_what_it_does_not_understand(house: House) -> None:
    """A job of the next release waits for a newer worker, and says so; those behind it go on."""
    newer = house.submit(request_version=REQUEST_VERSION + 1)
    behind = house.submit(request_version=REQUEST_VERSION)
    worker = house.worker("succeed()")
    house.step_until(worker, lambda: house.store.get(behind.id).terminal)
    worker.step()
    left = house.store.get(newer.id)
    assert (left.status, left.attempt, left.waiting_for) == (
        Status.QUEUED, 0, "waits for a worker of a newer release",
    )  # fmt: skip
    house.store.heartbeat(_fellow("tcnn 9", REQUEST_VERSION + 1), [])
    assert house.store.get(newer.id).waiting_for is None
    taken = house.store.claim("old", tuple(Kind), understands=REQUEST_VERSION + 1)
    assert taken is not None and taken.id == newer.id


def test_what_a_newer_worker_says_besides_is_passed_over(house: House) -> None:
    """The release before reads its progress, results and failures."""
    job = house.store.enqueue(NewJob(owner="ann", kind=Kind.TRANSFORM, request={"model": "resnet18"}))
    worker = house.worker("progress(percent=5, something_new=1); outcome(result={'notes': ['x'], 'more': 2})")
    house.step_until(worker, lambda: house.store.get(job.id).terminal)
    with house.store.writing() as connection:
        connection.exec_driver_sql(
            """UPDATE jobs SET progress = '{"phase":"training","novel":1}', result = '{"notes":["x"],"novel":{}}'"""
        )
    read = house.store.get(job.id)
    assert read.result is not None and read.result.notes == ("x",)
    assert read.progress is not None and read.progress.phase == "training"
