"""`tcnn fold`: what it writes and prints, and every way in which it refuses."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import tiny_runs
import torch
from safetensors.torch import load_file, save_file
from test_cli_verify import pictures
from timm.models import reparameterize_model

import tcnn as library
from tcnn.layers import GPSA2d

Run = Callable[..., Any]


@pytest.fixture
def converted(tcnn: Run, kept: Callable[..., Path]) -> Path:
    """`a.safetensors`, with random weights."""

    def convert() -> None:
        assert tcnn("convert", "test_resnet", "a.safetensors", "--no-pretrained", "--num-classes", 3).code == 0

    return kept(Path("a.safetensors"), convert)


@pytest.mark.slow  # tests/folding has what was merged
@pytest.mark.parametrize("when", ["before", "after"])
def test_what_timm_merged_is_no_plain_state_dict(when: str, tcnn: Run, lively: Callable[..., Any]) -> None:
    """The file was refused in words about a temporary one, and --module was said to help."""
    source = lively("lcnetv2_small", num_classes=3)
    model = library.convert(reparameterize_model(source) if when == "before" else source, input_size=64).model
    library.save(reparameterize_model(model), "a.safetensors")
    done = tcnn("fold", "a.safetensors", "b.safetensors")
    assert (done.code, done.err) == (0, "")
    assert "(a tcnn checkpoint, " in done.out
    assert not any(isinstance(module, GPSA2d) for module in library.load("b.safetensors").modules())


@pytest.fixture
def softened(converted: Path) -> Path:
    """`soft.safetensors`: four heads of each layer attend to content, or to several pixels."""
    model = library.load(converted)
    with torch.no_grad():
        for layer in model.modules():
            if isinstance(layer, GPSA2d):
                layer.gating_param[:2] = -2.0
                layer.gating_param[2:4] = 0.01
    return library.save(model, "soft.safetensors", sections={"weights": "random"})


def test_a_conversion_becomes_the_cnn_again(tcnn: Run, converted: Path) -> None:
    done = tcnn("fold", converted, "b.safetensors")
    assert (done.code, done.err) == (0, "")
    assert "(the plain state dict of test_resnet" in done.out
    assert "images/s" in done.out
    assert "relative error of the logits" in done.out
    model = timm.create_model("test_resnet", pretrained=False, num_classes=3)
    state = load_file("b.safetensors")
    model.load_state_dict(state)
    kept = load_file(converted)
    for name in state.keys() & kept.keys():
        assert torch.equal(state[name], kept[name])
    assert tcnn("evaluate", "b.safetensors", "--data", "nowhere").code == 2
    said = (
        "b.safetensors: was folded completely, so it is a CNN without attention to verify; verify the checkpoint that"
    )
    assert tcnn("verify", "b.safetensors").error(2).startswith(said)
    error = tcnn("fold", "b.safetensors", "c.safetensors").error(2)
    assert error.endswith(": nothing in it is converted, so there is nothing to fold")


def test_json_tells_every_layer_and_the_file_is_for_inference(tcnn: Run, softened: Path, tmp_path: Path) -> None:
    result = tcnn("fold", softened, "b.safetensors", "--json", "--images", pictures(tmp_path / "pictures")).json
    report = result["fold"]
    assert result["format"] == "tcnn"
    assert result["base_model"] == "test_resnet.r160_in1k"
    assert report["statistics_randomised"]
    assert result["bytes"] == Path("b.safetensors").stat().st_size
    assert not report["complete"]
    assert report["images"].startswith("images 4×3")
    for layer in report["layers"]:
        assert layer["becomes"] == "folded"
        assert [layer[kind] for kind in ("convolution", "content", "attention", "dropped")] == [5, 2, 2, 0]
    assert 0 < report["logits"]["relative"] < 1e-6
    assert report["max_error"] is None
    assert report["parameters_after"] == sum(p.numel() for p in library.load("b.safetensors").parameters())
    assert result["speed"]["before"] > 0
    assert result["speed"]["after"] > 0
    data = tiny_runs.colours(tmp_path / "data", 2)
    found = tcnn("evaluate", "b.safetensors", "--data", data, "--device", "cpu", "--workers", 0)
    assert (found.code, found.err) == (0, ""), found
    for command in (
        ("verify", "b.safetensors"),
        ("inspect", "b.safetensors"),
        ("fold", "b.safetensors", "c.safetensors"),
        ("finetune", "b.safetensors", "--data", data, "--val-split", 0.5, "--out", "run"),
    ):
        found = tcnn(*command)
        assert found.code == 2, found
        assert "was folded, for inference only" in found.err.splitlines()[-1]
    assert not Path("c.safetensors").exists()
    assert not list(Path("run").glob("*.safetensors"))


@pytest.mark.slow
def test_the_error_is_honoured(tcnn: Run, softened: Path, listing: Callable[[], list[str]]) -> None:
    before = listing()
    message = tcnn("fold", softened, "b.safetensors", "--max-error", 0).error(3)
    assert "the least that can be folded changes the logits by" in message
    assert "expected at most 0.0e+00" in message
    assert listing() == before
    result = tcnn("fold", softened, "b.safetensors", "--max-error", "0.2", "--json").json
    assert 0 < result["fold"]["logits"]["relative"] <= 0.2
    assert result["fold"]["tolerance"] > 0
    assert sum(layer["attention"] for layer in result["fold"]["layers"]) < 4


def test_nothing_to_fold(tcnn: Run, listing: Callable[[], list[str]]) -> None:
    library.save(library.convert(timm.create_model("test_resnet"), temperature=1.0).model, "a.safetensors")
    before = listing()
    message = tcnn("fold", "a.safetensors", "b.safetensors").error(2)
    assert message.startswith("no head to fold: expected one of 18 to look at one pixel of its kernel only")
    assert listing() == before


@pytest.mark.parametrize("bound", ["-1", "nan", "inf"])
def test_an_error_that_is_none(tcnn: Run, bound: str) -> None:
    message = tcnn("fold", "a.safetensors", "b.safetensors", f"--max-error={bound}").error(2)
    assert message.startswith("--max-error: expected a relative error of 0 or more")


def test_what_is_not_a_tcnn(tcnn: Run) -> None:
    assert "found nothing" in tcnn("fold", "missing.safetensors", "b.safetensors").error(2)
    save_file({"weight": torch.zeros(2)}, "plain.safetensors")
    assert "not written by tcnn" in tcnn("fold", "plain.safetensors", "b.safetensors").error(2)


def test_outputs_that_cannot_be(tcnn: Run, converted: Path) -> None:
    assert "exists already" in tcnn("fold", converted, converted).error(2)
    assert "found a directory's name" in tcnn("fold", converted, "folder").error(2)
    assert "does not exist" in tcnn("fold", converted, "no/where.safetensors").error(2)
    assert tcnn("fold", converted, converted, "--force").code == 0
    assert "conv2.weight" in " ".join(load_file(converted))


@pytest.mark.slow
def test_pruning_measures_the_accuracy(tcnn: Run, softened: Path, tmp_path: Path) -> None:
    model = library.load(softened)
    with torch.no_grad():
        for layer in model.modules():
            if isinstance(layer, GPSA2d):
                layer.set_temperature(0.3)
                layer.attention_centers[8] = 500.0
    library.save(model, "far.safetensors")
    photos = tiny_runs.colours(tmp_path / "photos")
    arguments = ("fold", "far.safetensors", "p.safetensors", "--prune")
    assert "--far: only --prune" in tcnn("fold", "far.safetensors", "p.safetensors", "--far", 3).error(2)
    assert "--max-error: --prune goes by" in tcnn(*arguments, "--max-error", 0.1).error(2)
    assert "--far: expected a distance" in tcnn(*arguments, "--far", -1).error(2)
    assert "nowhere" in tcnn(*arguments, "--data", "nowhere").error(2)
    with torch.no_grad():
        for layer in model.modules():
            if isinstance(layer, GPSA2d):
                layer.attention_centers.fill_(500.0)
                layer.gating_param.fill_(2.0)
    library.save(model, "lost.safetensors")
    assert "all of its 9 heads would be removed" in tcnn("fold", "lost.safetensors", *arguments[2:]).error(2)
    assert not Path("p.safetensors").exists()
    result = tcnn(*arguments, "--data", photos, "--size", 64, "--json").json
    assert {(head["head"], head["reason"]) for head in result["fold"]["pruned"]} == {(8, "far")}
    accuracy = result["accuracy"]
    assert accuracy["low"] <= accuracy["difference"] <= accuracy["high"]
    assert accuracy["difference"] == pytest.approx(accuracy["after"] - accuracy["before"])
    done = tcnn(*arguments, "--force", "--data", photos, "--size", 64)
    assert done.code == 0 and "head 8 at (+500.0, +500.0): far" in done.out and "points (" in done.out
