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
from timm.models.byobnet import RepVggBlock
from timm.models.fastvit import RepMixer
from timm.models.lcnetv2 import RepDepthwiseSeparable
from timm.models.repvit import RepVggDw
from torch import Tensor, nn

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


class OfItsOwn(nn.Module):
    """Two branches that become one, with the stride of its call, after a look at the values."""

    def __init__(self, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.small, self.large = (nn.Conv2d(8, 8, side, stride, side // 2, bias=False) for side in (1, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.large(x) + self.small(x) if hasattr(self, "small") else self.large(x)

    @torch.no_grad()
    def switch_to_deploy(self) -> None:
        made = nn.Conv2d(8, 8, 3, self.stride, bias=False)
        made.padding, made.dilation = self.large.padding, self.large.dilation
        if float(self.small.weight.abs().sum()) > 0:
            made.weight.copy_(self.large.weight + nn.functional.pad(self.small.weight, [1, 1, 1, 1]))
        self.large = made
        del self.small


def with_block(block: nn.Module, stride: int) -> nn.Module:
    """A block on a map that a convolution with this stride has made, and a convolution after it."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, stride, padding=1), block, nn.Conv2d(8, 8, 3, padding=1),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    ).eval()  # fmt: skip


@pytest.mark.parametrize(
    ("block", "stride", "merges"),
    [
        pytest.param(lambda: RepDepthwiseSeparable(8, 8, use_rep=True), 2, False, id="dilated"),
        pytest.param(lambda: RepDepthwiseSeparable(8, 8, stride=2, use_rep=True), 1, False, id="without its stride"),
        pytest.param(lambda: RepMixer(8, layer_scale_init_value=1.0), 2, False, id="blocks in a block"),
        pytest.param(lambda: OfItsOwn(2), 1, False, id="without its stride, and it reads values"),
        pytest.param(lambda: OfItsOwn(1), 2, True, id="that keeps its dilation, and reads values"),
        pytest.param(lambda: RepVggBlock(8, 8), 2, True, id="that keeps its dilation"),
    ],
)
@torch.no_grad()
def test_blocks_beside_attention_that_lost_their_stride(
    block: Callable[[], nn.Module], stride: int, merges: bool
) -> None:
    """And in the CNN that the model is compared with: what a block was built with is not what it computes now."""
    source = with_block(block(), stride)
    where = tcnn.ConversionConfig(target="3", stride="dilate", input_size=(16, 16))
    for model in (tcnn.convert(source, where).model, tcnn.without_stride(source, where)):
        x = torch.randn(2, 3, 16, 16)
        merged = reparameterize_model(model)
        assert relative_error(model(x), merged(x)) < 1e-5
        assert (convolutions(merged) < convolutions(model)) is merges


@torch.no_grad()
def test_blocks_in_a_dilated_block_after_a_fold() -> None:
    """One of them would merge, the other not, and what holds both failed."""
    source = with_block(RepMixer(8, layer_scale_init_value=1.0), 2)
    model = tcnn.convert(source, target=r"2\..*", stride="dilate", input_size=(8, 8)).model
    shown = tcnn.VerificationConfig(input_size=(8, 8), batch_size=1)
    folded = tcnn.fold(model, source=nn.Sequential(*source.children()), config=shown).model.eval()
    assert not attending(folded)
    x = torch.randn(2, 3, 8, 8)
    assert relative_error(folded(x), reparameterize_model(folded)(x)) < 1e-5
