"""`timm.create_model("t_resnet50d")`: converted models are timm models like all others."""

from collections.abc import Callable
from pathlib import Path

import pytest
import timm
import torch
from timm.models import save_for_hf
from torch import nn

import tcnn
from tcnn.conversion import catalogue, register
from tcnn.errors import RequestError
from tcnn.layers import GPSA2d

AssertSame = Callable[[nn.Module, nn.Module], None]


def gpsa_layers(model: nn.Module) -> list[GPSA2d]:
    return [module for module in model.modules() if isinstance(module, GPSA2d)]


def seeded(name: str, **options: object) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return timm.create_model(name, **options).eval()


def test_every_convertible_model_is_registered() -> None:
    names = {entry.registered_as for entry in catalogue.entries().values() if timm.is_model(entry.name)} - {None}
    assert set(timm.list_models("t_*")) == names
    assert {f"t_{name}" for name in timm.list_models(module="resnet")} <= names


def test_registering_again_changes_nothing() -> None:
    before = timm.list_models(), timm.list_pretrained()
    register.register_all()
    assert (timm.list_models(), timm.list_pretrained()) == before


def test_pretrained_tags_are_the_sources() -> None:
    tags = [name.removeprefix("t_") for name in timm.list_pretrained("t_resnet50d*")]
    assert tags == timm.list_pretrained("resnet50d*") != []
    ours, theirs = (timm.get_pretrained_cfg(name) for name in ("t_resnet50d.ra2_in1k", "resnet50d.ra2_in1k"))
    assert ours.hf_hub_id == theirs.hf_hub_id
    assert ours.architecture == "t_resnet50d"
    assert theirs.architecture == "resnet50d", "timm's own records stay as they were"
    assert timm.is_model_pretrained("t_resnet50d")
    assert not timm.is_model_pretrained("t_test_mambaout")


def test_a_model_without_pretrained_weights_is_refused_like_timms_own() -> None:
    with pytest.raises(RuntimeError, match="No pretrained weights exist"):
        timm.create_model("t_test_mambaout", pretrained=True)


@pytest.mark.parametrize("name", ["test_resnet", "test_resnet.r160_in1k", "test_efficientnet", "test_byobnet"])
@torch.no_grad()
def test_it_is_the_conversion_of_the_source(name: str, assert_same_state: AssertSame) -> None:
    model = seeded(f"t_{name}", num_classes=5)
    assert_same_state(model, tcnn.convert(seeded(name, num_classes=5)).model)
    assert model.num_classes == 5
    assert model.pretrained_cfg["architecture"] == f"t_{name.partition('.')[0]}"


def test_it_takes_what_a_conversion_takes() -> None:
    model = timm.create_model("t_resnet18", num_classes=10, stride="remove")
    assert model.num_classes == 10
    assert len(gpsa_layers(model)) == 4
    assert {layer.geometry.stride for layer in gpsa_layers(model)} == {(1, 1)}
    model = timm.create_model("t_test_resnet", temperature=1.0, target=r"layer4\.0\.conv2", head_dim=4, seed=3)
    (layer,) = gpsa_layers(model)
    assert layer.temperature == 1
    assert layer.head_dim == 4
    assert model.conversion_report.config.seed == 3


@pytest.mark.parametrize("option", [{"temperature": 0}, {"stride": "half"}, {"stage": 9}])
def test_a_wrong_option_is_named(option: dict[str, object]) -> None:
    with pytest.raises(RequestError, match=next(iter(option))):
        timm.create_model("t_test_resnet", **option)


@pytest.mark.parametrize("name", ["test_resnet", "test_efficientnet", "test_convnext"])
@torch.no_grad()
def test_its_features_are_the_classifiers(name: str) -> None:
    classifier = seeded(f"t_{name}")
    image = torch.randn(2, 3, 64, 96)
    expected = classifier.forward_intermediates(image, intermediates_only=True)
    backbone = timm.create_model(f"t_{name}", features_only=True).eval()
    weights = {key.replace(".", "_"): tensor for key, tensor in classifier.state_dict().items()}
    for key, tensor in backbone.state_dict().items():  # timm's wrappers write stages.3 as stages_3
        tensor.copy_(weights[key.replace(".", "_")])
    assert len(gpsa_layers(backbone)) == len(gpsa_layers(classifier))
    found = backbone(image)
    assert [feature.shape[1] for feature in found] == backbone.feature_info.channels()
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours, theirs)


@torch.no_grad()
def test_some_features_can_be_chosen() -> None:
    image = torch.randn(1, 3, 64, 64)
    everything = seeded("t_test_resnet", features_only=True)(image)
    backbone = seeded("t_test_resnet", features_only=True, out_indices=(1, 4))
    for ours, index in zip(backbone(image), (1, 4), strict=True):
        assert torch.equal(ours, everything[index])
    early = seeded("t_test_resnet", features_only=True, out_indices=(0, 2))
    assert torch.equal(early(image)[1], everything[2])
    assert gpsa_layers(early) == [], "the converted stage was cut off"


def test_timm_saves_and_loads_it(tmp_path: Path, assert_same_state: AssertSame) -> None:
    model = seeded("t_test_resnet", stride="remove")
    model.reset_classifier(5)
    save_for_hf(model, tmp_path / "model", safe_serialization=True)
    loaded = timm.create_model(f"local-dir:{tmp_path / 'model'}", pretrained=True)
    assert_same_state(loaded, model)
    assert loaded.num_classes == 5
    assert {layer.geometry.stride for layer in gpsa_layers(loaded)} == {(1, 1)}


def test_it_trains(lively: Callable[..., nn.Module]) -> None:
    model = lively("t_test_resnet", num_classes=4, temperature=1.0, in_chans=1).train()
    model.set_grad_checkpointing(True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    nn.functional.cross_entropy(model(torch.randn(4, 1, 64, 64)), torch.arange(4)).backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []
    optimizer.step()
    assert not torch.equal(model.layer4[0].conv1.proj, before["layer4.0.conv1.proj"])
    assert model.eval()(torch.randn(1, 1, 48, 80)).isfinite().all()
