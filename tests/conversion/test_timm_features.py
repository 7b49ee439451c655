"""timm's own methods work on the converted model, and it trains."""

import copy

import pytest
import torch
from nets import image, relative_error, same_state, seeded_model, snapshot, with_random_statistics
from sampled import sampled
from torch import Tensor, nn

import tcnn
from tcnn.conversion.stages import match_names
from tcnn.conversion.surgery import rebuild

SIZE = (64, 96)


def source_model(**options: object) -> nn.Module:
    return with_random_statistics(seeded_model("test_resnet", **options)).double().eval()


class TestTimmFeatures:
    """timm's own methods work on the converted model and give what they give on the source."""

    def test_forward_features_and_head(self) -> None:
        source = source_model()
        converted, _ = tcnn.convert(source)
        x = image(SIZE, double=True)
        with torch.no_grad():
            expected, found = source.forward_features(x), converted.forward_features(x)
            assert relative_error(expected, found) < 1e-13
            assert relative_error(source.forward_head(expected), converted.forward_head(found)) < 1e-13
            pooled = converted.forward_head(found, pre_logits=True)
        assert pooled.shape == (1, converted.num_features)

    def test_forward_intermediates(self) -> None:
        source = source_model()
        converted, _ = tcnn.convert(source)
        x = image(SIZE, double=True)
        with torch.no_grad():
            expected = source.forward_intermediates(x, indices=[2, 3, 4], intermediates_only=True)
            found = converted.forward_intermediates(x, indices=[2, 3, 4], intermediates_only=True)
        assert [e.shape for e in expected] == [f.shape for f in found]
        assert all(relative_error(e, f) < 1e-13 for e, f in zip(expected, found, strict=True))

    @pytest.mark.parametrize("classes", [0, 7])
    def test_reset_classifier(self, classes: int) -> None:
        converted, _ = tcnn.convert(seeded_model("test_resnet"))
        converted.reset_classifier(classes)
        assert converted.num_classes == classes
        with torch.no_grad():
            assert converted(image(SIZE)).shape == (1, classes or converted.num_features)

    def test_num_classes_and_in_chans(self) -> None:
        source = source_model(num_classes=4, in_chans=1)
        converted, _ = tcnn.convert(source)
        assert (converted.num_classes, converted.in_chans) == (4, 1)
        x = image(SIZE, channels=1, double=True)
        with torch.no_grad():
            assert relative_error(source(x), converted(x)) < 1e-13

    @pytest.mark.parametrize("name", sampled(["test_resnet", "test_efficientnet", "test_convnext"], ["test_convnext"]))
    def test_features_only(self, name: str) -> None:
        source = with_random_statistics(seeded_model(name, features_only=True)).double().eval()
        converted, _ = tcnn.convert(source)
        x = image(SIZE, double=True)
        with torch.no_grad():
            expected, found = source(x), converted(x)
        assert len(expected) == len(found) == len(source.feature_info.channels())
        assert all(relative_error(e, f) < 1e-12 for e, f in zip(expected, found, strict=True))
        assert converted.feature_info.reduction() == source.feature_info.reduction()

    @pytest.mark.parametrize("feature_cls", sampled(["list", "dict", "hook", "getter", "fx"], ["list", "fx"]))
    def test_every_kind_of_feature_extractor(self, feature_cls: str) -> None:
        """The same layers are converted as in the classifier, whatever names the extractor has for them."""
        model = seeded_model("test_resnet", features_only=True, feature_cls=feature_cls)
        source = with_random_statistics(model).double().eval()
        converted, report = tcnn.convert(source)
        of_classifier = [layer.name for layer in tcnn.convert(seeded_model("test_resnet")).report.layers]
        assert list(match_names(of_classifier, [layer.name for layer in report.layers]).values()) == of_classifier
        x = image(SIZE, double=True)
        with torch.no_grad():
            expected, found = source(x), converted(x)
        if isinstance(expected, dict):
            expected, found = list(expected.values()), list(found.values())
        assert len(expected) == len(found) == 5
        assert all(relative_error(e, f) < 1e-12 for e, f in zip(expected, found, strict=True))

    @pytest.mark.parametrize(
        ("name", "feature_cls"),
        sampled(
            [
                *(("test_resnet", kind) for kind in ("list", "dict", "hook", "getter", "fx")),
                *(("resnet18", kind) for kind in ("list", "getter", "fx")),
                ("regnety_002", "list"), ("resnetv2_50", "list"), ("efficientnet_b0", "getter"), ("test_nfnet", "fx"),
                ("mobilenetv3_small_050", "hook"), ("repvgg_a0", "fx"), ("legacy_seresnet18", "list"),
            ],
            [("test_resnet", "list"), ("test_resnet", "fx")],
        ),
    )  # fmt: skip
    @pytest.mark.parametrize("stride", ["remove", "dilate"])
    def test_features_without_the_last_stride_are_the_classifiers(
        self, name: str, feature_cls: str, stride: str
    ) -> None:
        """And `feature_info` says how much smaller than the image they are, as timm's own does with `output_stride`."""
        cnn = with_random_statistics(seeded_model(name)).eval()
        source = seeded_model(name, features_only=True, feature_cls=feature_cls).eval()
        names = match_names(cnn.state_dict(), source.state_dict())
        source.load_state_dict({there: cnn.state_dict()[own] for there, own in names.items()})
        reductions = source.feature_info.reduction()
        whole, report = tcnn.convert(cnn, stride=stride)
        (converted, own), x = tcnn.convert(source, stride=stride), image(SIZE)
        assert len(own.layers) == len(report.layers) and len(own.strides_removed) == len(report.strides_removed)
        with torch.no_grad():
            found = converted(x)
            found = list(found.values()) if isinstance(found, dict) else found
            if not name.startswith("test_nfnet"):  # its last feature is one that forward_intermediates does not give
                expected = whole.forward_intermediates(x, norm=False, intermediates_only=True)
                assert relative_error(expected[-1], found[-1]) < 1e-5
        lower = [SIZE[0] // each.shape[-2] for each in found]
        assert converted.feature_info.reduction() == lower
        assert lower[-1] == reductions[-1] // 2 and source.feature_info.reduction() == reductions
        assert [entry["reduction"] for entry in whole.feature_info][-1] == lower[-1]

    def test_gradient_checkpointing(self) -> None:
        def gradients(model: nn.Module) -> dict[str, Tensor]:
            model.zero_grad()
            model(image(SIZE, batch=2, double=True)).square().sum().backward()
            return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}

        converted, _ = tcnn.convert(source_model(), temperature=1.0)
        converted.train()
        plain = gradients(converted)
        converted.set_grad_checkpointing(True)
        checkpointed = gradients(converted)
        assert plain.keys() == checkpointed.keys()
        for name, gradient in plain.items():
            assert gradient.abs().sum() > 0, name
            assert torch.allclose(checkpointed[name], gradient, rtol=1e-9, atol=1e-12), name

    def test_group_matcher_names_the_new_parameters(self) -> None:
        """timm's layer-wise learning rates sort parameters by name: GPSA's must fall into layer4's groups."""
        from timm.models import group_parameters

        source = seeded_model("test_resnet")
        converted, _ = tcnn.convert(source)
        groups = group_parameters(converted, converted.group_matcher(), reverse=True)
        old = group_parameters(source, source.group_matcher(), reverse=True)
        assert groups["layer4.0.conv1.query"] == groups["layer4.0.conv1.proj"] == old["layer4.0.conv1.weight"]

    def test_deepcopy_and_state_dict(self) -> None:
        converted, report = tcnn.convert(seeded_model("test_resnet"))
        assert same_state(copy.deepcopy(converted), snapshot(converted))
        other = rebuild(seeded_model("test_resnet", seed=9), report)
        other.load_state_dict(converted.state_dict())
        assert same_state(other, snapshot(converted))


@pytest.mark.parametrize(
    "name",
    sampled(
        ["test_resnet", "test_byobnet", "test_nfnet", "test_efficientnet", "test_convnext"],
        ["test_nfnet", "test_byobnet"],
    ),
)
def test_training_at_temperature_one_reaches_every_parameter(name: str) -> None:
    """A parameter without a gradient stalls distributed training."""
    converted, report = tcnn.convert(with_random_statistics(seeded_model(name)), temperature=1.0)
    converted.train()
    converted(image(SIZE, batch=2)).square().sum().backward()
    parameters = dict(converted.named_parameters())
    for layer in report.layers:
        for key in ("query", "key", "value", "proj", "gating_param", "locality_raw", "attention_centers"):
            gradient = parameters[f"{layer.name}.{key}"].grad
            assert gradient is not None and gradient.isfinite().all() and gradient.abs().sum() > 0, (
                f"{layer.name}.{key}"
            )
