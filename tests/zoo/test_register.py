"""`timm.create_model("t_resnet50d")`: converted models are timm models like all others."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import timm
import torch
from sampled import sampled
from timm.models import save_for_hf
from torch import nn

import tcnn
from tcnn.conversion import register
from tcnn.errors import NothingToConvertError, RequestError, WeightsError
from tcnn.layers import GPSA2d
from tcnn.models.running import gpsa_layers
from tcnn.zoo import catalogue

AssertSame = Callable[[nn.Module, nn.Module], None]


def seeded(name: str, **options: object) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return timm.create_model(name, **options).eval()


def test_every_convertible_model_is_registered() -> None:
    names = {entry.registered_as for entry in catalogue.entries().values() if timm.is_model(entry.name)} - {None}
    assert set(timm.list_models("t_*")) == names
    assert {f"t_{name}" for name in timm.list_models(module="resnet")} <= names


@pytest.mark.parametrize("listing", [timm.list_models, timm.models.list_models, timm.list_pretrained])
def test_listings_are_timms_own_unless_asked_for_more(listing: Callable[..., list[str]]) -> None:
    for arguments in ({}, {"filter": "*resnet18*"}, {"exclude_filters": ["resnet*"]}, {"filter": iter(["t*"])}):
        names = listing(**arguments)
        assert names
        assert [name for name in names if name.startswith("t_")] == []
    assert len(timm.list_models()) == len(catalogue.entries()) - len(catalogue.ATTENTIVE)
    assert timm.list_models("resnet18*", include_tags=True) == timm.list_models(
        ["resnet18*"], "resnet", include_tags=True
    )


def test_converted_models_are_listed_on_request() -> None:
    assert (
        timm.list_models("t_resnet18*")
        == timm.models.list_models(filter=["t_resnet18*"])
        == ["t_resnet18", "t_resnet18d"]
    )
    assert timm.list_models(["t_resnet18", "resnet18"]) == ["resnet18", "t_resnet18"]
    assert timm.list_models("t_*", exclude_filters="*resnet*") != []
    assert timm.list_models(module="register") == timm.list_models("t_*")
    assert "t_resnet18.a1_in1k" in timm.list_models("t_resnet18", pretrained=True)


def test_a_name_need_not_be_listed_to_be_known() -> None:
    assert timm.is_model("t_resnet50")
    assert timm.models.model_entrypoint("t_resnet50").__name__ == "t_resnet50"
    assert "t_resnet50" not in timm.list_models("*resnet50*")


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


@pytest.mark.parametrize(
    "name",
    sampled(
        ["test_resnet", "test_resnet.r160_in1k", "test_efficientnet", "test_byobnet"],
        ["test_resnet.r160_in1k", "test_byobnet"],
    ),
)
@torch.no_grad()
def test_it_is_the_conversion_of_the_source(name: str, assert_same_state: AssertSame) -> None:
    model = seeded(f"t_{name}", num_classes=5)
    assert_same_state(model, tcnn.convert(seeded(name, num_classes=5)).model)
    assert model.num_classes == 5
    assert model.pretrained_cfg["architecture"] == f"t_{name.partition('.')[0]}"


def test_it_takes_what_a_conversion_takes() -> None:
    model = timm.create_model("t_test_resnet", num_classes=10, stride="remove")
    assert model.num_classes == 10
    assert len(gpsa_layers(model)) == 2
    assert {layer.geometry.stride for layer in gpsa_layers(model).values()} == {(1, 1)}
    model = timm.create_model("t_test_resnet", temperature=1.0, target=r"layer4\.0\.conv2", head_dim=4, seed=3)
    (layer,) = gpsa_layers(model).values()
    assert layer.position_temperature == 1
    assert layer.head_dim == 4
    assert model.conversion_report.config.seed == 3


@pytest.mark.parametrize("option", [{"temperature": 0}, {"stride": "half"}, {"stage": 9}])
def test_a_wrong_option_is_named(option: dict[str, object]) -> None:
    with pytest.raises(RequestError, match=next(iter(option))):
        timm.create_model("t_test_resnet", **option)


@pytest.mark.parametrize(
    ("name", "stride"),
    sampled(
        [
            *((name, "keep") for name in ("test_resnet", "test_efficientnet", "test_convnext")),
            ("test_resnet", "remove"), ("regnety_002", "remove"), ("test_resnet", "dilate"),
        ],
        [("test_efficientnet", "keep"), ("test_resnet", "remove")],
    ),
)  # fmt: skip
@torch.no_grad()
def test_its_features_are_the_classifiers(name: str, stride: str) -> None:
    classifier = seeded(f"t_{name}", stride=stride)
    image = torch.randn(2, 3, 64, 96)
    expected = classifier.forward_intermediates(image, intermediates_only=True)
    backbone = timm.create_model(f"t_{name}", features_only=True, stride=stride).eval()
    weights = {key.replace(".", "_"): tensor for key, tensor in classifier.state_dict().items()}
    for key, tensor in backbone.state_dict().items():  # timm's wrappers write stages.3 as stages_3
        tensor.copy_(weights[key.replace(".", "_")])
    assert len(gpsa_layers(backbone)) == len(gpsa_layers(classifier))
    found = backbone(image)
    assert [feature.shape[1] for feature in found] == backbone.feature_info.channels()
    assert [64 // feature.shape[2] for feature in found] == backbone.feature_info.reduction()
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


@pytest.mark.parametrize("feature_cls", ["list", "dict", "getter", "fx"])
def test_features_before_the_converted_stage_are_refused(feature_cls: str) -> None:
    """They would be the plain CNN's."""
    with pytest.raises(
        NothingToConvertError, match=r"these features end before.*layer4\.0\.conv1.*create test_resnet "
    ):
        timm.create_model("t_test_resnet", features_only=True, out_indices=(0, 2), feature_cls=feature_cls)


