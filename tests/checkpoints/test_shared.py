"""Parameters and buffers that several layers share because somebody tied them: the architecture does not say so."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from nets import PlainNet
from safetensors import safe_open
from torch import Tensor, nn

import tcnn
from tcnn.checkpoints import checkpoint
from tcnn.errors import CheckpointError
from tcnn.models.trace import parameter_count

Lively = Callable[..., nn.Module]


def weights(net: Any) -> None:
    net.layer1[0].conv2.weight = net.layer1[0].conv1.weight


def three_vectors(net: Any) -> None:
    first, second = net.layer1[0].bn1, net.layer1[0].bn2
    second.weight = second.bias = first.bias


def whole_layer(net: Any) -> None:
    """Statistics and the counter of batches as well."""
    net.layer1[0].bn2 = net.layer1[0].bn1


def statistics(net: Any) -> None:
    net.layer1[0].bn2.running_var = net.layer1[0].bn1.running_var


TIES: dict[Callable[[Any], None], list[list[str]]] = {
    weights: [["conv1.weight", "conv2.weight"]],
    three_vectors: [["bn1.bias", "bn2.weight", "bn2.bias"]],
    whole_layer: [[f"bn1.{key}", f"bn2.{key}"] for key in
                  ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")],
    statistics: [["bn1.running_var", "bn2.running_var"]],
}  # fmt: skip


def recorded(file: Path) -> Any:
    with safe_open(file, "pt") as handle:
        return json.loads(handle.metadata().get("shared_tensors", "[]"))


@torch.enable_grad()
def stepped(model: nn.Module) -> nn.Module:
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for number in range(2):
        optimizer.zero_grad()
        images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(number))
        model(images).square().mean().backward()
        optimizer.step()
    return model.eval()


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("tie", TIES, ids=lambda tie: tie.__name__)
def test_what_was_tied_trains_alike_after_a_file(
    when: str, tie: Callable[[Any], None], lively: Lively, tmp_path: Path
) -> None:
    """A loaded model had equal tensors, which the first step drew apart."""
    source = lively("test_resnet", num_classes=3)
    if when == "before":
        tie(source)
    model = tcnn.convert(source, input_size=32).model
    if when == "after":
        tie(model)
    file = tcnn.save(model, tmp_path / "m.safetensors")
    assert recorded(file) == [[f"layer1.0.{name}" for name in group] for group in TIES[tie]]
    loaded = tcnn.load(file)
    assert parameter_count(loaded) == parameter_count(model)
    assert recorded(tcnn.save(loaded, tmp_path / "again.safetensors")) == recorded(file)
    image: Tensor = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(loaded(image), model.eval()(image))
        assert torch.equal(stepped(loaded)(image), stepped(model)(image))


def test_nothing_is_recorded_of_what_stands_apart(lively: Lively, tmp_path: Path) -> None:
    file = tcnn.save(tcnn.convert(lively("test_resnet"), input_size=32).model, tmp_path / "m.safetensors")
    with safe_open(file, "pt") as handle:
        assert "shared_tensors" not in handle.metadata()


def test_a_source_that_does_not_tie_is_tied_and_its_lists_with_it(tmp_path: Path) -> None:
    """What has another architecture that ties less is tied beyond it: one of the names may be tied already."""

    def network(*names: str) -> Any:
        net: Any = PlainNet()
        for name in names:
            net.get_submodule(name).bias = net.last.bias
        net.decayed = [net.last.bias, net.depthwise.bias, net.point.bias]
        return net.eval()

    model: Any = tcnn.convert(network("depthwise", "point"), target="mid", input_size=16).model
    file = tcnn.save(model, tmp_path / "m.safetensors")
    for names in ((), ("depthwise",), ("point",), ("depthwise", "point")):
        loaded: Any = tcnn.load(file, source=network(*names))
        assert loaded.last.bias is loaded.depthwise.bias is loaded.point.bias
        assert all(one is loaded.last.bias for one in loaded.decayed)
        assert torch.equal(loaded.last.bias, model.last.bias)


@pytest.mark.parametrize("section", ["3", "{", "[3]", "[[]]", '[[["a"], "b"]]'])
def test_names_that_nobody_wrote_so_are_refused(section: str, tmp_path: Path) -> None:
    tensors, metadata = checkpoint.contents(tcnn.convert(PlainNet().eval(), input_size=16).model)
    metadata["shared_tensors"] = section
    metadata["digest"] = checkpoint.digest(tensors, metadata)
    file = checkpoint.write((tensors, metadata), tmp_path / "m.safetensors")
    with pytest.raises(CheckpointError, match=r"m\.safetensors: what it says of shared tensors is damaged"):
        tcnn.load(file, source=PlainNet())
