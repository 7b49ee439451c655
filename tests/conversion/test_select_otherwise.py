"""Selection by `stage` and `target`, and what is said when nothing is left to convert."""

from collections.abc import Callable

import pytest
import timm
import torch
from nets import LAST_STAGE, PlainNet, choose, choose_timm, image, relative_error, spatial_convolutions, traced
from torch import Tensor, nn

import tcnn
from tcnn.config import ConversionConfig
from tcnn.conversion.selection import select
from tcnn.errors import NothingToConvertError, RequestError
from tcnn.models.trace import Step


class TestStage:
    """`stage` counts like timm's `out_indices`."""

    @pytest.mark.parametrize(
        ("index", "prefix"),
        [
            (1, "layer1."),
            (2, "layer2."),
            (3, "layer3."),
            (4, "layer4."),
            (-1, "layer4."),
            (-2, "layer3."),
            (-4, "layer1."),
        ],
    )
    def test_of_a_resnet(self, index: int, prefix: str) -> None:
        selection = choose_timm("resnet18", stage=index)
        assert list(selection.names) == spatial_convolutions(traced("resnet18")[0], prefix)
        assert selection.stage == prefix.rstrip(".")

    @pytest.mark.parametrize(("index", "names"), [(0, ["wide"]), (1, ["down1", "mid"]), (2, LAST_STAGE)])
    def test_of_a_plain_module(self, index: int, names: list[str]) -> None:
        assert list(choose(PlainNet(), (32, 32), stage=index).names) == names

    @pytest.mark.parametrize("index", [5, -6, 99])
    def test_out_of_range_names_the_stages(self, index: int) -> None:
        expected = rf"^stage: expected one of 0 \(act1\), 1 \(layer1\), .*4 \(layer4\) .*, got {index}$"
        with pytest.raises(RequestError, match=expected):
            choose_timm("resnet18", stage=index)

    def test_the_stem_that_reads_the_image_is_refused(self) -> None:
        with pytest.raises(NothingToConvertError, match="conv1: it reads the image itself") as caught:
            choose_timm("resnet18", stage=0)
        assert "--stage 4 (4 in layer4)" in str(caught.value)


class ConvNetLayerNorm(nn.LayerNorm):
    """Named after its network, as ConvNeXt's of transformers is."""


class ConvNetGRN(nn.Module):
    """Likewise, with a weight of four dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, 1, 1, 4))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight.movedim(-1, 1)


class OwnConv(nn.Module):
    """A convolution that is no `nn.Conv2d`."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4, 4, 3, 3))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.conv2d(x, self.weight, padding=1)


def test_a_normalisation_named_after_its_network_is_no_convolution() -> None:
    layers = (nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, 2, 1), OwnConv(), ConvNetGRN(), ConvNetLayerNorm(8))
    model = nn.Sequential(*layers)
    assert choose(model, (16, 16)).skipped == (("2", "OwnConv is not an nn.Conv2d"),)
    assert choose(model, (16, 16), target="[1-4]").skipped == (("2", "OwnConv is not an nn.Conv2d"),)


