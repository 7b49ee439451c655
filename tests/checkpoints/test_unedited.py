"""Models that compute what timm builds, though something in them is not as it was: their files need no source."""

import copy
import functools
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors import safe_open
from sampled import sampled
from timm.layers import set_fused_attn, use_fused_attn
from timm.utils import freeze
from torch import Tensor, nn
from torchvision.ops.misc import FrozenBatchNorm2d

import tcnn
from tcnn.checkpoints.architecture import describe_model
from tcnn.errors import CheckpointError
from tcnn.models.running import gpsa_layers

Lively = Callable[..., nn.Module]


@pytest.fixture
def image() -> Tensor:
    return torch.randn(2, 3, 48, 64, generator=torch.Generator().manual_seed(0))


VARIANTS: dict[str, Callable[[], nn.Module]] = {
    "plain": lambda: timm.create_model("resnet10t"),
    "features": lambda: timm.create_model("t_test_resnet", features_only=True),
    "no classes, one channel": lambda: timm.create_model("test_efficientnet", num_classes=0, in_chans=1),
    "activation, dropout": lambda: timm.create_model(
        "resnet10t", act_layer="gelu", drop_rate=0.2, drop_path_rate=0.2, drop_block_rate=0.1
    ),
    "scriptable": lambda: timm.create_model("test_efficientnet", scriptable=True, exportable=True, no_jit=True),
    "another way to compute": lambda: timm.create_model("mobilevitv2_050", exportable=True),
    "pooling": lambda: timm.create_model("regnetx_002", global_pool="max"),
    "t_": lambda: timm.create_model("t_mobilenetv3_small_050", num_classes=5),
}


@pytest.mark.parametrize("variant", sampled(VARIANTS, VARIANTS.keys() - {"another way to compute", "pooling", "plain"}))
@pytest.mark.filterwarnings("error:the model is not as")
def test_what_nobody_changed_is_not_called_edited(variant: str) -> None:
    with torch.device("meta"):
        model: Any = VARIANTS[variant]()
    if not hasattr(model, "conversion_report"):
        model = tcnn.convert(model).model
    assert describe_model(model, model.conversion_report).edited == {}
    as_it_is = variant in ("features", "t_", "another way to compute")  # of which the last cannot be dilated
    dilated = model if as_it_is else tcnn.convert(VARIANTS[variant](), stride="dilate").model
    dilated.grad_checkpointing, dilated.note = True, "mine"
    assert describe_model(dilated, dilated.conversion_report).edited == {}


