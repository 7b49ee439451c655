"""timm's `reparameterize_model` on converted models: blocks that attend stay, all others merge, to the same effect."""

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import timm
import torch
from nets import relative_error
from sampled import sampled
from timm.models import reparameterize_model
from timm.models.repvit import RepVggDw
from torch import nn

import tcnn
from tcnn.layers.base import AttentionLayer

Lively = Callable[..., nn.Module]


def convolutions(model: nn.Module) -> int:
    return sum(isinstance(module, nn.Conv2d) for module in model.modules())


def attending(model: nn.Module) -> dict[str, str]:
    return {name: str(m) for name, m in model.named_modules() if isinstance(m, AttentionLayer)}


SMALL = ("repvgg_a0", "lcnetv2_small", "shvit_s1", "repghostnet_050", "repvit_m1")
"""`reparameterize`, `fuse` and `switch_to_deploy`, alone and inside each other; `tests/slow` has all families."""


@pytest.mark.parametrize("name", sampled(SMALL, ["lcnetv2_small"]))
@torch.no_grad()
def test_all_that_can_merge_merges(name: str, lively: Lively) -> None:
    model = tcnn.convert(lively(name), input_size=(64, 64)).model.eval()
    x = torch.randn(2, 3, 64, 64)
    merged = reparameterize_model(model)
    assert relative_error(model(x), merged(x)) < 1e-5
    assert attending(merged) == attending(model) != {}
    assert sum(1 for _ in merged.modules()) < sum(1 for _ in model.modules())
    assert relative_error(merged(x), reparameterize_model(merged)(x)) < 1e-5, "merging again changes nothing"


@torch.no_grad()
@pytest.mark.slow
def test_blocks_without_attention_are_as_in_the_merged_source(lively: Lively) -> None:
    source = lively("repvgg_a0")
    merged = reparameterize_model(tcnn.convert(source).model)
    expected = dict(reparameterize_model(source).named_modules())
    found = dict(merged.named_modules())
    assert torch.equal(found["stages.0.0.reparam_conv"].weight, expected["stages.0.0.reparam_conv"].weight)
    assert found["stages.3.0"].reparam_conv is None
    assert isinstance(found["stages.3.0.conv_kxk.conv"], tcnn.GPSA2d)


@torch.no_grad()
@pytest.mark.slow
def test_loaded_created_and_pickled_models_merge(lively: Lively, tmp_path: Path) -> None:
    model = tcnn.convert(lively("repvgg_a0")).model.eval()
    x = torch.randn(1, 3, 64, 64)
    loaded = tcnn.load(tcnn.save(model, tmp_path / "t.safetensors"))
    created = timm.create_model("t_repvgg_a0").eval()
    created.load_state_dict(model.state_dict())
    for other in (loaded, created, pickle.loads(pickle.dumps(model))):
        assert relative_error(model(x), reparameterize_model(other)(x)) < 1e-5
    assert convolutions(model) == convolutions(loaded), "not in place"


@pytest.mark.slow  # that it folds is in tests/folding, that all merges above
@torch.no_grad()
def test_what_a_fold_made_a_convolution_again_merges(lively: Lively) -> None:
    source = lively("lcnetv2_small")
    shown = tcnn.VerificationConfig(input_size=(64, 64), batch_size=1)
    folded = tcnn.fold(tcnn.convert(source, input_size=(64, 64)).model, config=shown).model.eval()
    assert attending(folded) == {}
    merged = reparameterize_model(folded)
    assert convolutions(merged) == convolutions(reparameterize_model(source))
    x = torch.randn(1, 3, 64, 64)
    assert relative_error(source(x), merged(x)) < 1e-5


@torch.no_grad()
def test_what_merged_beside_attention_is_not_merged_again() -> None:
    """A part of a block had merged while another attended; after the fold timm asked for both as they were."""
    source = nn.Sequential(
        nn.Conv2d(3, 8, 1), RepVggDw(8, 3, legacy=True), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    ).eval()
    model = tcnn.convert(source, target=r"1\.conv\.c", input_size=(8, 8)).model
    merged = reparameterize_model(model)
    assert isinstance(merged[1].conv1, nn.Conv2d)
    given = nn.Sequential(*source.children())
    shown = tcnn.VerificationConfig(input_size=(8, 8))
    found = reparameterize_model(tcnn.fold(merged, source=given, config=shown).model.eval())
    x = torch.randn(2, 3, 8, 8)
    assert isinstance(found[1].conv, nn.Conv2d)
    assert relative_error(source(x), found(x)) < 1e-5
    early = reparameterize_model(tcnn.fold(model, source=given, config=shown).model.eval())
    assert isinstance(early[1], nn.Conv2d), "and one of which nothing has merged, as a whole"
    assert relative_error(source(x), early(x)) < 1e-5