@pytest.mark.slow  # of a single family
def test_where_the_usual_features_end_too_early_what_is_advised_helps() -> None:
    """timm's five levels of a SelecSLS leave its head out, whose last 3×3 convolution is what is converted."""
    with torch.device("meta"):
        with pytest.raises(NothingToConvertError, match="choose out_indices that reach them"):
            timm.create_model("t_selecsls42", features_only=True)
        backbone = timm.create_model("t_selecsls42", features_only=True, out_indices=(4, 5))
    assert [isinstance(layer, GPSA2d) for layer in backbone.modules()].count(True) == 1


@pytest.mark.parametrize("feature_cls", sampled(["list", "dict", "hook", "getter", "fx"], ["dict", "fx"]))
@torch.no_grad()
def test_every_kind_of_feature_extractor_is_converted(feature_cls: str, tmp_path: Path) -> None:
    classifier = seeded("t_test_resnet")
    for layer in gpsa_layers(classifier).values():  # attention that a convolution would not give
        layer.set_temperature(0.5)
        layer.query.mul_(20)
    save_for_hf(classifier, tmp_path / "model", safe_serialization=True)
    options = {"features_only": True, "feature_cls": feature_cls, "out_indices": (1, 4)}
    backbone = timm.create_model(f"local-dir:{tmp_path / 'model'}", pretrained=True, **options).eval()
    assert len(gpsa_layers(backbone)) == 2
    image = torch.randn(2, 3, 64, 96)
    expected = classifier.forward_intermediates(image, indices=(1, 4), intermediates_only=True)
    found = backbone(image)
    found = list(found.values()) if isinstance(found, dict) else found
    assert len(found) == 2
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours - theirs).norm() < 1e-5 * theirs.norm()


@pytest.mark.parametrize("name", sampled(["xception41p", "cspnext_tiny", "pit_ti_224"], ["cspnext_tiny"]))
def test_the_extractor_that_timm_gives_by_default_is_converted(name: str) -> None:
    """Hooks and getters: their names have a prefix."""
    backbone = timm.create_model(f"t_{name}", features_only=True)
    assert len(gpsa_layers(backbone)) == catalogue.entries()[name].layers


def test_weights_that_lack_a_layer_of_the_extractor_are_refused(tmp_path: Path) -> None:
    save_for_hf(seeded("t_test_resnet", target=r"layer4\.0\.conv2"), tmp_path / "model", safe_serialization=True)
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    del config["model_args"]["target"]
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    with pytest.raises(WeightsError, match=r"layer4\.0\.conv1\.query: in the feature extractor, not in the weights"):
        timm.create_model(f"local-dir:{tmp_path / 'model'}", pretrained=True, features_only=True)


def test_timm_saves_and_loads_it(tmp_path: Path, assert_same_state: AssertSame) -> None:
    model = seeded("t_test_resnet", stride="remove")
    model.reset_classifier(5)
    save_for_hf(model, tmp_path / "model", safe_serialization=True)
    loaded = timm.create_model(f"local-dir:{tmp_path / 'model'}", pretrained=True)
    assert_same_state(loaded, model)
    assert loaded.num_classes == 5
    assert {layer.geometry.stride for layer in gpsa_layers(loaded).values()} == {(1, 1)}


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
