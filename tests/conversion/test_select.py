"""Selection by default: the k×k convolutions at the backbone's final resolution, and why not the others."""

from collections.abc import Callable

import pytest
import timm
import torch
from nets import (
    LAST_STAGE,
    PlainNet,
    Tied,
    choose,
    choose_timm,
    meta_model,
    same_state,
    snapshot,
    spatial_convolutions,
    traced,
)
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize


class TestLastStage:
    """The k×k convolutions that work at the backbone's final resolution."""

    @pytest.mark.parametrize(
        ("name", "prefixes", "count"),
        [
            ("resnet18", ["layer4."], 4),
            ("skresnet18", ["layer4."], 6),  # two paths in one layer
            ("resnest14d", ["layer4."], 1),  # pools behind its only convolution
            ("resnetblur18", ["layer4."], 4),  # its first convolution works at the old resolution, BlurPool behind it
            ("convnext_atto", ["stages.3."], 3),  # the 2×2 downsampling convolution is one of them
            ("repvgg_a0", ["stages.3."], 1),  # feature_info names final_conv, an Identity
            ("selecsls42b", ["head.2."], 1),  # feature_info names head.3, 1×1
            ("vgg11", ["features.16", "features.18"], 2),  # feature_info names the pool behind them
            *(
                pytest.param(*case, marks=pytest.mark.slow)
                for case in (
                    ("resnet50d", ["layer4."], 3),
                    ("resnext50_32x4d", ["layer4."], 3),  # 32 groups
                    ("resnetaa50d", ["layer4."], 3),
                    ("resnetv2_50", ["stages.3."], 3),
                    ("regnety_002", ["s4."], 7),
                    ("seresnet33ts", ["stages.3."], 2),
                    ("efficientnet_b0", ["blocks.5.", "blocks.6."], 5),
                    ("efficientnet_blur_b0", ["blocks.5.", "blocks.6."], 5),
                    ("mobilenetv3_small_050", ["blocks.4."], 3),
                    ("densenet121", ["features.denseblock4."], 16),  # feature_info names norm5, which has none
                    ("gernet_s", ["stages.3.", "stages.4."], 3),  # feature_info names final_conv, 1×1
                    ("hardcorenas_a", ["blocks.5.", "blocks.6."], 2),  # feature_info names blocks.6, 1×1
                    ("vgg11_bn", ["features.22", "features.25"], 2),
                    ("convmixer_768_32", ["blocks."], 32),  # one resolution from end to end
                    ("vit_small_r26_s32_224", ["patch_embed.backbone.stages.3."], 2),  # in front of a transformer
                )
            ),
        ],
    )
    def test_of_timm_models(self, name: str, prefixes: list[str], count: int) -> None:
        selection = choose_timm(name)
        expected = spatial_convolutions(traced(name)[0], *prefixes)
        assert sorted(selection.names) == sorted(expected)
        assert len(expected) == count

    def test_of_hrnet_is_its_lowest_branch(self) -> None:
        selection = choose_timm("hrnet_w18_small")
        assert set(selection.names) == {
            "transition3.3.0.0",
            *(f"stage4.0.branches.3.{block}.conv{i}" for block in (0, 1) for i in (1, 2)),
            "stage4.0.fuse_layers.3.0.2.0",
            "stage4.0.fuse_layers.3.1.1.0",
            "stage4.0.fuse_layers.3.2.0.0",
            "incre_modules.3.0.conv2",
            "downsamp_modules.2.0",
        }
        assert ("stage4.0.branches.0.0.conv1", "it works at 56×56, not at the stage's 7×7") in selection.skipped

    def test_of_ghostnet_begins_with_its_strided_convolution(self) -> None:
        """GhostNet's last stage in `feature_info` holds a whole block of the resolution before."""
        model, _ = traced("ghostnet_050")
        selection = choose_timm("ghostnet_050")
        old = "it works at 14×14, not at the stage's 7×7"
        skipped = [name for name, reason in selection.skipped if reason == old]
        assert sorted(skipped) == sorted(
            [*spatial_convolutions(model, "blocks.6."), "blocks.7.0.ghost1.cheap_operation.0"]
        )
        rest = set(spatial_convolutions(model, "blocks.7.", "blocks.8.")) - set(skipped)
        assert set(selection.names) == rest and len(rest) == 11

    @pytest.mark.slow
    def test_where_feature_info_names_modules_that_do_not_exist(self) -> None:
        """MViTv2's entries say `block.0` where the model has `stages.0`; its k×k convolutions pool the queries."""
        selection = choose_timm("mvitv2_tiny")
        assert list(selection.names) == [
            "stages.3.blocks.0.attn.pool_q",
            *(f"stages.3.blocks.1.attn.pool_{part}" for part in "qkv"),
        ]

    def test_of_a_model_without_feature_info(self) -> None:
        selection = choose(PlainNet(), (32, 48))
        assert list(selection.names) == LAST_STAGE
        assert selection.stage == "8×12 pixels"
        assert selection.skipped == ()

    @pytest.mark.parametrize("info", [None, [], "layer4", [{"reduction": 4}], [{"module": "nowhere", "reduction": 4}]])
    def test_where_feature_info_is_of_no_help(self, info: object) -> None:
        model = PlainNet()
        model.feature_info = info
        assert list(choose(model, (32, 48)).names) == LAST_STAGE

    def test_odd_sizes_are_one_resolution(self) -> None:
        """Without padding every convolution takes some pixels off; that begins no new stage."""
        layers = [nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3, stride=2), nn.Conv2d(4, 4, 3)]
        net = nn.Sequential(*layers, nn.Conv2d(4, 4, 2))
        assert list(choose(net, (49, 51)).names) == ["3", "4", "5"]

    def test_a_map_of_one_pixel_is_a_head_not_a_stage(self) -> None:
        net = PlainNet()
        net.point = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(16, 16, 3, padding=1))
        selection = choose(net, (32, 32))
        assert list(selection.names) == LAST_STAGE
        assert selection.stage == "8×8 pixels"

    def test_in_running_order_whatever_the_order_of_definition(self) -> None:
        class Reversed(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.third, self.second, self.first = (nn.Conv2d(4, 4, 3, padding=1) for _ in range(3))
                self.stem = nn.Conv2d(3, 4, 4, stride=4)

            def forward(self, x: Tensor) -> Tensor:
                return self.third(self.second(self.first(self.stem(x))))

        assert choose(Reversed(), (32, 32)).names == ("first", "second", "third")

    def test_a_layer_used_twice_is_chosen_once(self) -> None:
        assert choose(Tied(), (16, 16)).names == ("first",)

    @pytest.mark.parametrize(("output_stride", "dilation"), [(16, 2), (8, 4)])
    def test_of_a_dilated_resnet(self, output_stride: int, dilation: int) -> None:
        """Two or three stages share one resolution there; the last is still layer4 alone."""
        model = meta_model("resnet18", output_stride=output_stride)
        selection = choose(model)
        assert list(selection.names) == spatial_convolutions(model, "layer4.")
        assert model.layer4[1].conv1.dilation == (dilation, dilation)

    @pytest.mark.parametrize(
        ("name", "prefixes"),
        [
            ("resnet18", ["layer4."]),
            pytest.param("convnext_atto", ["stages_3."], marks=pytest.mark.slow),
            pytest.param("efficientnet_b0", ["blocks.5.", "blocks.6."], marks=pytest.mark.slow),
        ],
    )
    def test_of_a_features_only_model(self, name: str, prefixes: list[str]) -> None:
        model = meta_model(name, features_only=True)
        assert list(choose(model).names) == spatial_convolutions(model, *prefixes)

    def test_of_one_convolution_alone(self) -> None:
        assert choose(nn.Conv2d(3, 8, 3), (16, 16)).names == ("",)


class TestSkipped:
    """What stands in the stage and is left as it is, with the reason."""

    def test_a_convolution_with_hooks(self) -> None:
        model = PlainNet()
        model.last.register_forward_hook(lambda *_: None)
        selection = choose(model, (32, 32))
        assert selection.names == ("down2", "depthwise")
        [(name, reason)] = selection.skipped
        assert name == "last" and "forward hooks" in reason

    def test_a_convolution_with_arithmetic_of_its_own(self) -> None:
        class Doubled(nn.Conv2d):
            def forward(self, x: Tensor) -> Tensor:
                return 2 * super().forward(x)

        model = PlainNet()
        model.last = Doubled(16, 16, 3, padding=1)
        selection = choose(model, (32, 32))
        assert selection.names == ("down2", "depthwise")
        assert selection.skipped == (("last", "Doubled has a forward of its own that tcnn does not know"),)

    @pytest.mark.parametrize("norm", [parametrizations.weight_norm, parametrizations.spectral_norm])
    def test_a_parametrised_convolution(self, norm: Callable[[nn.Module], nn.Module]) -> None:
        """Reading a spectrally normalised weight advances its power iteration: it must not even be looked at."""
        model = PlainNet().train()
        norm(model.last)
        before = snapshot(model)
        selection = choose(model, (32, 32))
        assert same_state(model, before)
        assert selection.names == ("down2", "depthwise")
        [(name, reason)] = selection.skipped
        assert name == "last" and "remove_parametrizations" in reason
        parametrize.remove_parametrizations(model.last, "weight")
        assert list(choose(model, (32, 32)).names) == LAST_STAGE

    def test_convolutions_of_other_dimensions(self) -> None:
        """ECA's attention over channels is a Conv1d."""
        selection = choose_timm("ecaresnet26t")
        assert selection.names == ("layer4.0.conv2", "layer4.1.conv2")
        assert dict(selection.skipped) == {f"layer4.{block}.se.conv": "Conv1d is not an nn.Conv2d" for block in (0, 1)}

    def test_the_patch_embedding_of_an_isotropic_model(self) -> None:
        skipped = dict(choose_timm("convmixer_768_32").skipped)
        assert skipped == {"stem.0": "it reads the image itself, as a stem or patch embedding"}


def test_the_model_may_live_on_the_meta_device_or_not() -> None:
    real = timm.create_model("test_resnet")
    assert choose(real).names == choose_timm("test_resnet").names
    assert next(real.parameters()).device == torch.device("cpu")
