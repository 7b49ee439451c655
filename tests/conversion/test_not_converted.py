"""Models without the record of a conversion, given to what needs one: a T-CNN may be inside, or GPSA layers alone."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
from nets import PlainNet
from torch import Tensor, nn

import tcnn
from tcnn.conversion.surgery import unconverted
from tcnn.errors import NothingToConvertError, RequestError


class Wrapper(nn.Module):
    """Two models, as somebody puts them together: a step before, and the network itself."""

    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        self.before = nn.Identity()
        self.parts = nn.ModuleDict({"net": inside})

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.parts["net"](self.before(x))
        return y


class ByHand(nn.Module):
    """A network that was built with GPSA layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = tcnn.GPSA2d(3, 8, 3, padding=1)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.layer(x).mean((2, 3)))
        return y


OPERATIONS: dict[str, Callable[[nn.Module, Path], Any]] = {
    "save": lambda model, path: tcnn.save(model, path / "m.safetensors"),
    "fold": lambda model, path: tcnn.fold(model),
    "prune": lambda model, path: tcnn.prune(model),
    "anneal": lambda model, path: tcnn.anneal(model, 10),
}


@pytest.fixture(params=OPERATIONS)
def operation(request: pytest.FixtureRequest) -> Callable[[nn.Module, Path], Any]:
    return OPERATIONS[request.param]


def converted() -> nn.Module:
    return tcnn.convert(PlainNet().eval(), input_size=16).model


def test_the_t_cnn_inside_is_named(operation: Callable[[nn.Module, Path], Any], tmp_path: Path) -> None:
    """The advice was to convert it, which was refused, since it was converted."""
    wrapped = Wrapper(converted())
    told = r"expected a T-CNN, found a Wrapper around one; give that alone, its 'parts\.net'$"
    with pytest.raises(RequestError, match=told) as refused:
        operation(wrapped, tmp_path)
    assert "\n" not in str(refused.value) and not list(tmp_path.iterdir())


def test_layers_without_a_record_are_told(operation: Callable[[nn.Module, Path], Any], tmp_path: Path) -> None:
    told = r"found a ByHand with a GPSA layer, 'layer', but without the record of a conversion; convert its CNN by"
    with pytest.raises(RequestError, match=told):
        operation(ByHand(), tmp_path)


def test_a_cnn_is_to_be_converted(operation: Callable[[nn.Module, Path], Any], tmp_path: Path) -> None:
    for cnn in (PlainNet(), Wrapper(timm.create_model("test_resnet"))):
        with pytest.raises(RequestError, match=rf"{type(cnn).__name__} was not converted by tcnn; call tcnn\.convert"):
            operation(cnn, tmp_path)


def test_to_convert_it_again_is_refused() -> None:
    told = {"PlainNet": "it was converted before", "Wrapper": "it was converted before", "ByHand": "give a CNN"}
    for model in (converted(), Wrapper(converted()), ByHand()):
        name = type(model).__name__
        with pytest.raises(NothingToConvertError, match=f"^{name} has GPSA layers already: {told[name]}$"):
            tcnn.convert(model, input_size=16)


def test_a_cnn_that_is_saved_as_it_is_stays_one(tmp_path: Path) -> None:
    """Its record is of nothing converted."""
    net = unconverted(PlainNet().eval())
    loaded = tcnn.load(tcnn.save(net, tmp_path / "m.safetensors"), source=PlainNet())
    assert loaded.state_dict().keys() == net.state_dict().keys()
