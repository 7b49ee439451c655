"""Models from which layers that attended were removed: what is left of them comes back by its source."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from nets import PlainNet, image
from safetensors import safe_open
from torch import Tensor, nn

import tcnn
from tcnn.errors import CheckpointError, RequestError
from tcnn.models.running import gpsa_layers

Lively = Callable[..., nn.Module]


def cut(model: Any, stages: int) -> Any:
    """As timm prunes a backbone, in place: what follows a stage of `test_resnet` goes, the classifier too."""
    model.prune_intermediate_layers([stages], prune_head=True)
    return model


@torch.no_grad()
def features(model: Any) -> Tensor:
    return model.forward_intermediates(image((48, 64)), [-1], intermediates_only=True)[0]  # type: ignore[no-any-return]


@pytest.mark.parametrize("stride", ["keep", pytest.param("remove", marks=pytest.mark.slow)])
def test_what_timm_left_comes_back(stride: str, lively: Lively, tmp_path: Path) -> None:
    """The report has layers that the model has not, which is no sign of a wrapper here."""
    whole = lively("test_resnet", num_classes=5)
    model = cut(tcnn.convert(whole, target=r"layer[34]\..*conv2", stride=stride).model.eval(), 3)
    source = cut(timm.create_model("test_resnet"), 3)
    with pytest.warns(UserWarning, match=r"test_resnet.* \(.*layer4\.0: nothing.*source=MODEL"):
        file = tcnn.save(model, tmp_path / "m.safetensors")
    for given in (source, model):
        loaded = tcnn.load(file, source=given)
        assert list(gpsa_layers(loaded)) == ["layer3.0.conv2"]
        assert torch.equal(features(loaded), features(model))
        with pytest.warns(UserWarning, match="source=MODEL"):
            again = tcnn.save(loaded, tmp_path / "again.safetensors", force=True)
        assert torch.equal(features(tcnn.load(again, source=source)), features(model))
    for other in (None, whole):
        with pytest.raises(CheckpointError, match="source"):
            tcnn.load(file, source=other)


def test_its_file_counts_what_is_left(lively: Lively, tmp_path: Path) -> None:
    model = cut(tcnn.convert(lively("test_resnet"), target=r"layer[34]\..*conv2").model, 3)
    with pytest.warns(UserWarning, match="source=MODEL"):
        file = tcnn.save(model, tmp_path / "m.safetensors")
    with safe_open(file, "pt") as handle:
        report = json.loads(handle.metadata()["conversion"])
    assert [layer["name"] for layer in report["layers"]] == ["layer3.0.conv2"]
    source = cut(timm.create_model("test_resnet"), 3)
    assert report["parameters_before"] == sum(p.numel() for p in source.parameters())
    assert report["parameters_after"] == sum(p.numel() for p in model.parameters())


def test_nothing_that_attends_is_left(lively: Lively, tmp_path: Path) -> None:
    model = cut(tcnn.convert(lively("test_resnet")).model, 3)
    with pytest.raises(RequestError, match=r"one of its 2 GPSA layers, found none left; it is a CNN: save its state"):
        tcnn.save(model, tmp_path / "m.safetensors")
    assert not list(tmp_path.iterdir())
    again, report = tcnn.convert(model, input_size=(48, 64))
    assert {layer.name.partition(".")[0] for layer in report.layers} == {"layer3"}
    assert features(again).shape == features(model).shape


@pytest.mark.filterwarnings("error:the model is not as")
def test_a_layer_that_became_a_convolution_by_hand(lively: Lively, tmp_path: Path) -> None:
    """As timm builds it there, so that the file needs no source."""
    source: Any = lively("test_resnet")
    model = tcnn.convert(source).model.eval()
    model.layer4[0].conv2 = source.layer4[0].conv2
    loaded = tcnn.load(tcnn.save(model, tmp_path / "m.safetensors"))
    assert list(gpsa_layers(loaded)) == ["layer4.0.conv1"]
    with torch.no_grad():
        assert torch.equal(loaded(image((48, 64))), model(image((48, 64))))


def test_what_it_shared_a_filter_with_may_go(tmp_path: Path) -> None:
    """Then it is tied to nothing."""

    def net() -> nn.Module:
        made = nn.Sequential(*(nn.Conv2d(3, 3, 3, padding=1) for _ in range(3)), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        made[1].weight = made[0].weight
        return made

    model: Any = tcnn.convert(net(), target="[01]", input_size=(8, 8)).model.eval()
    source: Any = net()
    assert model.conversion_report.layers[1].tied == {"proj": "0.proj"}
    for one in (model, source):
        one[0] = nn.Identity()
    loaded: Any = tcnn.load(tcnn.save(model, tmp_path / "m.safetensors"), source=source)
    with torch.no_grad():
        assert torch.equal(loaded(image((8, 8))), model(image((8, 8))))


@pytest.mark.parametrize("inside", [True, False], ids=["in its place", "by another name"])
def test_what_is_wrapped_is_there(inside: bool, tmp_path: Path) -> None:
    """Beside a layer that is missing, too."""
    model: Any = tcnn.convert(PlainNet(), target="wide|mid|last").model
    model.last = nn.Identity()
    if inside:
        model.mid = nn.Sequential(model.mid)
    else:
        model.other, model.mid = model.mid, None
    with pytest.raises(RequestError, match=r"PlainNet: expected a GPSA layer (mid|last).*model inside"):
        tcnn.save(model, tmp_path / "m.safetensors")
