"""Models that somebody changed by hand: what timm recorded when it built them is not what they are."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from nets import PlainNet
from safetensors import safe_open
from timm.models import reparameterize_model
from torch import Tensor, nn

import tcnn
from tcnn.checkpoints import checkpoint
from tcnn.errors import CheckpointError, RequestError

Lively = Callable[..., nn.Module]


def without_pooling(net: Any) -> None:
    net.maxpool = nn.Identity()


def gelu(net: Any) -> None:
    for name, module in list(net.named_modules()):
        if isinstance(module, nn.ReLU):
            parent, _, own = name.rpartition(".")
            setattr(net.get_submodule(parent), own, nn.GELU())


def unstrided(net: Any) -> None:
    net.conv1[0].stride = (1, 1)


def other_eps(net: Any) -> None:
    net.bn1.eps = 0.1


def without_bias(net: Any) -> None:
    net.fc = nn.Linear(net.fc.in_features, 3, bias=False)


def other_forward(net: Any) -> None:
    net.act1.forward = lambda x: x.abs()


EDITS = {
    without_pooling: "maxpool: nothing", gelu: r"conv1\.2: gelu", unstrided: r"conv1\.0: stride=1",
    other_eps: "bn1: eps=0.1",
    without_bias: "fc: .*bias none", other_forward: "act1: forward of its own",
}  # fmt: skip


@pytest.fixture
def image() -> Tensor:
    return torch.randn(2, 3, 48, 64, generator=torch.Generator().manual_seed(0))


def assert_same(found: nn.Module, expected: nn.Module, image: Tensor) -> None:
    with torch.no_grad():
        assert torch.equal(found(image), expected.eval()(image))


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.__name__)
def test_it_comes_back_by_its_source_only(
    edit: Callable[[Any], None], lively: Lively, image: Tensor, tmp_path: Path
) -> None:
    """Without it timm's own network was built, whose output was off by up to 267 %."""
    source = lively("test_resnet", num_classes=3)
    edit(source)
    model = tcnn.convert(source).model
    said = EDITS[edit]
    with pytest.warns(UserWarning, match=rf"test_resnet.* \(.*{said}.*load\(FILE, source=MODEL\)") as warned:
        file = tcnn.save(model, tmp_path / "m.safetensors")
    assert len(warned) == 1
    assert warned[0].filename == __file__
    with pytest.raises(CheckpointError, match=f"{said}.*source"):
        tcnn.load(file)
    assert_same(tcnn.load(file, source=source), model, image)
    assert_same(tcnn.load(file, source=model), model, image)
    with pytest.raises(CheckpointError, match=f"does not fit the source: expected {said}"):
        tcnn.load(file, source=timm.create_model("test_resnet", num_classes=3))


def test_from_a_directory_timm_would_build_another(lively: Lively, tmp_path: Path) -> None:
    source = lively("test_resnet")
    without_pooling(source)
    with pytest.raises(RequestError, match=r"maxpool: nothing.*one \.safetensors file"):
        tcnn.save_directory(tcnn.convert(source).model, tmp_path / "hub")
    assert not (tmp_path / "hub").exists()


@pytest.mark.parametrize("classes", [4, 0])
@pytest.mark.filterwarnings("error")
def test_a_replaced_classifier_is_recorded(classes: int, lively: Lively, image: Tensor, tmp_path: Path) -> None:
    """timm's record has the width that it was built with, so that nothing loaded the file."""
    source: Any = lively("test_resnet")
    source.fc = nn.Linear(source.num_features, classes) if classes else nn.Identity()
    model = tcnn.convert(source).model
    loaded = tcnn.load(tcnn.save(model, tmp_path / "m.safetensors"))
    assert loaded.num_classes == classes
    assert_same(loaded, model, image)
    assert_same(tcnn.load(tcnn.save_directory(model, tmp_path / "hub")), model, image)
    assert_same(timm.create_model(f"local-dir:{tmp_path / 'hub'}", pretrained=True).eval(), model, image)
    assert json.loads((tmp_path / "hub" / "config.json").read_text())["num_classes"] == classes
    assert model.num_classes == 1000, "the model is left as it is"


def test_a_width_that_is_not_recorded_is_named(lively: Lively, tmp_path: Path) -> None:
    """As in files of before: timm's record stands in them, and the width does not fit."""
    model: Any = tcnn.convert(lively("test_resnet", num_classes=4)).model
    tensors, metadata = checkpoint.contents(model)
    report = json.loads(metadata["conversion"])
    metadata["conversion"] = json.dumps({**report, "model_args": {"num_classes": 7}})
    metadata["digest"] = checkpoint.digest(tensors, metadata)
    file = checkpoint.write((tensors, metadata), tmp_path / "old.safetensors")
    with pytest.raises(CheckpointError, match=r"size mismatch for fc.weight.*num_classes=4, or .*source"):
        tcnn.load(file)
    assert tcnn.load(file, num_classes=4).num_classes == 4


