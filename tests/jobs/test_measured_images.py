"""An evaluation on a data set that is not divided: the result says which images were measured, and who knew them."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sampled import sampled
from tiny_runs import TINY, colours

from tcnn_jobs.attempt import Assignment, AttemptDirectory, Reporter
from tcnn_jobs.child import tasks
from tcnn_jobs.model.jobs import Kind, Result

QUICK: dict[str, Any] = {**TINY, "epochs": 1, "warmup_epochs": 0, "micro_batch": 8}
"""As many images at once as a step has: so many are timed in the end."""
TRAINED: dict[str, dict[str, Any]] = {
    "job_1": {"dataset": "ds_1", "config": QUICK},
    "job_2": {"dataset": "ds_1", "val": "ds_2", "config": {**QUICK, "val_split": None}},
}
"""One holds a fifth of it out, the other learns from all of it."""


def done(home: Path, job: str, kind: Kind, request: dict[str, Any], paths: dict[str, str], here: Any) -> Result:
    """The job's result, done as its process does it."""
    directory = AttemptDirectory(home / job)
    directory.create()
    assignment = Assignment(job=job, claim=1, kind=kind, request=request, paths=paths)
    here.chdir(directory.path)
    return tasks.run(assignment, AttemptDirectory(Path()), Reporter(AttemptDirectory(Path())))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With two jobs that have trained, and were not measured before and after; and the data sets."""
    root = tmp_path_factory.mktemp("measured")
    colours(root / "ds_1")
    colours(root / "ds_2", 2)
    (root / "ds_2" / "red" / "broken.png").write_bytes(b"no picture")
    with pytest.MonkeyPatch.context() as here:
        here.setattr("tcnn.training.finetune.before_and_after", lambda *_: SimpleNamespace(headline=lambda: None))
        for job, training in TRAINED.items():
            paths = {name: str(root / training[name]) for name in ("dataset", "val") if name in training}
            request = {"model": "test_resnet", "pretrained": False, "finetune": {"preset": "quick", **training}}
            done(root, job, Kind.TRANSFORM, request, paths, here)
    return root


OF_BOTH = [("ds_1", ["job_1", "job_2"], 6, True, ["job_2"]), ("ds_2", ["job_1", "job_2"], 7, False, [])]
OF_ONE = [("ds_1", ["job_1"], 6, True, []), ("ds_1", ["job_2"], 30, False, ["job_2"])]


@pytest.mark.parametrize(("data", "jobs", "images", "held_out", "trained_on"), sampled([*OF_ONE, *OF_BOTH], OF_BOTH))
def test_what_was_measured(
    home: Path, data: str, jobs: list[str], images: int, held_out: bool, trained_on: list[str],
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    first, *others = jobs
    request = {"job": first, "dataset": data, "against": [{"job": one} for one in others]}
    places = {"source": first} | {f"against.{at}": one for at, one in enumerate(others)}
    paths = {name: str(home / job / "run" / "best.safetensors") for name, job in places.items()}
    result = done(
        tmp_path, "job_3", Kind.EVALUATE, request, {**paths, "dataset": str(home / data)}, monkeypatch
    )  # fmt: skip
    assert result.metrics is not None
    assert (result.metrics["images"], result.metrics["held_out"]) == (images, held_out)
    assert result.metrics["split"] is None, "it has none"
    assert result.metrics["trained_on"] == trained_on
    held = [f"Measured on the {images} images that training held out of {data}, and no others."] if held_out else []
    seen = [f"{job} was trained on these images: its accuracy says nothing about images that it has not seen."
            for job in trained_on]  # fmt: skip
    assert list(result.notes) == held + seen


def test_a_data_set_that_was_changed_and_uploaded_again(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the model that had held a part out it is said that nothing tells which, by its job's id."""
    again = shutil.copytree(home / "ds_1", tmp_path / "ds_4")
    (again / "red" / "9.png").rename(again / "red" / "10.png")
    paths = {"source": str(home / "job_1" / "run" / "best.safetensors"), "dataset": str(again)}
    result = done(tmp_path, "job_3", Kind.EVALUATE, {"job": "job_1", "dataset": "ds_4"}, paths, monkeypatch)
    assert result.metrics is not None
    assert (result.metrics["trained_on"], result.metrics["part_lost"]) == (["job_1"], ["job_1"])
    assert result.notes[-1].startswith("Nothing tells which of them the training of job_1 had held out, as a file name")


def test_an_image_that_cannot_be_read_is_named_as_the_request_names_its_data_set(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not by where it lies on the server: in events, result and files, of a training and of an evaluation."""
    broken = "ds_2/red/broken.png"
    told = [json.loads(line) for line in (home / "job_2" / "events.jsonl").read_text().splitlines()]
    assert f"unreadable, left out: {broken}" in [one["data"].get("text") for one in told]
    paths = {"source": str(home / "job_1" / "run" / "best.safetensors"), "dataset": str(home / "ds_2")}
    result = done(tmp_path, "job_3", Kind.EVALUATE, {"job": "job_1", "dataset": "ds_2"}, paths, monkeypatch)
    assert result.metrics is not None
    assert result.metrics["rows"][0]["unreadable"] == [broken]
    for text in (result.model_dump_json(), (tmp_path / "job_3" / "evaluation.json").read_text(), json.dumps(told)):
        assert str(home) not in text
