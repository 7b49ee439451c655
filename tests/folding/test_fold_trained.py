"""Folding a model that was trained: as much of it as an error allows, and what a folded model is no good for."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import tiny_runs
import torch
from nets import comes_back, image, relative_error, written_with
from sampled import sampled
from torch import nn

import tcnn
from tcnn.checkpoints import checkpoint
from tcnn.errors import CheckpointError, RequestError, VerificationError
from tcnn.layers import GPSA2d
from tcnn.models.running import gpsa_layers
from tcnn.workflows import fold_file

Lively = Callable[..., nn.Module]
SHOWN = tcnn.VerificationConfig(input_size=(64, 64), batch_size=1)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ResNet fine-tuned to τ = 1; half of its heads began so hard that they are taps there too."""
    folder = tmp_path_factory.mktemp("trained")
    model, _ = tcnn.convert(tiny_runs.seeded(lambda: timm.create_model("test_resnet", num_classes=3)))
    with torch.no_grad():
        for layer in model.modules():
            if isinstance(layer, GPSA2d):
                layer.locality_raw[::2] = 60.0
                layer.gating_param[::2] = 60.0
                layer.gating_param[1] = -60.0
    tiny_runs.run(model, tiny_runs.colours(folder / "data"), folder / "run")
    return folder / "run" / "last.safetensors"


def test_training_leaves_something_to_fold(trained: Path, tmp_path: Path) -> None:
    model = tcnn.load(trained)
    layers = list(gpsa_layers(model).values())
    assert all(float(layer.position_temperature) == 1 for layer in layers)
    assert all(not torch.equal(layer.value, torch.eye(len(layer.value))) for layer in layers)
    found, report = tcnn.fold(model)
    for entry in report.layers:
        assert (entry.convolution, entry.content, entry.attention, entry.dropped) == (5, 1, 3, 0)
        assert entry.becomes == "folded"
    assert report.logits.worst < 1e-6
    with torch.no_grad():
        x = image((32, 32), batch=3)
        assert relative_error(model(x), found(x)) < 1e-5
    comes_back(found, tmp_path)


@pytest.mark.parametrize("allowed", sampled([1e-5, 1e-4, 0.01], [1e-4]))
def test_as_much_is_folded_as_the_error_allows(trained: Path, allowed: float) -> None:
    model = tcnn.load(trained)
    found, report = tcnn.fold(model, max_error=allowed)
    assert report.logits.worst <= allowed
    assert report.max_error == allowed
    x = image((160, 160), batch=2)
    with torch.no_grad():
        measured = relative_error(model.double()(x.double()), found.double()(x.double()))
    assert measured <= 2 * allowed
    if allowed > 1e-5:
        assert report.tolerance > 0


def test_more_error_folds_more(trained: Path) -> None:
    model = tcnn.load(trained)
    attending = [
        sum(layer.attention for layer in tcnn.fold(model, max_error=allowed, config=SHOWN).report.layers)
        for allowed in (1e-5, 0.01)
    ]
    assert attending[0] > attending[1]


def test_nothing_within_the_error_is_refused(trained: Path) -> None:
    with pytest.raises(VerificationError, match="expected at most"):
        tcnn.fold(tcnn.load(trained), max_error=0, config=SHOWN)


def test_a_folded_model_says_what_it_is_no_good_for(trained: Path, tmp_path: Path) -> None:
    found, _ = tcnn.fold(tcnn.load(trained))
    with pytest.raises(RequestError, match="was folded, for inference only; fold the model"):
        tcnn.fold(found)
    with pytest.raises(RequestError, match="inspect the checkpoint"):
        tcnn.inspect(found)
    with pytest.raises(RequestError, match="fine-tune the checkpoint"):
        tiny_runs.run(found, tiny_runs.colours(tmp_path / "data"), tmp_path / "run")
    with pytest.raises(RequestError, match="write one"):
        tcnn.save_directory(found, tmp_path / "hub")


def test_a_file_whose_records_do_not_fit(trained: Path, tmp_path: Path) -> None:
    found, _ = tcnn.fold(tcnn.load(trained))
    for heads, reason in ((4, "expected 9 heads, found 4"), (None, "does not fit")):

        def change(report: dict[str, Any], heads: int | None = heads) -> None:
            layer = report["layers"][0]
            layer["fold"] = None if heads is None else {**layer["fold"], "heads": layer["fold"]["heads"][:heads]}

        odd = written_with(found, tmp_path / "odd.safetensors", change)
        with pytest.raises(CheckpointError, match=reason):
            tcnn.load(odd)


def test_a_file_is_read_back_before_it_gets_its_name(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = checkpoint.load

    def other(path: Path, **options: Any) -> nn.Module:
        model = real(path, **options)
        next(model.parameters()).data.add_(1)
        return model

    monkeypatch.setattr(checkpoint, "load", other)
    with pytest.raises(VerificationError, match="read back"):
        fold_file.fold_to_file(trained, tmp_path / "out.safetensors")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("sections", "drawn"),
    [
        ({}, False), ({"weights": "module"}, False), ({"weights": "random"}, True),
        ({"weights": "random", "training": {"epoch": 1}}, False),
    ],
)  # fmt: skip
def test_the_error_is_of_the_weights_in_the_file(
    sections: dict[str, Any], drawn: bool, trained: Path, tmp_path: Path
) -> None:
    """Files of `tcnn.save`, which record nothing of their weights, were measured with random normalisation layers."""
    model = tcnn.load(trained)
    tcnn.save(model, tmp_path / "mine.safetensors", sections=sections)
    found = fold_file.fold_to_file(tmp_path / "mine.safetensors", tmp_path / "out.safetensors").fold
    own = tcnn.fold(model, randomise=drawn).report
    assert (found.statistics_randomised, found.logits, found.layers) == (drawn, own.logits, own.layers)
    assert ("random normalisation layers" in str(found)) == drawn


@pytest.mark.parametrize("randomise", [True, False])
def test_a_conversion_in_a_run_of_a_cnn_that_was_trained(randomise: bool, lively: Lively, tmp_path: Path) -> None:
    """Its CNN began with random weights, which the file records, but its verification took the weights as they are."""
    source = lively(num_classes=3)
    model = tcnn.convert(source).model
    verdict = tcnn.verify(source, model, SHOWN, randomise=randomise)
    checkpoint.save(model, tmp_path / "a.safetensors", verdict, {"weights": "random"})
    found = fold_file.fold_to_file(tmp_path / "a.safetensors", tmp_path / "b.safetensors").fold
    assert found.statistics_randomised == randomise
