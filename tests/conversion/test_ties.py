"""Filters and biases that several layers share are one parameter after the conversion, too, and in its files."""

from pathlib import Path

import pytest
import torch
from nets import image, relative_error
from timm.layers import StdConv2d
from torch import Tensor, nn

import tcnn
from tcnn.config import ConversionConfig, FinetuneConfig
from tcnn.errors import CheckpointError, NothingToConvertError, RequestError
from tcnn.training.recipe.optim import convert_in_training, create_optimizer

SIZE = (11, 14)


class Net(nn.Module):
    """Three convolutions of one resolution behind a stem, and a head."""

    def __init__(self, kind: type[nn.Conv2d] = nn.Conv2d) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 1)
        self.a = kind(6, 6, 3, padding=1)
        self.b = kind(6, 6, 3, padding=2, dilation=2)
        self.c = kind(6, 6, 3, padding=1)
        self.head = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for layer in (self.a, self.b, self.c):
            x = torch.tanh(layer(x))
        return self.head(x.mean((2, 3)))


def tied(*, bias: bool = False, kind: type[nn.Conv2d] = nn.Conv2d) -> Net:
    """`a` and `b` share their filter; with `bias`, all three their bias with the head."""
    torch.manual_seed(0)
    net = Net(kind).double().eval()
    net.b.weight = net.a.weight
    if bias:
        for layer in (net.a, net.b, net.c):
            layer.bias = net.head.bias
    return net


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("bias", [False, True])
def test_stay_tied(bias: bool) -> None:
    source = tied(bias=bias)
    model, report = tcnn.convert(source, input_size=SIZE)
    assert [layer.name for layer in report.layers] == ["a", "b", "c"]
    assert model.a.proj is model.b.proj is not model.c.proj
    assert model.a.query is not model.b.query, "what attention adds is each layer's own"
    assert (model.a.bias is model.b.bias is model.c.bias is model.head.bias) == bias
    assert model.a.proj is not source.a.weight and model.head.bias is not source.head.bias
    assert report.parameters_before == count(source)
    assert report.parameters_after == count(model)
    expected = {"a": {}, "b": {"proj": "a.proj"}, "c": {}}
    if bias:
        expected = {name: {**own, "bias": "head.bias"} for name, own in expected.items()}
    assert {layer.name: layer.tied for layer in report.layers} == expected
    assert report.layers[1].note is not None and "its proj is a.proj as well" in report.layers[1].note
    x = image(SIZE, batch=2, double=True)
    with torch.no_grad():
        assert relative_error(source(x), model(x)) < 1e-13


def test_gradients_are_those_of_the_tied_network() -> None:
    source = tied(bias=True)
    model, _ = tcnn.convert(source, input_size=SIZE)
    x = image(SIZE, batch=2, double=True)
    for net in (source, model):
        net(x).square().sum().backward()
    found = model.a.proj.grad.unflatten(1, (9, 6)).transpose(1, 2)
    assert relative_error(source.a.weight.grad.flatten(2), found) < 1e-12
    assert relative_error(source.head.bias.grad, model.head.bias.grad) < 1e-12


@pytest.mark.parametrize("architecture", ["tied", "untied"])
def test_come_back_from_a_file(architecture: str, tmp_path: Path) -> None:
    """The file's record ties them, whether or not the architecture that is given does."""
    model, _ = tcnn.convert(tied(bias=True), input_size=SIZE)
    tcnn.save(model, tmp_path / "a.safetensors")
    source = tied(bias=True) if architecture == "tied" else Net().double()
    loaded = tcnn.load(tmp_path / "a.safetensors", source=source)
    assert loaded.a.proj is loaded.b.proj and loaded.c.bias is loaded.head.bias
    assert count(loaded) == count(model) == loaded.conversion_report.parameters_after
    x = image(SIZE, double=True)
    with torch.no_grad():
        assert torch.equal(loaded(x), model(x))


