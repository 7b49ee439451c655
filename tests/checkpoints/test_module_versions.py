"""Versions of modules, which PyTorch keeps beside the tensors of a state dict: whatever loads one has them, so that a
class that reads states of other versions differently reads this one as what it is."""

import json
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

import tcnn
from tcnn.checkpoints import checkpoint
from tcnn.errors import CheckpointError, WeightsError
from tcnn.state import parts
from tcnn.training.recipe.optim import create_optimizer
from tcnn.training.runs.resume import Position, read_point, restore, save_point
from tcnn.zoo.own_network import network_named
from tcnn.zoo.sources import create_source
from tcnn.zoo.weights import read, write


class Gain(nn.Module):
    """Since version 2 `gain` is the gain itself, before it was its logarithm; there is no version 0."""

    _version = 2

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(2.0))

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, metadata: dict[str, Any], *rest: Any) -> None:
        if not metadata.get("version"):
            raise ValueError("expected version 1 or 2")
        if metadata["version"] < 2:
            state[f"{prefix}gain"] = state[f"{prefix}gain"].exp()
        super()._load_from_state_dict(state, prefix, metadata, *rest)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.gain


class First(Gain):
    """Its class has had one version only."""

    _version = 1

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, metadata: dict[str, Any], *rest: Any) -> None:
        assert metadata["version"] == 1
        nn.Module._load_from_state_dict(self, state, prefix, metadata, *rest)


def net() -> nn.Module:
    layers = (nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, stride=2, padding=1), Gain(), First())
    return nn.Sequential(OrderedDict(zip(("a", "b", "gain", "first"), layers, strict=True))).eval()


@pytest.fixture
def model() -> nn.Module:
    return tcnn.convert(net(), target="b", input_size=(16, 16)).model


def gain_of(model: nn.Module) -> float:
    return model.get_parameter("gain.gain").item()


@pytest.mark.parametrize(
    "again", [lambda model: model, lambda model: tcnn.fold(model, source=net()).model], ids=["whole", "folded"]
)
def test_a_file_keeps_them(again: Callable[[nn.Module], nn.Module], model: nn.Module, tmp_path: Path) -> None:
    file = tcnn.save(again(model), tmp_path / "m.safetensors")
    with safe_open(file, framework="pt") as opened:
        assert json.loads(opened.metadata()["module_versions"]) == {"gain": {"version": 2}}, "1 is not written"
    loaded = tcnn.load(file, source=net())
    assert gain_of(loaded) == 2
    assert gain_of(tcnn.load(tcnn.save(loaded, tmp_path / "n.safetensors"), source=net())) == 2


def test_a_file_of_an_earlier_version_is_read_as_one(model: nn.Module, tmp_path: Path) -> None:
    model.get_submodule("gain")._version = 1
    assert gain_of(tcnn.load(tcnn.save(model, tmp_path / "m.safetensors"), source=net())) == pytest.approx(7.389, 1e-4)


def rewritten(model: nn.Module, path: Path, versions: str | None) -> Path:
    tensors, metadata = checkpoint.contents(model)
    del metadata["module_versions"]
    metadata |= {} if versions is None else {"module_versions": versions}
    save_file(tensors, path, metadata | {"digest": checkpoint.digest(tensors, metadata)})
    return path


def test_a_file_without_any_is_of_those_that_are_installed(model: nn.Module, tmp_path: Path) -> None:
    """As files of 0.2 are."""
    assert gain_of(tcnn.load(rewritten(model, tmp_path / "m.safetensors", None), source=net())) == 2


@pytest.mark.parametrize("versions", ["{", "3", '{"gain": 2}'])
def test_damaged_ones_are_refused(model: nn.Module, tmp_path: Path, versions: str) -> None:
    with pytest.raises(CheckpointError, match=r"m\.safetensors: .*versions of modules .* are damaged"):
        tcnn.load(rewritten(model, tmp_path / "m.safetensors", versions), source=net())


def test_what_a_module_raises_is_told(model: nn.Module, tmp_path: Path) -> None:
    model.get_submodule("gain")._version = 0
    file = tcnn.save(model, tmp_path / "m.safetensors")
    with pytest.raises(CheckpointError, match=r"m\.safetensors: does not fit Sequential: expected version 1 or 2$"):
        tcnn.load(file, source=net())


