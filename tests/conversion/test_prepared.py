"""A model with layers for inference only is not converted, verified, folded or trained: one line says what to take."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from nets import PlainNet, image, relative_error
from torch import nn

import tcnn
from tcnn.config import VerificationConfig
from tcnn.errors import RequestError
from tcnn.layers.folded import FoldedGPSA2d
from tcnn.models.checks import PREPARED, refuse_prepared

SIZE = (20, 28)
CONFIG = VerificationConfig(input_size=SIZE)


@pytest.fixture(scope="module")
def source() -> nn.Module:
    torch.manual_seed(0)
    return PlainNet().double().eval()


@pytest.fixture(scope="module")
def folded(source: nn.Module) -> nn.Module:
    """A head of `last` is not a tap any more, so this layer is part attention."""
    model, _ = tcnn.convert(source, target="last", input_size=SIZE)
    with torch.no_grad():
        model.last.gating_param[3] = 0.01
    found, report = tcnn.fold(model, source=source, config=CONFIG)
    assert not report.complete and isinstance(found.last, FoldedGPSA2d)
    return found


@pytest.mark.parametrize(
    ("verb", "call"),
    [
        ("convert", lambda source, model: tcnn.convert(model, input_size=SIZE)),
        ("convert", lambda source, model: tcnn.convert(model, target="mid", input_size=SIZE)),
        ("verify", lambda source, model: tcnn.verify(source, model, input_size=SIZE)),
        ("fold", lambda source, model: tcnn.fold(model, source=source)),
        ("anneal", lambda source, model: tcnn.anneal(model, 10)),
        ("train", lambda source, model: tcnn.parameter_groups(model, lr=1e-3)),
    ],
)
def test_is_refused_in_one_line(
    source: nn.Module, folded: nn.Module, verb: str, call: Callable[[nn.Module, nn.Module], object]
) -> None:
    with pytest.raises(RequestError) as caught:
        call(source, folded)
    expected = f"last: was folded, for inference only; {verb} the model that it was folded from"
    assert str(caught.value) == expected


def test_a_fused_model_is_refused_in_one_line(source: nn.Module, tmp_path: Path) -> None:
    model = tcnn.fuse(tcnn.convert(source, target="last", input_size=SIZE).model)
    for verb, call in {
        "convert": lambda: tcnn.convert(model, target="mid", input_size=SIZE),
        "verify": lambda: tcnn.verify(source, model, input_size=SIZE),
        "fold": lambda: tcnn.fold(model, source=source, config=CONFIG),
        "save": lambda: tcnn.save(model, tmp_path / "a.safetensors"),
        "anneal": lambda: tcnn.anneal(model, 10),
        "train": lambda: tcnn.parameter_groups(model, lr=1e-3),
        "inspect": lambda: tcnn.inspect(model, image(SIZE, double=True)),
    }.items():
        with pytest.raises(RequestError) as caught:
            call()
        assert str(caught.value) == f"last: was fused, for inference only; {verb} the model that it was fused from"
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_is_its_cnn_again_has_no_temperature_but_parameters(source: nn.Module) -> None:
    cnn, report = tcnn.fold(tcnn.convert(source, target="last", input_size=SIZE).model, source=source, config=CONFIG)
    assert report.complete
    with pytest.raises(RequestError, match=r"^anneal: PlainNet has no GPSA layer, so no τ .*; .* it was folded from,"):
        tcnn.anneal(cnn, 10)
    groups = tcnn.parameter_groups(cnn, lr=1e-3)
    assert {id(p) for group in groups for p in group["params"]} == {id(p) for p in cnn.parameters()}


def test_a_folded_model_is_saved_and_other_kinds_are_not(source: nn.Module, folded: nn.Module, tmp_path: Path) -> None:
    tcnn.save(folded, tmp_path / "a.safetensors")
    again = tcnn.load(tmp_path / "a.safetensors", source=source)
    x = image(SIZE, double=True)
    with torch.no_grad():
        assert torch.equal(again(x), folded(x))
    assert FoldedGPSA2d in PREPARED
    with pytest.raises(RequestError, match=r"^last: was folded, for inference only; sell the model"):
        refuse_prepared(folded, "sell")


def test_a_model_that_is_its_cnn_again_is_converted_again(source: nn.Module, tmp_path: Path) -> None:
    cnn, report = tcnn.fold(tcnn.convert(source, input_size=SIZE).model, source=source, config=CONFIG)
    assert report.complete
    model, _ = tcnn.convert(cnn, target="mid", input_size=SIZE)
    tcnn.save(model, tmp_path / "a.safetensors")
    x = image(SIZE, double=True)
    with torch.no_grad():
        loaded = tcnn.load(tmp_path / "a.safetensors", source=source)
        assert torch.equal(loaded(x), model(x)) and relative_error(source(x), model(x)) < 1e-12
