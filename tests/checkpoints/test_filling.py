"""Tensors that modules hold beside parameters and buffers, or load in a way of their own, have a file's values."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from nets import PlainNet
from torch import Tensor, nn

import tcnn
from tcnn.errors import CheckpointError
from tcnn.models.copying import tensors_in


class Holding(PlainNet):
    """A network whose parameters and buffers are also in a list, in groups as an optimizer has them, and nested."""

    def __init__(self) -> None:
        super().__init__()
        self.decayed = [self.stem.weight, self.head.weight]
        self.groups = [{"params": self.decayed, "lr": 0.1}, {"params": (self.norm.weight, self.norm.bias), "lr": 1.0}]
        self.statistics: Any = {"norm": (self.norm.running_mean, [self.norm.running_var])}
        self._biases = (self.stem.bias, self.last.bias)


class Gain(nn.Module):
    """A module that reads its state in place, as the observers of quantisation do; under names of its own, or not."""

    def __init__(self, key: str) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.rand(16, 16) + 0.5)
        self.key = key

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gain

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        destination[prefix + self.key] = 2 * self.gain.detach().T

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        with torch.no_grad():
            self.gain.copy_(state_dict[prefix + self.key].T).mul_(0.5)


def written(source: nn.Module, path: Path) -> tuple[nn.Module, Path]:
    model = tcnn.convert(source.eval(), input_size=16).model
    return model, tcnn.save(model, path / "m.safetensors")


def double() -> Holding:
    """Built in that dtype: `double()` of a module would make other buffers than those in its lists."""
    torch.set_default_dtype(torch.float64)
    try:
        return Holding()
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.fixture
def image() -> Tensor:
    return torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("source", ["the cnn", "another cnn", "the t-cnn", "in float64"])
def test_what_lists_hold_is_what_the_model_has(source: str, tmp_path: Path) -> None:
    """They held tensors without values, which an optimizer took and trained for nothing."""
    cnn = Holding()
    cnn.norm.running_mean.uniform_()
    model, file = written(cnn, tmp_path)
    given = {"the cnn": cnn, "another cnn": Holding(), "the t-cnn": model, "in float64": double()}[source]
    loaded: Any = tcnn.load(file, source=given)
    assert loaded.decayed[0] is loaded.stem.weight and loaded.decayed[1] is loaded.head.weight
    assert loaded.groups[0]["params"] is loaded.decayed
    assert loaded.groups[1]["params"][0] is loaded.norm.weight
    assert loaded.statistics["norm"][0] is loaded.norm.running_mean
    assert loaded.statistics["norm"][1][0] is loaded.norm.running_var
    assert loaded._biases[0] is loaded.stem.bias and loaded._biases[1] is loaded.last.bias
    held = list(tensors_in([loaded.groups, loaded.statistics]))
    expected = list(tensors_in([model.groups, model.statistics]))
    assert len(held) == 6 and all(map(torch.equal, held, expected))
    assert {tensor.dtype for tensor in (*loaded.parameters(), *held)} == {torch.float32}


@pytest.mark.parametrize("key", ["gain", "packed"])
@torch.no_grad()
def test_a_module_reads_its_state_in_its_own_way(key: str, image: Tensor, tmp_path: Path) -> None:
    """Into tensors without values it copied nothing, and the model failed later."""

    def network() -> nn.Sequential:
        return nn.Sequential(Gain(key), PlainNet(classes=4)).eval()

    model, file = written(network(), tmp_path)
    loaded = tcnn.load(file, source=network())
    assert torch.equal(loaded(image), model(image))


def test_requires_grad_is_that_of_the_source(tmp_path: Path) -> None:
    _, file = written(Holding(), tmp_path)
    frozen = Holding()
    frozen.stem.requires_grad_(False)
    loaded: Any = tcnn.load(file, source=frozen)
    assert [one.requires_grad for one in loaded.decayed] == [False, True]


def listed(net: nn.Module) -> None:
    net.tables = [torch.zeros(3)]  # type: ignore[assignment]


def computed(net: nn.Module) -> None:
    net.register_buffer("table", torch.zeros(3), persistent=False)


@pytest.mark.parametrize(("change", "name"), [(listed, "tables"), (computed, "table")])
def test_what_has_no_values_anywhere_is_named(change: Callable[[nn.Module], None], name: str, tmp_path: Path) -> None:
    """A source on the meta device has the values of the file, and none of what is computed when it is built."""
    _, file = written(PlainNet(), tmp_path)
    with torch.device("meta"):
        without, changed = PlainNet(), PlainNet()
        change(changed)
    assert not any(tensor.is_meta for tensor in tcnn.load(file, source=without).state_dict().values())
    with pytest.raises(CheckpointError, match=rf"m\.safetensors: expected values of {name} in .* meta device"):
        tcnn.load(file, source=changed)
