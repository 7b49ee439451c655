"""Random values that models are compared on: drawn on the CPU wherever tensors are made by default, of any shape, and
never written to a model that cannot be given back what it had."""

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from nets import image, relative_error
from torch import Tensor, nn

import tcnn
from tcnn.config import VerificationConfig
from tcnn.errors import RequestError

SIZE = (16, 12)
IMAGES = image(SIZE)


class Net(nn.Module):
    """Its normalisation, a scale of zeros and parameters without an element are what `randomise` looks at."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.conv = nn.Conv2d(8, 8, 3, stride=2, padding=1)
        self.scale = nn.Parameter(torch.zeros(8, 1, 1))
        self.prompts = nn.Parameter(torch.empty(0, 8))
        self.register_buffer("kept", torch.empty(0))
        self.fc = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.stem(x)).relu()
        y = (self.conv(x) * self.scale).mean((2, 3))
        return self.fc(torch.cat((y[:, None], self.prompts.expand(len(y), 0, 8)), 1).sum(1))


def made() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    source = Net().eval()
    model = tcnn.convert(source, target="conv", input_size=SIZE).model
    with torch.no_grad():
        model.conv.gating_param[4] = 0.01  # one head attends
    return source, model


def test_parameters_without_an_element_stay_as_they_are() -> None:
    source, model = made()
    before = copy.deepcopy(source.state_dict())
    report = tcnn.verify(source, tcnn.convert(source, target="conv", input_size=SIZE).model, randomise=True)
    assert report.passed and report.blind is None and report.drift.logits.max_abs > 0
    assert not tcnn.verify(source, model, randomise=True).passed, "an error is seen through a scale of zeros"
    assert all(torch.equal(value, before[name]) for name, value in source.state_dict().items())


@pytest.mark.parametrize("which", ["source", "both"])
def test_models_of_inference_mode_are_refused_in_one_line(which: str) -> None:
    """What is written to them could not be taken back."""
    with torch.inference_mode():
        source = Net().eval()
    plain = copy.deepcopy(source)
    model = tcnn.convert(plain, target="conv", input_size=SIZE).model
    assert tcnn.verify(source, model).passed, "nothing is written to it"
    said = "cannot randomise it, since [a-z.]+ was made under torch.inference_mode; make the model outside, or take"
    if which == "source":
        with pytest.raises(RequestError, match=said):
            tcnn.verify(source, model, randomise=True)
    else:
        with torch.inference_mode():
            written = copy.deepcopy(model)
        with pytest.raises(RequestError, match=said):
            tcnn.fold(written, source=plain, randomise=True)
    assert tcnn.verify(copy.deepcopy(source), model, randomise=True).passed


CALLS: dict[str, Callable[[nn.Module, nn.Module], object]] = {
    "convert": lambda source, model: tcnn.convert(source, input_size=SIZE, query_key="mimetic", content_heads=1).model,
    "stride": lambda source, model: tcnn.convert(source, target="conv", input_size=SIZE, stride="dilate").model,
    "verify": lambda source, model: tcnn.verify(source, model).drift.logits.relative,
    "randomise": lambda source, model: tcnn.verify(source, model, randomise=True).drift.logits.relative,
    "explain": lambda source, model: str(tcnn.explain(source, model, IMAGES)),
    "fold": lambda source, model: tcnn.fold(model, source=source, config=VerificationConfig(input_size=SIZE)).model,
    "inspect": lambda source, model: [layer.gate for layer in tcnn.inspect(model, IMAGES).layers],
}


@pytest.mark.parametrize("call", CALLS)
def test_the_device_on_which_tensors_are_made_by_default_is_not_asked(call: str, tmp_path: Path) -> None:
    """A GPU, say; the meta device refuses as much."""
    source, model = made()
    expected = CALLS[call](source, model)
    with torch.device("meta"):
        found = CALLS[call](source, model)
    if isinstance(expected, nn.Module) and isinstance(found, nn.Module):
        assert relative_error(expected(image(SIZE)), found(image(SIZE))) == 0
        expected, found = expected.state_dict(), found.state_dict()
        assert all(torch.equal(value, found[name]) for name, value in expected.items())
    else:
        assert found == expected