def test_harmless_changes_are_no_edits(lively: Lively, tmp_path: Path) -> None:
    source: Any = lively("test_resnet")
    source.bn1 = nn.SyncBatchNorm.convert_sync_batchnorm(source.bn1)
    source.bn1.momentum, source.drop_rate, source.mine = 0.3, 0.5, 7
    source.act1 = nn.ReLU(inplace=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        file = tcnn.save(tcnn.convert(source).model, tmp_path / "m.safetensors")
    with safe_open(file, "pt") as handle:
        assert "edited" not in handle.metadata()


@contextmanager
def fused_attention(enabled: bool) -> Iterator[None]:
    """Context in which timm builds layers with fused attention, or without."""
    before = use_fused_attn()
    set_fused_attn(enabled)
    try:
        yield
    finally:
        set_fused_attn(bool(before))


def unfused(model: Any, layers: int) -> None:
    for layer in list(gpsa_layers(model).values())[:layers]:
        layer.fused_attn = False


@pytest.mark.parametrize("loading", [True, False], ids=["loaded fused", "loaded unfused"])
@pytest.mark.parametrize("layers", [0, 1, 2])
@pytest.mark.filterwarnings("error")
@torch.no_grad()
def test_attention_that_is_found_by_name_is_no_edit(
    layers: int, loading: bool, lively: Lively, image: Tensor, tmp_path: Path
) -> None:
    """The layer's submodule for that was taken for one that somebody added, or took away."""
    model: Any = tcnn.convert(lively("test_resnet")).model
    unfused(model, layers)
    with fused_attention(loading):
        file, directory = tcnn.save(model, tmp_path / "m.safetensors"), tcnn.save_directory(model, tmp_path / "hub")
        for loaded in (tcnn.load(file), tcnn.load(file, source=timm.create_model("test_resnet")), tcnn.load(directory)):
            assert {layer.fused_attn for layer in gpsa_layers(loaded).values()} == {loading}
            assert torch.allclose(loaded(image), model.eval()(image), rtol=1e-4, atol=1e-5)


def test_what_computes_something_else_there_is_an_edit(lively: Lively) -> None:
    model: Any = tcnn.convert(lively("test_resnet")).model
    unfused(model, 2)
    (_, first), (name, second) = gpsa_layers(model).items()
    first.attn.attn_drop = nn.Dropout(0.1)
    second.attn.attn_drop, second.attn.forward = nn.ReLU(), lambda *inputs: torch.zeros(())
    assert describe_model(model, model.conversion_report).edited == {
        f"{name}.attn": {"forward": "of its own"}, f"{name}.attn.attn_drop": {"module": "relu"},
    }  # fmt: skip


def mixed_precision_removed(module: nn.Module) -> None:
    """As `Accelerator.unwrap_model(model, keep_fp32_wrapper=False)` does it."""
    module.forward = types.MethodType(type(module).forward, module)


def hook_removed(module: Any) -> None:
    """As Accelerate adds a hook to a module and removes it."""
    before = module.forward
    module.forward = functools.update_wrapper(functools.partial(before), before)
    module.forward = before


@pytest.mark.parametrize("name", ["", "conv1", "layer4.0.conv2"])
@pytest.mark.parametrize("removed", [mixed_precision_removed, hook_removed])
@pytest.mark.filterwarnings("error")
@torch.no_grad()
def test_a_wrapper_that_was_removed_leaves_the_forward_pass_of_the_class(
    removed: Callable[[nn.Module], None], name: str, lively: Lively, image: Tensor, tmp_path: Path
) -> None:
    """As an attribute of the module; the file was taken for one of another network, and did not load."""
    model = tcnn.convert(lively("test_resnet")).model
    removed(model.get_submodule(name))
    assert "forward" in vars(model.get_submodule(name))
    file, directory = tcnn.save(model, tmp_path / "m.safetensors"), tcnn.save_directory(model, tmp_path / "hub")
    for loaded in (tcnn.load(file), tcnn.load(file, source=timm.create_model("test_resnet")), tcnn.load(directory)):
        assert torch.equal(loaded(image), model.eval()(image))


def test_that_of_another_module_is_one_of_its_own(lively: Lively, tmp_path: Path) -> None:
    """Though it is a function of the same class."""
    model: Any = tcnn.convert(lively("test_resnet")).model
    model.layer1[0].act2.forward = model.layer1[0].forward
    model.bn1.forward = lively("test_resnet").bn1.forward
    found = describe_model(model, model.conversion_report).edited
    assert found == {"layer1.0.act2": {"forward": "of its own"}, "bn1": {"forward": "of its own"}}
    with pytest.warns(UserWarning, match="forward of its own"):
        file = tcnn.save(model, tmp_path / "m.safetensors")
    with pytest.raises(CheckpointError, match=r"forward of its own, as it was saved, found .*: forward of its class$"):
        tcnn.load(file, source=timm.create_model("test_resnet"))


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("name", ["test_resnet", "test_efficientnet"])
@pytest.mark.filterwarnings("error")
@torch.no_grad()
def test_frozen_batch_norms_come_back_as_batch_norms(
    name: str, when: str, lively: Lively, image: Tensor, tmp_path: Path
) -> None:
    """Which compute the same in evaluation mode. timm makes those of a frozen part of other classes."""
    source: Any = lively(name)
    parts = [part for part, child in source.named_children() if list(child.parameters())][:3]
    plain = copy.deepcopy(source)
    if when == "before":
        freeze(source, parts)
    model: Any = tcnn.convert(source, input_size=(48, 64)).model
    if when == "after":
        freeze(model, parts)
    assert "Frozen" in repr(model)
    file, directory = tcnn.save(model, tmp_path / "m.safetensors"), tcnn.save_directory(model, tmp_path / "hub")
    of_timm = timm.create_model(f"local-dir:{directory}", pretrained=True).eval()
    for loaded in (tcnn.load(file), tcnn.load(file, source=plain), tcnn.load(directory), of_timm):
        assert "Frozen" not in repr(loaded)
        assert loaded.state_dict().keys() == tcnn.convert(plain, input_size=(48, 64)).model.state_dict().keys()
        assert torch.allclose(loaded(image), model.eval()(image), rtol=1e-4, atol=1e-5)
    as_it_was = tcnn.load(file, source=model)
    assert torch.equal(as_it_was(image), model(image)) and "Frozen" in repr(as_it_was)


def test_a_frozen_batch_norm_of_another_eps_or_without_statistics_is_an_edit(lively: Lively) -> None:
    model: Any = tcnn.convert(lively("test_resnet")).model
    model.bn1.eps = 0.1
    model.layer1[0].bn1 = nn.BatchNorm2d(model.layer1[0].bn1.num_features, track_running_stats=False)
    model.layer2[0].bn1 = FrozenBatchNorm2d(model.layer2[0].bn1.num_features, eps=0.5)
    freeze(model, ["bn1"])
    found = describe_model(model, model.conversion_report).edited
    assert found == {
        "bn1": {"eps": 0.1},
        "layer1.0.bn1": {"track_running_stats": False, "running_mean's shape": None, "running_var's shape": None},
        "layer2.0.bn1": {"eps": 0.5},
    }