def swapped(model: nn.Module, **options: Any) -> nn.Module:
    """The model with another GPSA layer in the place of its last."""
    report: Any = model.conversion_report
    layer = model.get_submodule(report.layers[-1].name)
    own: dict[str, Any] = {key: getattr(layer, key) for key in ("kernel_size", "stride", "dilation", "groups")}
    own |= {"padding": (1, 1), "bias": layer.bias is not None, "head_dim": layer.head_dim} | options
    new = tcnn.GPSA2d(layer.in_channels, layer.out_channels, **own)
    new.load_state_dict(layer.state_dict())
    parent, _, name = report.layers[-1].name.rpartition(".")
    setattr(model.get_submodule(parent), name, new.eval())
    return model


def test_a_layer_with_another_scope_comes_back_as_it_is(image: Tensor, tmp_path: Path) -> None:
    """The report had the scope of the conversion, and the file that of the report."""
    net = PlainNet()
    model = tcnn.convert(net, target="mid", temperature=1.0).model
    swapped(model, content="window:3").eval()
    model.mid.gating_param.data.fill_(-1)
    file = tcnn.save(model, tmp_path / "m.safetensors")
    loaded: Any = tcnn.load(file, source=net)
    assert loaded.mid.content == "window:3"
    assert_same(loaded, model, image)


def test_a_layer_with_other_padding_is_refused_by_its_cnn(image: Tensor, tmp_path: Path) -> None:
    net = PlainNet()
    model = swapped(tcnn.convert(net, target="mid").model, padding_mode="circular")
    with pytest.warns(UserWarning, match="mid: padding_mode=circular"):
        file = tcnn.save(model, tmp_path / "m.safetensors")
    with pytest.raises(CheckpointError, match="mid: expected padding_mode circular"):
        tcnn.load(file, source=net)
    assert_same(tcnn.load(file, source=model), model, image)


@pytest.mark.filterwarnings("error:the model is not as")
@pytest.mark.parametrize(
    ("name", "merged"),
    [
        ("lcnetv2_small", "after"),
        *(pytest.param("repvgg_a0", merged, marks=pytest.mark.slow) for merged in ("before", "after")),
        pytest.param("lcnetv2_small", "before", marks=pytest.mark.slow),
    ],
)  # fmt: skip
@torch.no_grad()
def test_what_timm_merged_comes_back(name: str, merged: str, lively: Lively, image: Tensor, tmp_path: Path) -> None:
    """The names in its file are not those of what timm builds, so that nothing loaded it."""
    source = lively(name, num_classes=5)
    source = reparameterize_model(source) if merged == "before" else source
    model = tcnn.convert(source, input_size=(48, 64)).model
    model = reparameterize_model(model) if merged == "after" else model
    file = tcnn.save(model, tmp_path / "m.safetensors")
    with safe_open(file, "pt") as handle:
        assert handle.metadata()["merged"] == merged
    assert_same(tcnn.load(file), model, image)
    assert_same(tcnn.load(tcnn.save(tcnn.load(file), tmp_path / "again.safetensors")), model, image)
    with pytest.raises(RequestError, match="no name for a merged model"):
        tcnn.save_directory(model, tmp_path / "hub")


@pytest.mark.parametrize("section", ["[]", "{", '{"fc": 3}'])
def test_edits_that_nobody_wrote_so_are_refused(section: str, lively: Lively, tmp_path: Path) -> None:
    tensors, metadata = checkpoint.contents(tcnn.convert(lively("test_resnet")).model)
    metadata["edited"] = section
    metadata["digest"] = checkpoint.digest(tensors, metadata)
    file = checkpoint.write((tensors, metadata), tmp_path / "m.safetensors")
    with pytest.raises(CheckpointError, match="damaged"):
        tcnn.load(file)


class Linear(nn.Linear):
    """As peft's: what a model has in the place of PyTorch's layer of the same name."""

    __module__ = "peft.tuners.lora.layer"

    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


def test_a_class_of_the_same_name_is_told_from_pytorchs(lively: Lively, tmp_path: Path) -> None:
    """With what makes it PyTorch's again."""
    source, path = lively(), tmp_path / "m.safetensors"
    model = tcnn.convert(source).model
    model.fc = Linear(model.fc.in_features, model.fc.out_features)
    full, remedy = r"fc: peft\.tuners\.lora\.layer\.Linear", r"merge_and_unload\(\)"
    with pytest.warns(UserWarning, match=rf"{full}.*source=MODEL.*{remedy}"):
        tcnn.save(model, path)
    with pytest.raises(CheckpointError, match=rf"expected {full}, as it was saved, found fc: Linear; .*{remedy}"):
        tcnn.load(path, source=source)
    with pytest.raises(CheckpointError, match=rf"{full}.*source.*{remedy}"):
        tcnn.load(path)


class Wrapper(nn.Module):
    """Forwards attributes to the model inside, as peft's do."""

    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        self.inside = inside

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("inside"), name)


def test_a_wrapper_is_refused(lively: Lively, tmp_path: Path) -> None:
    wrapped = Wrapper(tcnn.convert(lively("test_resnet")).model)
    with pytest.raises(RequestError, match=r"GPSA layer layer4.*found nothing.*model inside.*merge_and_unload"):
        tcnn.save(wrapped, tmp_path / "m.safetensors")
    assert not list(tmp_path.iterdir())
