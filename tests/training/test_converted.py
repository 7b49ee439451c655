"""The conversion on the way of a run: compared with the CNN before anything is trained, and kept."""

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from tiny_runs import TwoConvs, colours, run, tiny
from torch import nn

import tcnn
from tcnn.analysis.reading.rundirs import metadata
from tcnn.checkpoints.files import checkpoint_file
from tcnn.config import finetune_config
from tcnn.errors import RequestError, Stopped, VerificationError
from tcnn.models.running import gpsa_layers
from tcnn.training.preparing import prepare as preparing
from tcnn.training.preparing.prepare import prepare
from tcnn.verification.report import VerificationReport
from tcnn.workflows.recheck import recheck


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return colours(tmp_path_factory.mktemp("photos"), images=4)


def verdict(out: Path) -> VerificationReport:
    return VerificationReport.model_validate(metadata(out / "converted.safetensors")["verification"])


def test_it_is_verified_and_kept_as_it_was(photos: Path, tmp_path: Path) -> None:
    said: list[str] = []
    run("test_resnet", photos, tmp_path, say=said.append, epochs=1)
    report = verdict(tmp_path)
    assert report.passed
    assert report.statistics_randomised, "the weights are random"
    assert report.images == "noise 2×3×32×32", "at the size of the run"
    assert [one.dtype for one in report.passes] == ["float32", "float64"]
    assert said[-1].startswith("converted, and equal to the CNN: relative error ")
    kept = tcnn.load(tmp_path / "converted.safetensors")
    start = prepare("test_resnet", tiny(epochs=1), ("blue", "green", "red"), pretrained=False).model
    for name, tensor in start.state_dict().items():
        assert torch.equal(tensor, kept.state_dict()[name]), name
    assert checkpoint_file(tmp_path) == tmp_path / "best.safetensors"
    before = (tmp_path / "converted.safetensors").stat().st_mtime_ns
    run("test_resnet", photos, tmp_path, resume=True, epochs=1)
    assert (tmp_path / "converted.safetensors").stat().st_mtime_ns == before
    with pytest.raises(
        RequestError, match=r"converted\.safetensors: written by a run before its first step.*--against"
    ):
        recheck(tmp_path / "converted.safetensors", tcnn.VerificationConfig())


def test_a_comparison_that_could_not_have_failed_is_told_as_such(photos: Path, tmp_path: Path) -> None:
    """A fresh ResNet of one's own multiplies its branches by zero: `relative error 0.0e+00` was all that was said."""
    said: list[str] = []
    run(
        timm.create_model("test_resnet", num_classes=3, drop_path_rate=0.0), photos, tmp_path, say=said.append, epochs=1
    )
    (line,) = (line for line in said if line.startswith("converted, and equal to the CNN"))
    assert line.endswith(
        "; the converted layers do not reach the logits: their weights, or a scale behind them, are zero"
    )


def test_a_run_that_has_trained_nothing_has_no_checkpoint(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        run("test_resnet", photos, tmp_path, stop=lambda: True)
    assert (tmp_path / "converted.safetensors").is_file()
    assert checkpoint_file(tmp_path) is None


@pytest.mark.slow
@pytest.mark.parametrize("stride", ["remove", "dilate"])
def test_without_a_stride_it_equals_the_cnn_without_it(photos: Path, tmp_path: Path, stride: str) -> None:
    run("test_resnet", photos, tmp_path, epochs=1, conversion={"stride": stride})
    assert verdict(tmp_path).passed


@pytest.mark.parametrize("other", [{"convert": False}, {"filters": "random"}, {"gating": False}])
def test_where_there_is_none_that_equals_the_cnn_nothing_is_kept(
    photos: Path, tmp_path: Path, other: dict[str, Any]
) -> None:
    run(TwoConvs(), photos, tmp_path, epochs=1, **other)
    assert not (tmp_path / "converted.safetensors").exists()


def test_a_conversion_that_is_wrong_ends_the_run_before_it_begins(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = preparing.convert

    def wrong(model: nn.Module, *arguments: Any) -> Any:
        made = right(model, *arguments)
        with torch.no_grad():
            next(layer for layer in made.model.modules() if isinstance(layer, tcnn.GPSA2d)).proj[0] *= 1.01
        return made

    monkeypatch.setattr(preparing, "convert", wrong)
    with pytest.raises(VerificationError, match="the conversion before the training: equivalence error"):
        run(TwoConvs(), photos, tmp_path / "run", epochs=1)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("preset", ["quick", pytest.param("cifar", marks=pytest.mark.slow)])
def test_a_preset_of_content_heads_does_not_train_a_convolution(tmp_path: Path, preset: str) -> None:
    """It did so for a whole run, with one line that said so: README's first example was such a run."""

    made = tmp_path / "t.safetensors"
    tcnn.save(tcnn.convert(timm.create_model("test_resnet", num_classes=3)).model, made)

    def started(source: Path, **options: object) -> nn.Module:
        config = finetune_config(preset, options={"drop_path": 0.0, "size": 32, **options})
        return prepare(source, config, ("blue", "green", "red"), pretrained=False).model

    with pytest.raises(RequestError, match=f"would leave {made} a convolution.*--content-heads 4, or give --ann"):
        started(made)
    assert gpsa_layers(started(made, anneal="warmup"))
    model = tcnn.load(made)
    tcnn.save(tcnn.convert(tcnn.fold(model).model, content_heads=2).model, tmp_path / "with.safetensors")
    assert gpsa_layers(started(tmp_path / "with.safetensors"))
    for layer in gpsa_layers(model).values():
        layer.set_temperature(1.0)
    tcnn.save(model, tmp_path / "open.safetensors")
    assert gpsa_layers(started(tmp_path / "open.safetensors")), "its content has a weight already, and learns"
