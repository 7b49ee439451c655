"""Functions that a model holds refer to the copy in the copy: lambdas over `self`, hooks over a layer, closures."""

import copy
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from nets import image, relative_error
from torch import Tensor, nn

import tcnn
from tcnn.errors import UnsupportedLayerError
from tcnn.models.copying import copied

SIZE = (16, 12)
Way = Callable[["Net"], Any]


class Net(nn.Module):
    """Adds to the output of `c2` what the function `skip` makes of it, which calls `c3`."""

    def __init__(self, way: Way) -> None:
        super().__init__()
        self.c1 = nn.Conv2d(3, 8, 3, padding=1)
        self.c2 = nn.Conv2d(8, 8, 3, stride=2, padding=1)
        self.c3 = nn.Conv2d(8, 8, 3, padding=1)
        self.between = nn.Identity()
        self.fc = nn.Linear(8, 4)
        self.skip = way(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.between(self.c2(self.c1(x).relu()))
        skip = self.skip
        while not callable(skip):
            skip = skip["it"] if isinstance(skip, dict) else skip[0]
        return self.fc((x + skip(x)).mean((2, 3)))

    def third(self, x: Tensor) -> Tensor:
        return self.c3(x)


def over_a_layer(net: Net) -> Any:
    layer = net.c3
    return lambda x: 2 * layer(x)


def over_a_function(net: Net) -> Any:
    def inner(x: Tensor) -> Tensor:
        return net.c3(x)

    return lambda x: 2 * inner(x)


def over_a_method(net: Net) -> Any:
    run = net.third
    return lambda x: 2 * run(x)


def over_a_list(net: Net) -> Any:
    layers = [net.c1, (net.c3, {"none": None})]
    return lambda x: 2 * layers[1][0](x)


def over_itself(net: Net) -> Any:
    def again(x: Tensor, times: int = 2) -> Tensor:
        return again(x, times - 1) if times else net.c3(x)

    return again


def sharing_a_variable(net: Net) -> Any:
    layer: nn.Module | None = None

    def choose() -> None:
        nonlocal layer
        layer = net.c3

    def run(x: Tensor) -> Tensor:
        choose()
        assert layer is not None
        return layer(x)

    return run


def as_a_hook(net: Net) -> Any:
    net.between.register_forward_hook(lambda module, args, out: out + net.c3(out))
    return torch.zeros_like


WAYS: dict[str, Way] = {
    "self": lambda net: lambda x: 2 * net.c3(x),
    "a layer": over_a_layer,
    "a default": lambda net: lambda x, layer=net.c3: layer(x),
    "a default by name": lambda net: lambda x, *, layer=net.c3: layer(x),
    "a function": over_a_function,
    "a method": over_a_method,
    "a list": over_a_list,
    "itself": over_itself,
    "a variable": sharing_a_variable,
    "in a partial": lambda net: functools.partial(lambda scale, x: scale * net.c3(x), 1.0),
    "in a list": lambda net: [lambda x: 2 * net.c3(x)],
    "in tuples and dicts": lambda net: ({"it": ((lambda x: 2 * net.c3(x)), 1)},),
    "with a cache": lambda net: functools.lru_cache(maxsize=0)(lambda x: 2 * net.c3(x)),
    "a hook": as_a_hook,
}


@pytest.mark.parametrize("way", WAYS)
def test_a_converted_model_runs_its_own_layers(way: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    source, x = Net(WAYS[way]).eval(), image(SIZE)
    expected = source(x)
    model, report = tcnn.convert(source, input_size=SIZE)
    assert [layer.name for layer in report.layers] == ["c2", "c3"]
    assert tcnn.verify(source, model).passed
    model(x).sum().backward()
    assert model.c3.proj.grad is not None and source.c3.weight.grad is None
    with torch.no_grad():
        model.c3.proj.mul_(3)
        changed = model(x)
        assert relative_error(changed, expected) > 1e-3
        assert relative_error(tcnn.fuse(model)(x), changed) < 1e-5
        tcnn.save(model, tmp_path / "a.safetensors")
        torch.manual_seed(1)
        loaded = tcnn.load(tmp_path / "a.safetensors", source=Net(WAYS[way]))
        assert torch.equal(loaded(x), changed)
    assert torch.equal(source(x), expected)


class Twice(nn.Module):
    """Runs its convolution, and then by a closure over the convolution's method."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)
        run = self.conv.forward
        self.again = lambda x: 2 * run(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.again(self.conv(x)).mean((2, 3))


@torch.no_grad()
def test_a_method_of_a_layer_is_that_of_the_layer_in_its_place() -> None:
    source, x = Twice().double().eval(), image(SIZE, double=True)
    model = tcnn.convert(source, target="conv", input_size=SIZE).model
    assert tcnn.verify(source, model).passed
    model.conv.proj.mul_(1.5)
    for one in (model, tcnn.fuse(model), tcnn.fold(model, source=source).model):
        assert relative_error(one(x), model(x)) < 1e-12 < 1e-2 < relative_error(one(x), source(x))


def test_what_is_outside_of_the_model_is_shared() -> None:
    seen: list[float] = []
    count = 0

    def look(module: nn.Module, args: object, out: Tensor) -> None:
        nonlocal count
        count += 1
        seen.append(out.mean().item() + net.fc.bias[0].item())

    net = Net(WAYS["self"])
    net.outside = lambda x: seen  # type: ignore[assignment]
    net.features = []  # type: ignore[assignment]
    net.fc.register_forward_hook(look)
    net.fc.weight.register_hook(net.features.append)
    made = tcnn.convert(net, input_size=SIZE).model
    before = count, len(seen)
    made(image(SIZE)).sum().backward()
    assert (count, len(seen)) == (before[0] + 1, before[1] + 1)
    assert len(made.features) == 1 and net.features == []
    assert made.outside is net.outside and made.skip is not net.skip


def test_what_a_function_is_called_stays() -> None:
    def named(x: Tensor, *, scale: float = 2.0) -> Tensor:
        """Doc."""
        return scale * net.c3(x)

    named.note = "own"  # type: ignore[attr-defined]
    net = Net(lambda net: named)
    found = copied(net).skip
    assert found is not named
    for key in ("__name__", "__qualname__", "__doc__", "__module__", "__annotations__", "__kwdefaults__", "note"):
        assert getattr(found, key) == getattr(named, key)


def test_a_filter_within_a_function_is_refused_as_in_a_list() -> None:
    """Its layout is another one in the layer that takes its place."""
    net = Net(WAYS["self"])
    filter = net.c2.weight
    net.decay = lambda: filter.square().sum()  # type: ignore[assignment]
    with pytest.raises(UnsupportedLayerError, match=r"^c2: something else in the model holds its weight"):
        tcnn.convert(net, input_size=SIZE)
    bias = net.c2.bias
    net.decay = lambda: bias.square().sum()  # type: ignore[assignment]
    model = tcnn.convert(net, input_size=SIZE).model
    model.decay().backward()
    assert model.c2.bias.grad is not None and net.c2.bias.grad is None


def test_layers_that_the_converted_model_does_not_call_are_not_verified() -> None:
    """As where somebody gives it a function over the source, whose convolution runs instead."""
    source = Net(WAYS["self"])
    model = tcnn.convert(source, input_size=SIZE).model
    other = copy.copy(source)
    model.skip = lambda x: 2 * other.c3(x)  # type: ignore[assignment]
    report = tcnn.verify(source, model, float64=False)
    assert not report.passed and report.passes[0].logits.worst < 1e-6
    said = "never ran in the converted model, which calls something else in its place: c3"
    assert report.passes[0].note == said and str(report.failure()).endswith(said)
