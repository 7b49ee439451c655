"""Jobs with weights of one's own: what is converted is that CNN, and before and after knows it either way."""

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from tiny_runs import TINY, colours
from torch import nn

import tcnn
from tcnn.data.image_set import open_dataset
from tcnn.errors import WeightsError
from tcnn.evaluation.evaluate import evaluate
from tcnn_jobs.attempt import Assignment, AttemptDirectory, Reporter, public
from tcnn_jobs.child import tasks
from tcnn_jobs.confined.model_files import keep
from tcnn_jobs.model.jobs import Kind, Result

ID = "wts_0123456789abcdef01234567"
TRAINING = {"dataset": "ds_1", "preset": "quick", "baseline": True, "config": {**TINY, "epochs": 1, "warmup_epochs": 0}}


@pytest.fixture
def mine(tmp_path: Path) -> nn.Module:
    """A CNN, whose weights were uploaded as its owner has them."""
    torch.manual_seed(5)
    cnn = timm.create_model("test_resnet", num_classes=3).eval()
    torch.save({"state_dict": {f"module.{key}": tensor for key, tensor in cnn.state_dict().items()}}, tmp_path / "file")
    keep(str(tmp_path / "file"), "mine.pth", str(tmp_path / f"{ID}.safetensors"))
    return cnn


def done(kind: Kind, request: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Result:
    """The job's result, done as its process does it."""
    own = str(folder / f"{ID}.safetensors")
    paths = {"weights": own, "dataset": str(colours(folder / "ds_1"))}
    paths |= {f"against.{at}.weights": own for at, one in enumerate(request.get("against", [])) if "weights" in one}
    directory = AttemptDirectory(folder / "1")
    directory.create()
    if "checkpoint" in request:
        paths = {**paths, "source": str(folder / "t.safetensors")}
        del paths["weights"]
    else:
        request = {**request, "weights": ID}
    assignment = Assignment(job="job_1", claim=1, kind=kind, request=request, paths=paths)
    directory.write(assignment)
    monkeypatch.chdir(directory.path)
    here = AttemptDirectory(Path())
    try:
        return tasks.run(assignment, here, Reporter(here))
    except WeightsError as error:
        raise WeightsError(public(str(error), assignment)) from error


def test_a_conversion(mine: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = done(Kind.TRANSFORM, {"model": "test_resnet"}, tmp_path, monkeypatch)
    assert result.checkpoint is not None
    model = tcnn.load(tmp_path / "1" / result.checkpoint.path.split("/", 2)[2])
    images = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        assert torch.allclose(model.eval()(images), mine(images), atol=1e-4)
    assert result.verification is not None
    assert result.verification["passed"]


def test_weights_of_another_model_are_refused_by_their_id(
    mine: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(WeightsError, match=f"^{ID} does not fit test_convnext: stem"):
        done(Kind.TRANSFORM, {"model": "test_convnext"}, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Kind.TRANSFORM, Kind.FINETUNE])
def test_before_and_after(kind: Kind, mine: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request = {"model": "test_resnet", **({"finetune": TRAINING} if kind is Kind.TRANSFORM else TRAINING)}
    result = done(kind, request, tmp_path, monkeypatch)
    assert result.metrics is not None
    rows = {row["role"]: row for row in result.metrics["before_after"]["rows"]}
    assert [row["missing"] for row in rows.values()] == [None] * 4
    assert list(rows) == ["cnn", "tuned_cnn", "converted", "t_cnn"]
    assert rows["cnn"]["accuracy"]["top1"] == rows["converted"]["accuracy"]["top1"]


def test_an_evaluation(mine: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The CNN is measured whose weights they are, as the model and beside another."""
    tcnn.save(tcnn.convert(mine).model, tmp_path / "t.safetensors")
    expected = evaluate(mine, open_dataset(str(colours(tmp_path / "ds_1"))))
    own = {"model": "test_resnet", "weights": ID}
    for at, request in enumerate(({**own, "against": []}, {"checkpoint": "ckpt_1", "against": [own]})):
        folder = tmp_path / str(at)
        folder.mkdir()
        for file in ("t.safetensors", f"{ID}.safetensors"):
            (folder / file).symlink_to(tmp_path / file)
        asked = {**request, "dataset": "ds_1", "config": {"examples": 2}}
        result = done(Kind.EVALUATE, asked, folder, monkeypatch)
        assert result.metrics is not None
        row = result.metrics["rows"][-1]
        assert row["model"] == ID
        assert row["clean"]["loss"] == pytest.approx(expected.loss, rel=1e-5)
    assert [(one["of"], one["over"]) for one in result.metrics["changes"]] == [(ID, "ckpt_1")]
    with pytest.raises(WeightsError, match=f"^{ID} does not fit test_convnext: stem"):
        wrong = {"checkpoint": "ckpt_1", "against": [own | {"model": "test_convnext"}], "dataset": "ds_1"}
        (tmp_path / "1" / "1").rename(tmp_path / "gone")
        done(Kind.EVALUATE, wrong, tmp_path / "1", monkeypatch)
