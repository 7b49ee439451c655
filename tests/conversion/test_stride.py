"""Stride removal: the stage runs at stride 1, shortcuts included, and computes what the same CNN computes whose strides
were taken out by hand."""

import copy
from collections.abc import Callable

import pytest
import timm
import torch
from nets import (
    PlainNet,
    image,
    meta_model,
    relative_error,
    same_state,
    seeded_model,
    snapshot,
    spatial_convolutions,
    with_random_statistics,
)
from sampled import sampled
from timm.layers import BlurPool2d
from timm.models.resnest import ResNestBottleneck
from timm.models.resnet import BasicBlock, Bottleneck, downsample_avg, downsample_conv
from torch import Tensor, nn

import tcnn
from tcnn.conversion.strides.dilation import growth
from tcnn.errors import RequestError, UnsupportedLayerError
from tcnn.models.trace import trace

SIZE = (64, 96)

GONE, ONE = nn.Identity, "stride 1"
"""What becomes of a layer: left out, or kept at stride 1."""

BY_HAND = {
    # ResNet
    "resnet18": {"layer4.0.conv1": ONE, "layer4.0.downsample.0": ONE},
    "resnet26d": {"layer4.0.conv2": ONE, "layer4.0.downsample.0": GONE},
    "ecaresnet26t": {"layer4.0.conv2": ONE, "layer4.0.downsample.0": GONE},
    "resnetblur18": {"layer4.0.aa": GONE, "layer4.0.downsample.0": ONE},
    "resnetaa50d": {"layer4.0.aa": GONE, "layer4.0.downsample.0": GONE},
    "skresnet18": {
        "layer4.0.conv1.paths.0.conv": ONE,
        "layer4.0.conv1.paths.1.conv": ONE,
        "layer4.0.downsample.0": ONE,
    },
    "resnest26d": {"layer4.0.avd_last": ONE, "layer4.0.downsample.0": GONE},
    "resnest50d_1s4x24d": {"layer4.0.avd_first": ONE, "layer4.0.downsample.0": GONE},
    # SENet
    "legacy_seresnet18": {"layer4.0.conv1": ONE, "layer4.0.downsample.0": ONE},
    # ResNetV2
    "resnetv2_50": {"stages.3.blocks.0.conv2": ONE, "stages.3.blocks.0.downsample.conv": ONE},
    "resnetv2_50d_gn": {"stages.3.blocks.0.conv2": ONE, "stages.3.blocks.0.downsample.pool": GONE},
    # RegNet
    "regnety_002": {"s4.b1.conv2.conv": ONE, "s4.b1.downsample.conv": ONE},
    "regnetz_005": {"s4.b1.conv2.conv": ONE},
    # ByobNet
    "seresnet33ts": {"stages.3.0.conv2_kxk.conv": ONE, "stages.3.0.shortcut.conv": ONE},
    "gernet_s": {"stages.3.0.conv2_kxk.conv": ONE, "stages.3.0.shortcut.conv": ONE},
    "repvgg_a0": {"stages.3.0.conv_kxk.conv": ONE, "stages.3.0.conv_1x1.conv": ONE},
    "test_byobnet": {"stages.3.0.conv2_kxk.conv": ONE, "stages.3.0.shortcut.pool": GONE},
    # NormFreeNet
    "test_nfnet": {"stages.3.0.conv2": ONE, "stages.3.0.downsample.pool": GONE},
    # EfficientNet, MobileNetV3
    "efficientnet_b0": {"blocks.5.0.conv_dw": ONE},
    "efficientnet_blur_b0": {"blocks.5.0.aa": GONE},
    "tf_efficientnet_b0": {"blocks.5.0.conv_dw": ONE},
    "mixnet_s": {f"blocks.5.0.conv_dw.{i}": ONE for i in range(5)},
    "mobilenetv3_small_050": {"blocks.4.0.conv_dw": ONE},
    "hardcorenas_a": {"blocks.5.0.conv_dw": ONE},
}