def test_what_was_parted_since_comes_back_parted(tmp_path: Path) -> None:
    model, _ = tcnn.convert(tied(), input_size=SIZE)
    model.b.proj = nn.Parameter(2 * model.b.proj.detach())
    tcnn.save(model, tmp_path / "a.safetensors")
    loaded = tcnn.load(tmp_path / "a.safetensors", source=Net().double())
    assert torch.equal(loaded.b.proj, 2 * loaded.a.proj)


def test_an_architecture_that_ties_what_differs_in_the_file_is_refused_in_one_line(tmp_path: Path) -> None:
    model, _ = tcnn.convert(Net().double().eval(), input_size=SIZE, target="c")
    tcnn.save(model, tmp_path / "a.safetensors")
    with pytest.raises(
        CheckpointError, match=r"a\.weight and b\.weight are one parameter of Net, and differ"
    ) as caught:
        tcnn.load(tmp_path / "a.safetensors", source=tied())
    assert "\n" not in str(caught.value)


def test_a_filter_that_a_layer_outside_uses_as_well_leaves_the_convolution_out() -> None:
    source = tied()
    with pytest.raises(NothingToConvertError, match=r"a: it shares its weight with b\.weight, which stays as it is"):
        tcnn.convert(source, target="a", input_size=SIZE)
    model, report = tcnn.convert(source, target="[ac]", input_size=SIZE)
    assert [layer.name for layer in report.layers] == ["c"]
    assert [skipped.name for skipped in report.skipped] == ["a"]
    assert model.a.weight is model.b.weight


def test_one_that_must_stay_takes_those_along_that_share_with_it() -> None:
    """`a` cannot be converted, so neither can `b`, which shares with it."""
    source = tied()
    source.a.register_forward_hook(lambda *_: None)
    _, report = tcnn.convert(source, input_size=SIZE)
    assert [layer.name for layer in report.layers] == ["c"]
    assert {skipped.name: skipped.reason.split(",")[0] for skipped in report.skipped} == {
        "a": "it has forward hooks",
        "b": "it shares its weight with a.weight",
    }


def test_standardised_filters_are_refused() -> None:
    source = tied(kind=StdConv2d)
    _, report = tcnn.convert(source, input_size=SIZE)
    assert [layer.name for layer in report.layers] == ["c"]
    assert all("standardisation would end" in skipped.reason for skipped in report.skipped)


def test_folding_is_refused_in_one_line() -> None:
    source = tied()
    model, _ = tcnn.convert(source, input_size=SIZE)
    with pytest.raises(RequestError, match=r"^b: its proj is a\.proj as well, and folding would give each its own"):
        tcnn.fold(model, source=source)


def test_a_fused_layer_keeps_what_it_shares() -> None:
    """It computes with copies: a bias that something else in the model holds is still added, at any temperature."""
    source, listed = tied(bias=True), Net().double().eval()
    models = [tcnn.convert(net, input_size=SIZE).model for net in (source, listed)]
    models[1].no_decay = list(models[1].parameters())
    for model in models:
        for temperature in (1 / 46, 0.5):
            for name in ("a", "b", "c"):
                model.get_submodule(name).set_temperature(temperature)  # type: ignore[operator]
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(0.1)
                found, x = tcnn.fuse(model), image(SIZE, double=True)
                assert relative_error(model(x), found(x)) < 1e-12
            assert not [name for name, _ in found.named_parameters() if name[:2] in ("a.", "b.", "c.")]


def test_late_conversion_goes_on_with_what_the_optimizer_knew() -> None:
    source = tied(bias=True).train()
    config = FinetuneConfig(conversion=ConversionConfig(input_size=SIZE), opt="adamw", lr=1e-3)
    optimizer = create_optimizer(source, config)
    x = image(SIZE, batch=2, double=True)
    for _ in range(2):
        optimizer.zero_grad()
        source(x).square().sum().backward()
        optimizer.step()
    model, moved = convert_in_training(source, optimizer, config)
    for net, steps in ((source, optimizer), (model, moved)):
        steps.zero_grad()
        net(x).square().sum().backward()
        steps.step()
    assert relative_error(source.a.weight, model.a.filter.detach()) < 1e-12
    assert relative_error(source.head.bias, model.head.bias) < 1e-12