class TestTarget:
    """`target` is matched in full against dotted names."""

    def test_one_name(self) -> None:
        selection = choose_timm("resnet18", target=r"layer3\.1\.conv2")
        assert selection.names == ("layer3.1.conv2",)
        assert selection.skipped == ()

    def test_a_pattern_over_stages(self) -> None:
        selection = choose_timm("resnet18", target=r"layer[34]\.\d\.conv\d")
        assert list(selection.names) == spatial_convolutions(traced("resnet18")[0], "layer3.", "layer4.")

    def test_no_stage_is_named_beside_it(self) -> None:
        with pytest.raises(RequestError, match=r"^target: names the convolutions, so that stage 2 has no effect; give"):
            choose_timm("resnet18", target=r"layer2\.0\.conv1", stage=2)
        assert choose_timm("resnet18", target=r"layer2\.0\.conv1", stage=-1).names == ("layer2.0.conv1",)

    def test_may_name_the_stem(self) -> None:
        """By default a layer that reads the image is left alone; who names it gets it."""
        assert choose_timm("resnet18", target="conv1").names == ("conv1",)

    def test_what_it_matches_and_cannot_convert_is_listed(self) -> None:
        selection = choose_timm("resnet18", target=r"layer4\.0\..*")
        assert selection.names == ("layer4.0.conv1", "layer4.0.conv2")
        assert dict(selection.skipped).keys() == {"layer4.0.downsample.0"}

    @pytest.mark.parametrize("target", ["layer4", "conv", r"layer4\.0\.conv", r"4\.0\.conv1", "Layer4.0.conv1", ""])
    def test_part_of_a_name_is_no_match_and_candidates_are_named(self, target: str) -> None:
        with pytest.raises(NothingToConvertError, match=r"matches no convolution \(the whole dotted name") as caught:
            choose_timm("resnet18", target=target)
        assert repr(target) in str(caught.value)
        assert "layer1.0.conv1, layer1.0.conv2" in str(caught.value)
        assert "downsample" not in str(caught.value)  # 1×1: no candidate

    def test_only_unconvertible_layers_each_with_its_reason(self) -> None:
        class Odd(nn.Conv2d):
            def forward(self, x: Tensor) -> Tensor:
                return super().forward(x) + 1

        model = nn.Module()
        model.point = nn.Conv2d(3, 4, 1)
        model.odd = Odd(4, 4, 3, padding=1)
        model.up = nn.ConvTranspose2d(4, 4, 3)
        model.hooked = nn.Conv2d(4, 4, 3)
        model.hooked.register_forward_pre_hook(lambda *_: None)
        model.idle = nn.Conv2d(4, 4, 3)
        model.lazy = nn.LazyConv2d(4, 3)
        model.forward = lambda x: model.hooked(model.up(model.odd(model.point(x))))
        steps = [Step(name, module, (1, 4, 9, 9), (1, 4, 9, 9)) for name, module in model.named_children()]
        steps = [step for step in steps if step.name != "idle"]
        with pytest.raises(NothingToConvertError, match="matches only layers that cannot be converted") as caught:
            select(model, steps, ConversionConfig(target=".+"))
        message = str(caught.value)
        assert "\n" not in message
        for part in (
            "point: 1×1",
            "odd: Odd has a forward of its own",
            "up: ConvTranspose2d is not an nn.Conv2d",
            "hooked: it has forward pre-hooks",
            "idle: it does not run in a forward pass",
            "lazy: its shape is not known",
        ):
            assert part in message

    @pytest.mark.parametrize("target", ["(", "*", "[a"])
    def test_that_is_no_regular_expression(self, target: str) -> None:
        with pytest.raises(ValueError, match="not a regular expression"):
            ConversionConfig(target=target)