ALWAYS = ["test_byobnet"]
"""Carried by a shortcut's pool; below a convolution that carries it is taken out by hand, too. The others are slow."""


def by_hand(model: nn.Module, changes: dict[str, object]) -> nn.Module:
    """A copy of the model with the named layers out of the way or at stride 1."""
    twin = copy.deepcopy(model)
    for name, change in changes.items():
        if change is GONE:
            parent, _, last = name.rpartition(".")
            setattr(twin.get_submodule(parent), last, nn.Identity())
        else:
            layer = twin.get_submodule(name)
            layer.stride = (1, 1) if isinstance(layer, nn.Conv2d) else 1
    return twin


@pytest.mark.parametrize("name", sampled(BY_HAND, ALWAYS))
def test_equals_the_cnn_whose_strides_were_removed_by_hand(name: str) -> None:
    source = with_random_statistics(seeded_model(name)).double().eval()
    before = snapshot(source)
    reference = by_hand(source, BY_HAND[name])
    converted, report = tcnn.convert(source, stride="remove")
    x = image(SIZE, double=True)
    with torch.no_grad():
        expected, found = reference(x), converted(x)
        strided = source(x)
        small, large = source.forward_features(x), converted.forward_features(x)
    assert relative_error(expected, found) <= 1e-10
    assert relative_error(strided, found) > 1e-4  # so the comparison can tell
    assert sorted(report.strides_removed) == sorted(BY_HAND[name])
    assert large.shape == (*small.shape[:2], 2 * small.shape[2], 2 * small.shape[3])
    assert all(layer.stride == (1, 1) for layer in report.layers)
    assert same_state(source, before)


@pytest.mark.parametrize(
    "name",
    sampled(
        ["test_resnet blurred", "resnet18", "resnet26d", "resnetblur18", "resnest26d", "tf_efficientnet_b0"],
        ["test_resnet blurred"],
    ),
)
def test_without_stride_is_the_reference_for_verification(name: str) -> None:
    name, blurred = name.removesuffix(" blurred"), name.endswith(" blurred")
    source = seeded_model(name, **({"aa_layer": BlurPool2d} if blurred else {}))
    assert not blurred or isinstance(source.layer4[0].aa, BlurPool2d)
    reference = tcnn.without_stride(source)
    converted, _ = tcnn.convert(source, stride="remove")
    assert tcnn.verify(reference, converted, input_size=SIZE, batch_size=1, randomise=True).passed
    report = tcnn.verify(source, converted, input_size=SIZE, batch_size=1, randomise=True)
    assert not report.passed  # the CNN with its stride is another function
    assert not {p.data_ptr() for p in source.parameters()} & {p.data_ptr() for p in reference.parameters()}
    weights = source.state_dict()
    assert all(torch.equal(value, weights[key]) for key, value in reference.state_dict().items())


def resnet18_block() -> nn.Module:
    return BasicBlock(256, 512, downsample=downsample_conv(256, 512, kernel_size=1))


def resnet26d_block() -> nn.Module:
    return Bottleneck(1024, 512, downsample=downsample_avg(1024, 2048, kernel_size=1))


def resnest26d_block() -> nn.Module:
    """`is_first` is ResNeSt's own word for: keep the 3×3 mean although the stride is 1."""
    shortcut = downsample_avg(1024, 2048, kernel_size=1)
    return ResNestBottleneck(1024, 512, downsample=shortcut, radix=2, avd=True, avd_first=False, is_first=True)