def test_a_resume_point_keeps_them(tmp_path: Path) -> None:
    model, average, scaler = net(), net(), torch.amp.GradScaler(enabled=False)
    optimizer = create_optimizer(model, tcnn.FinetuneConfig())
    point = read_point(save_point(tmp_path, Position(), model, optimizer, average, {}, 1))
    for one in (model, average):
        one.get_parameter("gain.gain").data.fill_(5)
    restore(point, model, optimizer, average, scaler)
    assert gain_of(model) == gain_of(average) == 2
    restore(point._replace(metadata={}), model, optimizer, average, scaler)
    model.get_submodule("gain")._version = 0
    point = read_point(save_point(tmp_path, Position(), model, optimizer, None, {}, 1))
    with pytest.raises(CheckpointError, match="does not fit Sequential: expected version 1 or 2"):
        restore(point, model, optimizer, None, scaler)


def test_timm_loads_a_directory_as_of_those_that_are_installed(
    lively: Callable[..., nn.Module], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, seen = type(lively()), []

    def note(self: nn.Module, state: dict[str, Any], prefix: str, metadata: dict[str, Any], *rest: Any) -> None:
        seen.append(metadata["version"])
        nn.Module._load_from_state_dict(self, state, prefix, metadata, *rest)

    monkeypatch.setattr(kind, "_version", 2)
    monkeypatch.setattr(kind, "_load_from_state_dict", note)
    place = tcnn.save_directory(tcnn.convert(lively()).model, tmp_path / "hub")
    timm.create_model(f"local-dir:{place}", pretrained=True)
    assert seen == [2]


@pytest.mark.parametrize("prefix", ["", "module."])
@pytest.mark.parametrize("kind", ["pth", "safetensors", "bare"])
def test_weights_of_ones_own_keep_them(kind: str, prefix: str, tmp_path: Path) -> None:
    """A wrapper's names are no other; a file of another program may have no versions."""
    state, file = net(), tmp_path / f"w.{'pth' if kind == 'pth' else 'safetensors'}"
    state.get_submodule("gain").gain.data.fill_(0.5)
    wrapped: nn.Module = nn.ModuleDict({"module": state}) if prefix else state
    if kind == "pth":
        torch.save({"epoch": 3, "state_dict": wrapped.state_dict()}, file)
    elif kind == "safetensors":
        write(file, parts(wrapped.state_dict()), file)
    else:
        save_file(wrapped.state_dict(), file, {"module_versions": "of another program"})
    with network_named(f"{__name__}:net"):
        assert gain_of(create_source(f"{__name__}:net", weights=file)) == 0.5


def test_weights_that_a_module_refuses_are_refused(tmp_path: Path) -> None:
    old, file = net(), tmp_path / "w.pth"
    old.get_submodule("gain")._version = 0
    torch.save(old.state_dict(), file)
    assert read(file).state.versions == {"gain": {"version": 0}}
    with network_named(f"{__name__}:net"), pytest.raises(WeightsError, match="expected version 1 or 2"):
        create_source(f"{__name__}:net", weights=file)


def counted() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), Gain(), nn.Sequential(nn.BatchNorm2d(4)))


@pytest.mark.parametrize("kind", ["pth", "safetensors"])
def test_weights_without_counters_of_batch_norms(kind: str, tmp_path: Path) -> None:
    """As programs before PyTorch 0.4.1 wrote them, or other ones: PyTorch adds them, of whatever else has a version."""
    file, state = tmp_path / f"w.{kind}", {**counted().state_dict(), "2.gain": torch.tensor(0.5)}
    state = {name: value for name, value in state.items() if name != "1.num_batches_tracked"}
    torch.save(state, file) if kind == "pth" else save_file(state, file)
    with network_named(f"{__name__}:counted"):
        model = create_source(f"{__name__}:counted", weights=file)
        assert torch.equal(model.get_submodule("0").weight, state["0.weight"])
        assert model.get_parameter("2.gain").item() == 0.5
        torch.save({**state, "3.0.bias": torch.zeros(5)}, tmp_path / "v.pth")
        with pytest.raises(WeightsError, match=r"3\.0\.bias: expected \(4,\), found \(5,\)"):
            create_source(f"{__name__}:counted", weights=tmp_path / "v.pth")
    for alone in (nn.BatchNorm2d(4), nn.Sequential(nn.BatchNorm2d(4), nn.BatchNorm2d(4))):
        bare = {name: one + 1 for name, one in alone.state_dict().items() if "num_batches" not in name}
        alone.load_state_dict(parts(bare).to_load(alone.state_dict()))
        assert all(torch.equal(alone.state_dict()[name], one) for name, one in bare.items())