class TestNothing:
    """Nothing to convert: say what was looked at, and what could be converted instead."""

    @pytest.mark.parametrize(
        ("name", "looked_at"),
        [
            ("vit_tiny_patch16_224", r"stage blocks\.0 … blocks\.11; patch_embed\.proj: it reads the image itself"),
            pytest.param(
                "mixer_s16_224",
                r"stage blocks\.0 … blocks\.7; stem\.proj: it reads the image itself",
                marks=pytest.mark.slow,
            ),
            pytest.param("swin_tiny_patch4_window7_224", r"stage layers\.3", marks=pytest.mark.slow),
        ],
    )
    def test_transformers(self, name: str, looked_at: str) -> None:
        expected = rf"^{name}: no k×k convolution to convert \(looked at [1-9]\d* layers of {looked_at}"
        with pytest.raises(NothingToConvertError, match=expected) as caught:
            choose_timm(name)
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("name", [pytest.param("coatnet_0_224", marks=pytest.mark.slow), "botnet26t_256"])
    def test_attention_only_last_stages_name_others_that_work(self, name: str) -> None:
        with pytest.raises(NothingToConvertError, match="; other stages: --stage ") as caught:
            choose_timm(name)
        others = str(caught.value).split("other stages: ")[1].split(", ")
        assert len(others) >= 3
        for other in others:
            index, count = (int(word.strip("(")) for word in other.split()[1:3])
            assert len(choose_timm(name, stage=index).names) == count > 0

    @pytest.mark.slow
    def test_layers_that_only_look_like_convolutions_are_named(self) -> None:
        with pytest.raises(NothingToConvertError, match=r"blocks\.5\.0\.conv_dw: CondConv2d is not an nn\.Conv2d"):
            choose_timm("efficientnet_cc_b0_4e")

    @pytest.mark.parametrize(
        "build",
        [
            nn.Sequential,
            nn.ReLU,
            lambda: nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 5)),
            lambda: nn.Sequential(nn.Conv2d(3, 8, 1), nn.ReLU(), nn.Conv2d(8, 8, 1)),
        ],
        ids=["empty", "no weights", "perceptron", "1×1 only"],
    )
    def test_a_model_without_a_spatial_convolution(self, build: Callable[[], nn.Module]) -> None:
        model = build()
        with pytest.raises(
            NothingToConvertError, match=f"^{type(model).__name__} runs no convolution: nothing to convert$"
        ):
            choose(model, (8, 8))

    def test_only_a_stem(self) -> None:
        model = nn.Sequential(nn.Conv2d(3, 8, 16, stride=16), nn.Flatten(), nn.Linear(8 * 4, 5))
        with pytest.raises(NothingToConvertError, match="0: it reads the image itself"):
            choose(model, (32, 32))

    def test_a_stage_whose_every_convolution_is_refused(self) -> None:
        model = timm.create_model("test_resnet")
        for name in spatial_convolutions(model, "layer4."):
            model.get_submodule(name).register_forward_hook(lambda *_: None)
        with pytest.raises(NothingToConvertError, match=r"layer4\.0\.conv1: it has forward hooks") as caught:
            choose(model, (64, 64))
        assert "--stage 3" in str(caught.value)


class Merged(nn.Module):
    """Two branches that every forward pass in evaluation merges into a third convolution, by one of several ways."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.wide, self.point, self.merged = nn.Conv2d(4, 4, 3, 1, 1), nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 3, 1, 1)
        self.way = way

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            return self.wide(x) + self.point(x)  # type: ignore[no-any-return]
        weight = self.wide.weight.data + nn.functional.pad(self.point.weight.data, (1, 1, 1, 1))
        if self.way == "set":
            self.merged.weight.data = weight
        elif self.way == "replaced":
            self.merged.weight = nn.Parameter(weight)
        else:
            self.merged.weight.data.copy_(weight)
        self.merged.bias.data = self.wide.bias.data + self.point.bias.data  # type: ignore[union-attr]
        return self.merged(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("target", [None, ".*merged"])
@pytest.mark.parametrize("way", ["set", "replaced"])
def test_a_convolution_whose_weight_a_forward_pass_sets_is_skipped(way: str, target: str | None) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.Conv2d(4, 4, 3, 1, 1), Merged(way)).eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(NothingToConvertError, match=r"2\.merged: a forward pass sets its weight \(weight\.data = …\)"):
        choose(nn.Sequential(model[0], nn.Identity(), model[2]) if target is None else model, (8, 8), target=target)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    if target is None:
        selection = choose(model, (8, 8))
        assert selection.names == ("1",) and [name for name, _ in selection.skipped] == ["2.merged"]


def test_one_that_is_written_in_place_is_converted_and_written_likewise() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), Merged("copied")).eval()
    converted, report = tcnn.convert(model, input_size=8)
    assert [layer.name for layer in report.layers] == ["1.merged"]
    assert relative_error(model(image((8, 8))), converted.eval()(image((8, 8)))) <= 1e-5
