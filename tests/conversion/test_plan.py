"""The plan of a conversion (what is replaced, where, with which geometry, without its stride), and its report."""

from dataclasses import replace
from itertools import product

import pytest
import torch
from nets import PlainNet, image, meta_model, relative_error, same_state, seeded_model, snapshot
from sampled import sampled
from torch import Tensor, nn

import tcnn
from tcnn.config import ConversionConfig
from tcnn.conversion.plan import Plan, plan_conversion
from tcnn.conversion.report import FoldRecord
from tcnn.conversion.strides.layers import NONE, StrideRemoval
from tcnn.conversion.surgery import apply, rebuild, strideless, unconverted
from tcnn.errors import NothingToConvertError, RequestError, UnsupportedLayerError
from tcnn.layers.terms.positions import Geometry

STAGE = [f"layer4.{block}.conv{conv}" for block in (0, 1) for conv in (1, 2)]
SIZE = (12, 14)


def plan(model: nn.Module | str, **options: object) -> Plan:
    return plan_conversion(meta_model(model) if isinstance(model, str) else model, ConversionConfig(**options))


def tied() -> nn.Sequential:
    """Two convolutions with one filter, and three layers with one bias, the last of which stays."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 6, 1), nn.Conv2d(6, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1), nn.BatchNorm2d(6)
    ).eval()
    net[2].weight = net[1].weight
    net[1].bias = net[2].bias = net[3].bias
    return net


class TestOfAResnet:
    """resnet18: the last stage, whose first block halves the map."""

    def test_says_what_is_replaced_and_by_what(self) -> None:
        found = plan("resnet18")
        assert (found.base_model, found.stage) == ("resnet18.a1_in1k", "layer4")
        assert [replacement.name for replacement in found.replacements] == STAGE
        assert [replacement.head_dim for replacement in found.replacements] == [24, 56, 56, 56]
        plain = Geometry((3, 3), padding=(1, 1, 1, 1))
        assert [r.geometry for r in found.replacements] == [replace(plain, stride=(2, 2)), plain, plain, plain]
        assert {(r.content, r.content_heads, r.note, r.fold, len(r.tied)) for r in found.replacements} == {
            ("global", 0, None, None, 0)
        }
        assert (found.stride, found.skipped) == (NONE, ())

    def test_remove_takes_the_stride_from_the_block_and_its_shortcut(self) -> None:
        found = plan("resnet18", stride="remove")
        assert found.stride == StrideRemoval("remove", ("layer4.0.conv1", "layer4.0.downsample.0"), {})
        assert {r.geometry for r in found.replacements} == {Geometry((3, 3), padding=(1, 1, 1, 1))}

    def test_dilate_spreads_the_kernels_behind_it(self) -> None:
        found = plan("resnet18", stride="dilate")
        removed = ("layer4.0.conv1", "layer4.0.downsample.0")
        assert found.stride == StrideRemoval("dilate", removed, dict.fromkeys(STAGE[1:], (2, 2)))
        wide = Geometry((3, 3), dilation=(2, 2), padding=(2, 2, 2, 2))
        first = Geometry((3, 3), padding=(1, 1, 1, 1))
        assert [r.geometry for r in found.replacements] == [first, wide, wide, wide]

    def test_a_target_chooses_by_name_and_keeps_the_stage_whose_stride_may_go(self) -> None:
        found = plan("resnet18", target=r"layer[34]\.1\.conv2", stride="remove")
        assert [r.name for r in found.replacements] == ["layer3.1.conv2", "layer4.1.conv2"]


def test_a_target_is_named_and_what_it_matches_in_vain_is_skipped() -> None:
    found = plan("resnet18", target=r"layer4\.0\.(conv2|downsample\.0)")
    assert found.stage == r"target layer4\.0\.(conv2|downsample\.0)"
    assert [r.name for r in found.replacements] == ["layer4.0.conv2"]
    assert [(s.name, s.reason[:3]) for s in found.skipped] == [("layer4.0.downsample.0", "1×1")]
    with pytest.raises(NothingToConvertError, match="matches no convolution"):
        plan("resnet18", target="layer4")


def test_options_are_resolved_layer_by_layer() -> None:
    found = plan("resnet18", head_dim=5, content_heads=2, content="window:7", seed=3)
    assert {(r.head_dim, r.content_heads, r.content) for r in found.replacements} == {(5, 2, "window:7")}
    assert [r.note for r in found.replacements] == [
        None, *["content window:7 acts as global: the map is 9×9, padding included"] * 3,
    ]  # fmt: skip


def test_a_head_is_no_wider_than_what_it_reads_but_eight_may_always_be() -> None:
    narrow, wide = (nn.Sequential(nn.Conv2d(channels, 4, 3, padding=1)) for channels in (3, 12))
    for net, most, reads in ((narrow, 8, 3), (wide, 12, 12)):
        (replacement,) = plan(net, input_size=SIZE, target="0", head_dim=most).replacements
        assert replacement.head_dim == most
        said = rf"^head_dim: 0 reads {reads} channels, .*; expected at most {most}, got {most + 1}$"
        with pytest.raises(RequestError, match=said):
            plan(net, input_size=SIZE, target="0", head_dim=most + 1)


def test_what_is_tied_names_the_first_of_its_kind_and_what_stays_before_that() -> None:
    first, second = plan(tied(), input_size=SIZE).replacements
    assert first.tied == {"bias": "3.bias"}
    assert second.tied == {"proj": "1.proj", "bias": "3.bias"}
    assert second.note == "its proj is 1.proj as well, as it was before; its bias is 3.bias as well, as it was before"


@pytest.mark.parametrize(
    ("source", "options"),
    [
        (lambda: meta_model("resnet18"), {"stride": "dilate", "content_heads": 1}),
        (lambda: meta_model("test_resnet"), {"stride": "remove", "content": "pooled:4,unpadded"}),
        (lambda: meta_model("test_efficientnet", pad_type="same"), {}),
        (lambda: meta_model("test_nfnet"), {"head_dim": 3}),
        (PlainNet, {"input_size": SIZE, "target": "down2|point|last"}),
        (tied, {"input_size": SIZE}),
    ],
    ids=["dilate", "remove", "SAME padding", "standardised", "target", "tied"],
)
def test_the_plan_is_the_one_that_the_report_gives_back(source: object, options: dict[str, object]) -> None:
    """So loading a file applies what the conversion applied."""
    model = source()  # type: ignore[operator]
    found = plan(model, **options)
    report = found.report(model, apply(model, found))
    assert Plan.of_report(type(report).model_validate_json(report.model_dump_json())) == found


def test_planning_needs_no_weights_and_changes_nothing() -> None:
    source = seeded_model("test_resnet").train()
    before, modes = snapshot(source), [module.training for module in source.modules()]
    options: dict[str, object] = {"stride": "dilate", "content_heads": 1}
    assert plan(source, **options) == plan("test_resnet", **options)
    assert same_state(source, before) and [module.training for module in source.modules()] == modes


def test_without_replacements_it_leads_to_the_cnn_without_its_stride() -> None:
    source = seeded_model("test_resnet").eval()
    made = apply(source, replace(plan(source, stride="dilate"), replacements=()))
    assert not any(isinstance(module, tcnn.GPSA2d) for module in made.modules())
    x = image((64, 64))
    with torch.no_grad():
        assert relative_error(tcnn.without_stride(source, stride="dilate")(x), made(x)) == 0


def test_the_cnn_that_a_conversion_is_the_equal_of_is_saved_with_what_was_done_to_it() -> None:
    source = seeded_model("test_resnet").eval()
    made = strideless(source, tcnn.ConversionConfig(stride="dilate"))
    report, converted = made.conversion_report, tcnn.convert(source, stride="dilate").report
    assert report.layers == () and report.strides_removed == converted.strides_removed != ()
    assert report.dilated == converted.dilated != {}
    assert report.parameters_before == report.parameters_after == sum(p.numel() for p in source.parameters())
    again = rebuild(seeded_model("test_resnet"), report).eval()
    again.load_state_dict(made.state_dict())
    x = image((64, 64))
    with torch.no_grad():
        assert relative_error(tcnn.without_stride(source, stride="dilate")(x), made(x)) == 0
        assert relative_error(made(x), again(x)) == 0


class OfOneSize(nn.Identity):
    def forward(self, x: Tensor) -> Tensor:
        assert x.shape[-2:] == (64, 96)
        return x


def test_a_stride_is_looked_for_on_images_of_the_size_that_is_given() -> None:
    source = seeded_model("test_resnet").eval()
    plain = tcnn.without_stride(source, input_size=(64, 96))
    source.conv1 = nn.Sequential(OfOneSize(), source.conv1)
    x = image((64, 96))
    with torch.no_grad():
        assert relative_error(plain(x), tcnn.without_stride(source, input_size=(64, 96))(x)) == 0


class TestArchitectureThatDoesNotFit:
    """The errors of a file that is loaded into something else."""

    def test_without_such_a_convolution(self) -> None:
        report = tcnn.convert(meta_model("resnet18")).report
        with pytest.raises(UnsupportedLayerError, match=r"^layer4\.0\.conv1: expected a convolution in resnet18\.a1"):
            rebuild(PlainNet(), report)

    def test_with_another_number_of_heads_than_were_folded(self) -> None:
        found = plan(PlainNet(), input_size=SIZE, target="last", content_heads=1)
        fold = FoldRecord(heads=("attention",) * 15, value=False)
        (replacement,) = found.replacements
        with pytest.raises(UnsupportedLayerError, match=r"^last: expected 16 heads, found 15$"):
            apply(PlainNet(), replace(found, replacements=(replace(replacement, fold=fold),)))


def test_an_unconverted_cnn_has_the_report_of_a_plan_in_which_nothing_happens() -> None:
    model = unconverted(meta_model("resnet18"))
    report = model.conversion_report
    assert (report.base_model, report.stage, report.layers, report.skipped) == ("resnet18.a1_in1k", "", (), ())
    assert report.parameters_before == report.parameters_after == sum(p.numel() for p in model.parameters())


class TestReport:
    """The report says what changed, layer by layer, and it is true."""

    def test_of_a_resnet(self) -> None:
        source = seeded_model("test_resnet")
        converted, report = tcnn.convert(source)
        assert report.base_model == "test_resnet.r160_in1k"
        assert report.stage == "layer4"
        assert report.strides_removed == ()
        assert report.parameters_before == sum(p.numel() for p in source.parameters())
        assert report.parameters_after == sum(p.numel() for p in converted.parameters())
        assert not report.standardised
        first = report.layers[0]
        conv = source.layer4[0].conv1
        assert (first.name, first.source) == ("layer4.0.conv1", "Conv2d")
        assert (first.in_channels, first.out_channels) == (conv.in_channels, conv.out_channels)
        assert (first.kernel_size, first.stride, first.dilation, first.groups) == ((3, 3), (2, 2), (1, 1), 1)
        assert (first.padding, first.padding_mode, first.bias) == ((1, 1, 1, 1), "zeros", False)
        assert first.heads == 9

    @pytest.mark.parametrize(
        ("name", "head_dim"),
        sampled(
            product(["resnext50_32x4d", "regnety_002", "resnetv2_50x1_bit", "convnext_atto"], [None, 3]),
            [("regnety_002", 3)],
        ),
    )
    def test_counts_every_parameter(self, name: str, head_dim: int | None) -> None:
        source = meta_model(name)
        converted, report = tcnn.convert(source, head_dim=head_dim)
        assert report.parameters_after == sum(p.numel() for p in converted.parameters())
        for layer in report.layers:
            conv, gpsa = source.get_submodule(layer.name), converted.get_submodule(layer.name)
            assert layer.parameters_before == sum(p.numel() for p in conv.parameters())
            assert layer.parameters_after == sum(p.numel() for p in gpsa.parameters())
            assert layer.head_dim == gpsa.head_dim and layer.heads == gpsa.heads

    def test_names_what_was_skipped(self) -> None:
        model = PlainNet()
        model.last.register_forward_hook(lambda *_: None)
        _, report = tcnn.convert(model)
        assert [(skipped.name, "forward hooks" in skipped.reason) for skipped in report.skipped] == [("last", True)]

    def test_says_that_standardisation_ended(self) -> None:
        _, report = tcnn.convert(meta_model("test_nfnet"))
        assert report.standardised
        assert all(layer.note is not None and "standardis" in layer.note for layer in report.layers)

    def test_is_enough_to_rebuild_the_structure(self) -> None:
        source = seeded_model("test_resnet")
        converted, report = tcnn.convert(source, stride="remove", head_dim=5)
        again = rebuild(seeded_model("test_resnet"), type(report).model_validate_json(report.model_dump_json()))
        assert same_state(again, snapshot(converted))
        assert str(again) == str(converted)
