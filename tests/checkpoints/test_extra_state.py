"""Extra states of modules (`get_extra_state`): what is plain is kept in files, as exactly as tensors are, and what no
file holds is refused in words that are true of it."""

import ast
import json
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

import tcnn
from tcnn.checkpoints import checkpoint
from tcnn.errors import CheckpointError, RequestError
from tcnn.state import is_plain
from tcnn.training.baseline import baseline_start
from tcnn.training.preparing.prepare import prepare
from tcnn.training.recipe.optim import create_optimizer
from tcnn.training.runs.resume import Position, read_point, restore, save_point
from tcnn.workflows.pipeline import convert_to_file
from tcnn.zoo.own_network import network_named
from tcnn.zoo.sources import create_source


class Head(nn.Linear):
    """It knows the names of its classes."""

    labels: Any = ()

    def get_extra_state(self) -> Any:
        return self.labels

    def set_extra_state(self, state: Any) -> None:
        self.labels = state


def net(labels: Any = ()) -> nn.Module:
    pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    layers = (nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, stride=2, padding=1), pool, Head(4, 2))
    made = nn.Sequential(OrderedDict(zip(("a", "b", "pool", "head"), layers, strict=True))).eval()
    made.head.labels = labels
    return made


def object_in_it() -> nn.Module:
    return net({"labels": object()})


def converted(labels: Any) -> nn.Module:
    return tcnn.convert(net(labels), target="b", input_size=(16, 16)).model


PLAIN = [None, ("cat", "dog"), {"labels": ["cat", "é"], 3: (1.5, True)}, b"\0", {1, 2}, torch.arange(3)]


@pytest.mark.parametrize("labels", PLAIN, ids=range(len(PLAIN)))
def test_a_file_keeps_what_is_plain(labels: Any, tmp_path: Path) -> None:
    file = tcnn.save(converted(labels), tmp_path / "m.safetensors")
    for source in (net(), converted("others")):
        found = tcnn.load(file, source=source).get_submodule("head").labels
        assert type(found) is type(labels)
        assert torch.equal(found, labels) if isinstance(labels, torch.Tensor) else found == labels
    with safe_open(file, framework="pt") as opened:
        told = json.loads(opened.metadata().get("extra_state", "{}"))
    if isinstance(labels, torch.Tensor):
        assert not told
    else:
        assert {name: ast.literal_eval(text) for name, text in told.items()} == {"head._extra_state": labels}


@pytest.mark.parametrize(
    "labels", [{"a": torch.ones(2)}, [object()], float("nan"), torch.float32, Path()], ids=range(5)
)
def test_what_else_there_is_is_refused(labels: Any, tmp_path: Path) -> None:
    assert not is_plain(labels)
    with pytest.raises(RequestError, match=r"plain values .* to save, found head\._extra_state, of type \w+, with"):
        tcnn.save(converted(labels), tmp_path / "m.safetensors")


def test_a_command_refuses_before_it_converts(tmp_path: Path) -> None:
    said: list[str] = []
    with network_named(f"{__name__}:object_in_it"), pytest.raises(RequestError, match=r"found head\._extra_state"):
        convert_to_file(f"{__name__}:object_in_it", tmp_path / "m.safetensors", progress=said.append)
    assert said == ["building the source"]


@pytest.mark.parametrize("text", ["3", '{"head._extra_state": "__import__(\'os\')"}', '{"head._extra_state": 3}'])
def test_damaged_ones_are_refused(text: str, tmp_path: Path) -> None:
    tensors, metadata = checkpoint.contents(converted(("cat", "dog")))
    metadata |= {"extra_state": text}
    metadata["digest"] = checkpoint.digest(tensors, metadata)
    save_file(tensors, tmp_path / "m.safetensors", metadata)
    with pytest.raises(CheckpointError, match="extra states are damaged; copy or download it again"):
        tcnn.load(tmp_path / "m.safetensors", source=net())


def test_a_resume_point_keeps_them(tmp_path: Path) -> None:
    model, average, scaler = net(("cat", "dog")), net("average"), torch.amp.GradScaler(enabled=False)
    optimizer = create_optimizer(model, tcnn.FinetuneConfig())
    point = read_point(save_point(tmp_path, Position(), model, optimizer, average, {}, 1))
    model.head.labels = average.head.labels = None
    restore(point, model, optimizer, average, scaler)
    assert (model.head.labels, average.head.labels) == (("cat", "dog"), "average")


def test_weights_of_ones_own_keep_them(tmp_path: Path) -> None:
    torch.save({"state_dict": nn.ModuleDict({"module": net(("cat", "dog"))}).state_dict()}, tmp_path / "w.pth")
    with network_named(f"{__name__}:net"):
        model: Any = create_source(f"{__name__}:net", weights=tmp_path / "w.pth")
    assert model.head.labels == ("cat", "dog")


def test_a_cnn_beside_a_t_cnn_starts_with_the_same_tensors() -> None:
    start = baseline_start(net(("cat", "dog")), tcnn.FinetuneConfig(size=(16, 16)), ["cat", "dog"])
    assert start.model.get_submodule("head").labels == ("cat", "dog")


def test_an_average_of_them_is_refused_before_the_first_step() -> None:
    with pytest.raises(
        RequestError, match=r"^ema: .* to average, found head\._extra_state, the extra state of a module"
    ):
        prepare(net("cat"), tcnn.FinetuneConfig(size=(16, 16), ema=0.9), ["cat", "dog"])
    average = prepare(net(torch.ones(2)), tcnn.FinetuneConfig(size=(16, 16), ema=0.9), ["cat", "dog"])
    assert torch.equal(average.model.get_submodule("head").labels, torch.ones(2))


@pytest.mark.parametrize("verb", [tcnn.fold, tcnn.fuse], ids=["folded", "fused"])
def test_another_form_of_the_model_has_them(verb: Callable[..., Any]) -> None:
    model = converted(("cat", "dog"))
    made = verb(model, source=net()).model if verb is tcnn.fold else verb(model)
    assert made.get_submodule("head").labels == ("cat", "dog")
