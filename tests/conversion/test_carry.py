"""What hangs on a model beside its weights: carried into the conversion, or the reason why not, never lost."""

from collections.abc import Callable

import pytest
import timm
import torch
from nets import PlainNet, image, relative_error
from timm.layers import ScaledStdConv2d
from torch import nn

import tcnn
from tcnn.config import VerificationConfig
from tcnn.errors import NothingToConvertError, UnsupportedLayerError
from tcnn.layers import GPSA2d

SIZE = (20, 28)


def convert(source: nn.Module, **options: object) -> nn.Module:
    return tcnn.convert(source, input_size=SIZE, **options).model


class TestHooks:
    def test_of_layers_that_stay_are_carried(self) -> None:
        source, seen = PlainNet(), []
        source.head.register_full_backward_hook(lambda *_: seen.append("module"))
        source.stem.register_forward_hook(lambda *_: seen.append("forward"))
        source.head.weight.register_hook(lambda grad: seen.append("tensor"))
        source.head.bias.register_post_accumulate_grad_hook(lambda parameter: seen.append(("after", parameter)))
        converted = convert(source)
        converted(image(SIZE)).sum().backward()
        after = [given[1] for given in seen if isinstance(given, tuple)]
        assert len(after) == 1 and after[0] is converted.head.bias
        assert {"module", "forward", "tensor"} <= {word for word in seen if isinstance(word, str)}

    def test_of_a_frozen_parameter_are_carried_and_it_stays_frozen(self) -> None:
        source, seen = PlainNet(), []
        source.head.weight.register_hook(lambda grad: seen.append(1))
        source.head.weight.requires_grad_(False)
        weight = convert(source).head.weight
        assert not weight.requires_grad
        weight.requires_grad_().sum().backward()
        assert seen == [1]

    @pytest.mark.parametrize(
        ("register", "said"),
        [
            (lambda conv: conv.register_full_backward_hook(print), "backward hooks"),
            (lambda conv: conv.register_full_backward_pre_hook(print), "backward pre-hooks"),
            (lambda conv: conv.weight.register_hook(print), "hooks on weight"),
            (lambda conv: conv.bias.register_post_accumulate_grad_hook(print), "hooks on bias"),
        ],
    )
    def test_of_a_convolution_leave_it_out_with_the_reason(
        self, register: Callable[[nn.Conv2d], object], said: str
    ) -> None:
        source = PlainNet()
        register(source.last)
        model, report = tcnn.convert(source, input_size=SIZE)
        assert [(s.name, f"it has {said}, which" in s.reason) for s in report.skipped] == [("last", True)]
        assert type(model.last) is nn.Conv2d
        with pytest.raises(NothingToConvertError, match=f"last: it has {said}, which a replacement would lose"):
            convert(source, target="last")

    def test_of_a_convolution_that_stays_one_without_its_stride_are_carried(self) -> None:
        """The shortcut's 1×1 convolution changes its stride only."""
        source, seen = timm.create_model("test_resnet", num_classes=2, avg_down=False), []
        source.layer4[0].downsample[0].register_forward_hook(lambda *_: seen.append(1))
        wide = tcnn.convert(source, stride="remove", input_size=(32, 32)).model
        seen.clear()  # the source was traced
        with torch.no_grad():
            wide.eval()(image((32, 32)))
        assert seen == [1]