@pytest.mark.parametrize(
    ("name", "build"),
    [
        pytest.param("resnet18", resnet18_block, marks=pytest.mark.slow),
        pytest.param("resnest26d", resnest26d_block, marks=pytest.mark.slow),
        pytest.param("resnet26d", resnet26d_block, marks=pytest.mark.slow),
        pytest.param(
            "resnetblur50",
            lambda: Bottleneck(1024, 512, downsample=downsample_conv(1024, 2048, 1), aa_layer=BlurPool2d),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_equals_what_timm_itself_builds_at_stride_one(name: str, build: Callable[[], nn.Module]) -> None:
    source = with_random_statistics(seeded_model(name)).double().eval()
    reference = copy.deepcopy(source)
    block = build().double().eval()
    weights = {
        key.replace("downsample.0.", "downsample.0."): value for key, value in source.layer4[0].state_dict().items()
    }
    block.load_state_dict({key: weights[key] for key in block.state_dict()})
    reference.layer4[0] = block
    converted, _ = tcnn.convert(source, stride="remove")
    x = image(SIZE, double=True)
    with torch.no_grad():
        assert relative_error(reference(x), converted(x)) <= 1e-10


class TestOtherStages:
    def test_an_inner_stage_runs_at_stride_one_and_the_next_sees_a_larger_map(self) -> None:
        source = with_random_statistics(seeded_model("test_resnet")).double().eval()
        reference = by_hand(source, {"layer3.0.conv2": ONE, "layer3.0.downsample.0": GONE})
        converted, report = tcnn.convert(source, stage=3, stride="remove")
        assert [layer.name for layer in report.layers] == spatial_convolutions(source, "layer3.")
        x = image(SIZE, double=True)
        with torch.no_grad():
            assert relative_error(reference(x), converted(x)) <= 1e-10

    def test_a_target_removes_the_stride_of_its_stage(self) -> None:
        source = with_random_statistics(seeded_model("test_resnet")).double().eval()
        reference = by_hand(source, {"layer4.0.conv1": ONE, "layer4.0.downsample.0": GONE})
        converted, report = tcnn.convert(source, target=r"layer4\.0\.conv2", stride="remove")
        assert [layer.name for layer in report.layers] == ["layer4.0.conv2"]
        assert isinstance(converted.layer4[0].conv1, nn.Conv2d)
        x = image(SIZE, double=True)
        with torch.no_grad():
            assert relative_error(reference(x), converted(x)) <= 1e-10

    def test_a_stage_that_has_no_stride_is_left_as_it_is(self) -> None:
        """With `output_stride=16` timm has taken it out already, and dilated the convolutions instead."""
        source = with_random_statistics(seeded_model("test_resnet", output_stride=16)).double().eval()
        converted, report = tcnn.convert(source, stride="remove")
        assert report.strides_removed == ()
        x = image(SIZE, double=True)
        with torch.no_grad():
            assert relative_error(source(x), converted(x)) <= 1e-10


class TestRefused:
    """Where it is not known what carries the stride, the reason is given and nothing is guessed."""

    @pytest.mark.parametrize(
        ("name", "kind"),
        sampled(
            [
                ("test_convnext", "ConvNeXt"),
                ("densenet121", "DenseNet"),
                ("ese_vovnet19b_dw", "VovNet"),
                ("dla34", "DLA"),
            ],
            [("test_convnext", "ConvNeXt")],
        ),
    )
    def test_unknown_families(self, name: str, kind: str) -> None:
        with pytest.raises(UnsupportedLayerError, match=rf"not for timm\.[a-z.]*\.{kind}; use stride=keep") as caught:
            tcnn.convert(meta_model(name), stride="remove")
        assert "known for timm's ByobNet, EfficientNet, " in str(caught.value) and ", ResNet, " in str(caught.value)

    def test_a_module_that_is_no_timm_model(self) -> None:
        with pytest.raises(UnsupportedLayerError, match=r"not for nets\.PlainNet"):
            tcnn.convert(PlainNet(), stride="remove")

    @pytest.mark.parametrize(("kernel", "padding"), [(2, 0), (4, 1), ((3, 2), (1, 0))], ids=["2×2", "4×4", "3×2"])
    def test_a_convolution_that_would_change_the_size_of_the_map(self, kernel: object, padding: object) -> None:
        source = meta_model("resnet18")
        source.layer4[0].conv1 = nn.Conv2d(256, 512, kernel, stride=2, padding=padding, device="meta")
        with pytest.raises(UnsupportedLayerError, match=r"layer4\.0\.conv1: .* would change the size of the map"):
            tcnn.convert(source, stride="remove", input_size=(224, 224))

    def test_a_layer_whose_stride_one_form_is_not_known(self) -> None:
        source = timm.create_model("test_resnet")
        source.layer4[0].downsample = nn.Sequential(nn.LPPool2d(2, 2, stride=2), nn.Conv2d(192, 96, 1))
        with pytest.raises(UnsupportedLayerError, match=r"layer4\.0\.downsample\.0: no stride-1 form of LPPool2d"):
            tcnn.convert(source, stride="remove", input_size=SIZE)

    def test_a_stride_that_no_layer_carries(self) -> None:
        class Halve(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                return x[..., ::2, ::2]

        source = timm.create_model("test_resnet", layers=(1, 1, 1, 2))
        source.layer4.insert(1, Halve())
        with pytest.raises(
            UnsupportedLayerError, match=r"^stride=remove: the stage still works at several resolutions"
        ):
            tcnn.convert(source, target=r"layer4\..*conv\d", stride="remove", input_size=(128, 128))

    def test_a_map_that_does_not_grow_with_the_image_stays(self) -> None:
        """As behind a pool to a fixed size; the others become as large as the first of the stage."""
        assert growth((8, 12), (4, 0)) == (2, 1)
        assert growth((4, 4), (8, 4)) == (1, 1)

    def test_a_model_that_does_not_run_without_its_stride(self) -> None:
        source = timm.create_model("test_resnet")
        source.global_pool = nn.Flatten(1)
        source.fc = nn.Linear(96 * 4, 10)
        with pytest.raises(
            UnsupportedLayerError,
            match=r"fc: Linear does not run on maps without that stride \(.*1536",
        ):
            tcnn.convert(source, stride="remove", input_size=(64, 64))

    def test_the_source_is_not_changed_by_a_refusal(self) -> None:
        source = timm.create_model("test_resnet")
        source.layer4[0].downsample = nn.Sequential(nn.LPPool2d(2, 2, stride=2), nn.Conv2d(192, 96, 1))
        before = snapshot(source)
        strides = [m.stride for m in source.modules() if isinstance(m, nn.Conv2d)]
        with pytest.raises(RequestError):
            tcnn.without_stride(source, input_size=SIZE)
        assert same_state(source, before)
        assert [m.stride for m in source.modules() if isinstance(m, nn.Conv2d)] == strides


@pytest.mark.parametrize("ceil_mode", [False, True])
def test_a_mean_around_every_pixel_stays_at_stride_one(ceil_mode: bool) -> None:
    """As in ResNeSt, whatever its last window does where the stride leaves a rest: not on 5×7 pixels."""
    source, size = seeded_model("test_resnet").eval(), (80, 112)
    source.layer4[0].downsample[0] = nn.AvgPool2d(3, 2, 1, ceil_mode=ceil_mode)
    expected = copy.deepcopy(source)
    for layer in expected.layer4[0].modules():
        if isinstance(layer, nn.Conv2d | nn.AvgPool2d):
            layer.stride = (1, 1)
    x = image(size)
    with torch.no_grad():
        assert relative_error(expected(x), tcnn.without_stride(source, input_size=size)(x)) == 0


def test_the_same_padding_of_tensorflow_is_kept() -> None:
    """TensorFlow's rule pads a strided convolution on one side only; at stride 1 it pads both."""
    source = seeded_model("test_efficientnet", pad_type="same")
    steps = {step.name: step.output_shape for step in trace(tcnn.without_stride(source), (70, 90))}
    assert steps["blocks.4.0.conv_dw"][-2:] == steps["blocks.3.0.conv_dw"][-2:] == (5, 6)
