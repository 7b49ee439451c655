"""Models and calls under `torch.inference_mode`, whose tensors can be neither trained nor changed outside of it."""

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import timm
import tiny_runs
import torch
from nets import seeded_model
from torch import nn

import tcnn
from tcnn.errors import RequestError

SIZE = (64, 64)
Make = Callable[[nn.Module, Path], nn.Module]


def loaded(source: nn.Module, folder: Path) -> nn.Module:
    return tcnn.load(tcnn.save(tcnn.convert(source).model, folder / "t.safetensors"))


MADE: dict[str, Make] = {
    "convert": lambda source, folder: tcnn.convert(source).model,
    "without_stride": lambda source, folder: tcnn.without_stride(source),
    "load": loaded,
    "fold": lambda source, folder: tcnn.fold(tcnn.convert(source).model).model,
    "timm": lambda source, folder: timm.create_model("t_test_resnet", num_classes=3),
}


@pytest.fixture(scope="module")
def source() -> nn.Module:
    return seeded_model("test_resnet", num_classes=3).eval()


def tensors(model: nn.Module) -> Iterator[torch.Tensor]:
    yield from model.parameters()
    yield from model.buffers()


@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("within", ["the call", "the call and what it is given"])
def test_what_is_made_within_it_can_be_trained(source: nn.Module, tmp_path: Path, made: str, within: str) -> None:
    """It was of tensors that PyTorch refuses to train, and to verify, with errors of its own."""
    with torch.inference_mode():
        given = source if within == "the call" else copy.deepcopy(source)
        model = MADE[made](given, tmp_path)
    assert not [tensor for tensor in tensors(model) if tensor.is_inference()]
    model.train()(torch.randn(2, 3, *SIZE)).sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()


def test_it_is_verified_and_annealed(source: nn.Module) -> None:
    with torch.inference_mode():
        model = tcnn.convert(source).model
    assert tcnn.verify(source, model, float64=False).passed
    tcnn.anneal(model, 3)
    with torch.inference_mode():
        assert tcnn.verify(source, model, float64=False).passed


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_a_training_has_its_gradients(mode: Callable[[], Any], tmp_path: Path) -> None:
    data = tiny_runs.colours(tmp_path / "data")
    with mode():
        model = tiny_runs.TwoConvs()
        result = tiny_runs.run(model, data, tmp_path / "run", epochs=1)
    assert result.updates == 3


def test_what_cannot_be_changed_is_refused_in_one_line(source: nn.Module, tmp_path: Path) -> None:
    with torch.inference_mode():
        model, vit = copy.deepcopy(tcnn.convert(source).model), timm.create_model("test_vit")
        tcnn.initialise(vit)
    for call, name in (
        (lambda: tcnn.anneal(model, 3), "ResNet: cannot anneal it, since conv1.0.weight was"),
        (lambda: tcnn.verify(source, model), "ResNet: cannot verify it, since conv1.0.weight was"),
        (lambda: tcnn.export(model, tmp_path / "t.pt2"), "ResNet: cannot export it, since conv1.0.weight was"),
        (lambda: tcnn.initialise(vit), "VisionTransformer: cannot initialise it, since cls_token was"),
    ):  # fmt: skip
        with pytest.raises(RequestError, match=rf"^{name} made under torch.inference_mode; make the model outside, or"):
            call()
    tcnn.anneal(copy.deepcopy(model), 3)