class TestAttributes:
    def test_of_parameters_that_stay_are_carried(self) -> None:
        source = PlainNet()
        source.head.weight.lr_scale = 0.5
        source.head.weight.group = ["decayed"]
        head = convert(source).head
        assert (head.weight.lr_scale, head.weight.group) == (0.5, ["decayed"])
        assert head.weight.group is not source.head.weight.group

    def test_of_a_filter_and_a_bias_are_carried_to_what_they_become(self) -> None:
        source = PlainNet()
        source.last.weight.lr_scale, source.last.bias.lr_scale = 0.5, 2.0
        last = convert(source).last
        assert (last.proj.lr_scale, last.bias.lr_scale) == (0.5, 2.0) and not hasattr(last.query, "lr_scale")

    def test_of_a_gain_are_refused(self) -> None:
        """Standardisation ends with the conversion, and its gain is part of the filter from then on."""
        source = nn.Sequential(nn.Conv2d(3, 4, 3), ScaledStdConv2d(4, 4, 3))
        source[1].gain.lr_scale = 0.5
        with pytest.raises(UnsupportedLayerError, match=r"^1: its gain has attributes, and what takes its"):
            convert(source)

    def test_of_a_convolution_are_carried(self) -> None:
        source = PlainNet()
        source.last.layer_id = 7
        source.last.before = [source.down2]
        converted = convert(source)
        assert isinstance(converted.last, GPSA2d) and converted.last.layer_id == 7
        assert converted.last.before == [converted.down2], "references lead into the copy"
        assert not hasattr(converted.depthwise, "layer_id")

    @pytest.mark.parametrize("name", ["scale", "eps", "gain_init", "same_pad", "pad_input_size"])
    def test_of_timms_convolutions_are_carried_where_they_are_none_of_timms(self, name: str) -> None:
        """As a gain that a convolution is multiplied by (equalised learning rates); timm's are in the filter."""
        source = PlainNet()
        setattr(source.last, name, 2.5)
        assert getattr(convert(source).last, name) == 2.5
        timms = nn.Sequential(nn.Conv2d(3, 4, 3), ScaledStdConv2d(4, 4, 3))
        last = convert(timms, target="1")[1]
        assert isinstance(last, GPSA2d) and not hasattr(last, name)

    def test_that_a_gpsa_layer_has_itself_are_refused(self) -> None:
        source = PlainNet()
        source.last.heads = 4
        with pytest.raises(UnsupportedLayerError, match=r"^last: its attribute 'heads' is one that GPSA2d has itself"):
            convert(source)

    @pytest.mark.parametrize("name", ["_conv_forward", "forward"])
    def test_that_replace_a_method_leave_the_convolution_out(self, name: str) -> None:
        source = PlainNet()
        whole = getattr(source.last, name)
        setattr(source.last, name, lambda *args: 2 * whole(*args))
        model, report = tcnn.convert(source, input_size=SIZE)
        assert [(s.name, s.reason) for s in report.skipped] == [("last", f"its {name} was replaced on the instance")]
        x = image(SIZE)
        with torch.no_grad():
            assert relative_error(source(x), model(x)) < 1e-5


@pytest.mark.parametrize("frozen", ["weight", "bias", "neither", "both"])
def test_what_is_frozen_stays_frozen_parameter_by_parameter(frozen: str) -> None:
    """The filter and what attention adds follow the weight, the bias follows the bias; folding leads back."""
    source = PlainNet()
    for name in ("weight", "bias"):
        getattr(source.last, name).requires_grad_(frozen not in (name, "both"))
    converted = convert(source)
    wants = {name: parameter.requires_grad for name, parameter in converted.last.named_parameters()}
    assert wants.pop("bias") == source.last.bias.requires_grad
    assert set(wants.values()) == {source.last.weight.requires_grad}
    cnn, _ = tcnn.fold(converted, source=source, config=VerificationConfig(input_size=SIZE))
    for name, parameter in source.named_parameters():
        assert cnn.get_parameter(name).requires_grad == parameter.requires_grad, name
    with torch.no_grad():
        converted.last.gating_param[3] = 0.01
    part = tcnn.fold(converted, source=source, config=VerificationConfig(input_size=SIZE)).model.last
    assert {"weight", "bias", "query"} <= dict(part.named_parameters()).keys()
    for name, parameter in part.named_parameters():
        assert parameter.requires_grad == getattr(source.last, "bias" if name == "bias" else "weight").requires_grad


def test_what_a_list_holds_of_a_filter_is_refused() -> None:
    """No parameter of a layer, so only copying the model finds it."""
    source = PlainNet()
    source.regularised = [source.last.weight]
    with pytest.raises(UnsupportedLayerError, match=r"^last: something else in the model holds its weight") as caught:
        convert(source)
    assert "\n" not in str(caught.value)


def test_what_a_list_holds_of_a_layer_leads_to_its_replacement() -> None:
    source = PlainNet()
    source.watched = [source.last, source.last.bias]
    converted = convert(source)
    assert converted.watched[0] is converted.last
    assert converted.watched[1] is converted.last.bias
