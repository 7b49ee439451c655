"""Folding what timm's `reparameterize_model` merged before the conversion or after it, and the file of the result."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from nets import comes_back, image, relative_error, same_state, snapshot
from safetensors import safe_open
from sampled import sampled
from timm.models import reparameterize_model
from torch import nn

import tcnn
from tcnn.checkpoints import checkpoint
from tcnn.errors import CheckpointError
from tcnn.layers.base import AttentionLayer
from tcnn.models.running import gpsa_layers

Lively = Callable[..., nn.Module]
SHOWN = tcnn.VerificationConfig(input_size=(48, 64), batch_size=1)
pytestmark = pytest.mark.filterwarnings("error:the model is not as")


def fold(model: nn.Module, **options: Any) -> nn.Module:
    return tcnn.fold(model, config=SHOWN, **options).model.eval()


def sections(file: Path) -> dict[str, str]:
    with safe_open(file, "pt") as handle:
        return {key: value for key, value in handle.metadata().items() if key in ("merged", "apart", "edited")}


def apart(file: Path) -> set[str]:
    return set(json.loads(sections(file)["apart"]))


@pytest.fixture(scope="module")
def merged_after(lively: Lively) -> tuple[nn.Module, nn.Module]:
    """A CNN, and its T-CNN with everything merged but the two blocks that attend."""
    source = lively("lcnetv2_small", num_classes=5)
    return source, reparameterize_model(tcnn.convert(source, input_size=(48, 64)).model)


@pytest.mark.parametrize("name", sampled(["lcnetv2_small", "repvgg_a0", "repghostnet_050"], ["lcnetv2_small"]))
def test_merged_before(name: str, lively: Lively, tmp_path: Path) -> None:
    """timm's architecture, as it is built, has no convolution by the names of what was converted."""
    source = lively(name, num_classes=5)
    merged = reparameterize_model(source)
    model = tcnn.load(tcnn.save(tcnn.convert(merged, input_size=(48, 64)).model, tmp_path / "m.safetensors"))
    found = fold(model)
    assert same_state(found, snapshot(merged))
    for given in (source, merged):
        assert same_state(fold(model, source=given), snapshot(merged))
    comes_back(found, tmp_path)


@pytest.mark.slow
def test_merged_before_and_given_other_classes(lively: Lively, tmp_path: Path) -> None:
    """What timm recorded of its classifier is not what it is, and the rest is merged nevertheless."""
    model: Any = tcnn.convert(reparameterize_model(lively("lcnetv2_small", num_classes=5)), input_size=(48, 64)).model
    setattr(model, model.pretrained_cfg["classifier"], nn.Linear(model.head_hidden_size, 3))
    found = fold(tcnn.load(tcnn.save(model, tmp_path / "m.safetensors")))
    assert found(image((48, 64))).shape[1] == 3
    comes_back(found, tmp_path)


@torch.no_grad()
def test_merged_after(merged_after: tuple[nn.Module, nn.Module], tmp_path: Path) -> None:
    """Blocks that attended while the others were merged are as timm builds them, and stay that in the file."""
    source, model = merged_after
    found = fold(model)
    comes_back(found, tmp_path)
    file, x = tmp_path / "folded.safetensors", image((48, 64))
    assert {"stages.3.0", "stages.3.1"} <= apart(file) and not apart(file) & {"stages.2.0", "stages.2.1"}
    assert relative_error(source(x), found(x)) < 1e-5
    for given in (source, found):
        assert same_state(tcnn.load(file, source=given), snapshot(found))
    with pytest.raises(CheckpointError, match="does not fit lcnetv2_small"):
        tcnn.load(file, source=reparameterize_model(source))
    again = reparameterize_model(tcnn.load(file))
    assert isinstance(again.get_submodule("stages.3.0.dw_conv"), nn.Conv2d), "what was loaded merges as well"
    assert relative_error(again(x), found(x)) < 1e-5
    assert sections(tcnn.save(again, tmp_path / "again.safetensors")) == {"merged": "after"}


@pytest.mark.slow  # nested blocks, of which the inner merge and the outer do not; a dilated stage
@pytest.mark.parametrize("name", ["repvgg_a0", "lcnetv2_small", "repghostnet_050", "repvit_m1", "fastvit_t8"])
@pytest.mark.parametrize("stride", ["keep", "dilate"])
@torch.no_grad()
def test_merged_after_of_every_kind(name: str, stride: str, lively: Lively, tmp_path: Path) -> None:
    model = tcnn.convert(lively(name), input_size=(64, 64), stride=stride).model
    found = fold(reparameterize_model(model))
    assert relative_error(model.eval()(image((64, 64))), found(image((64, 64)))) < 1e-5
    comes_back(found, tmp_path)
    if name != "fastvit_t8":  # which timm merges once
        for one in (found, tcnn.load(tmp_path / "folded.safetensors")):
            again = reparameterize_model(one)
            assert relative_error(found(image((64, 64))), again(image((64, 64)))) < 1e-5


@torch.no_grad()
def test_one_of_two_blocks_attends_on(lively: Lively, tmp_path: Path) -> None:
    model = tcnn.convert(lively("lcnetv2_small"), input_size=(48, 64)).model
    next(iter(gpsa_layers(model).values())).gating_param.fill_(-2.0)
    found = fold(reparameterize_model(model))
    (attending,) = (name for name, one in found.named_modules() if isinstance(one, AttentionLayer))
    assert attending.startswith("stages.3.0.")
    comes_back(found, tmp_path)
    assert "stages.3.1" in apart(tmp_path / "folded.safetensors")
    assert "stages.3.0" not in apart(tmp_path / "folded.safetensors"), "what attends stays by itself"


@pytest.mark.slow  # as folding
@pytest.mark.parametrize("when", ["before", "after"])
@torch.no_grad()
def test_pruning(when: str, lively: Lively, tmp_path: Path) -> None:
    source = lively("lcnetv2_small")
    given = reparameterize_model(source) if when == "before" else source
    model = tcnn.convert(given, input_size=(48, 64), position="isotropic", temperature=1.0).model
    layer = next(iter(gpsa_layers(model).values()))
    layer.gating_param.fill_(1e3)
    layer.attention_centers[5] = layer.attention_centers[4]
    pruned, report = tcnn.prune(reparameterize_model(model), config=SHOWN)
    assert len(report.pruned) == 1
    comes_back(pruned.eval(), tmp_path)


@pytest.mark.parametrize("told", [{"merged": "once"}, {"apart": "{}"}, {"apart": "["}, {"apart": "[3]"}])
def test_what_nobody_wrote_of_it_is_refused(told: dict[str, str], lively: Lively, tmp_path: Path) -> None:
    tensors, metadata = checkpoint.contents(tcnn.convert(lively()).model)
    metadata |= {"merged": "after", **told}
    metadata["digest"] = checkpoint.digest(tensors, metadata)
    file = checkpoint.write((tensors, metadata), tmp_path / "m.safetensors")
    with pytest.raises(CheckpointError, match=r"m\.safetensors: what it says of its merged convolutions is damaged"):
        tcnn.load(file)


def test_a_file_of_before_says_nothing_of_blocks(merged_after: tuple[nn.Module, nn.Module], tmp_path: Path) -> None:
    model = merged_after[1].eval()
    file = tcnn.save(model, tmp_path / "m.safetensors")
    assert sections(file) == {"merged": "after"}
    assert same_state(tcnn.load(file), snapshot(model))
