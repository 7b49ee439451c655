"""What a public function is given and cannot use is refused in one line that names the argument."""

from pathlib import Path

import pytest
import timm
import torch
from PIL import Image
from torch import nn

import tcnn
from tcnn.config import ConversionConfig, VerificationConfig, build
from tcnn.errors import NoAttentionError, RequestError


@pytest.fixture(scope="module")
def source() -> nn.Module:
    torch.manual_seed(0)
    return timm.create_model("test_resnet", num_classes=3).eval()


@pytest.mark.parametrize("kind", [ConversionConfig, VerificationConfig])
def test_a_seed_that_no_generator_takes(kind: type[VerificationConfig]) -> None:
    assert build(kind, {"seed": 2**63 - 1}).seed == 2**63 - 1
    with pytest.raises(RequestError, match=r"^seed: input should be less than 9223372036854775808, got "):
        build(kind, {"seed": 2**63})


def test_the_largest_seed_draws(source: nn.Module) -> None:
    model = tcnn.convert(source, seed=2**63 - 1).model
    assert tcnn.verify(source, model, randomise=True, seed=2**63 - 1, input_size=(32, 32), float64=False).passed


def test_a_model_without_weights_has_no_attention() -> None:
    with pytest.raises(NoAttentionError, match=r"^Identity has no attention to look at"):
        tcnn.inspect(nn.Identity(), torch.zeros(1, 3, 8, 8))


def test_a_model_without_values_predicts_nothing(source: nn.Module, tmp_path: Path) -> None:
    Image.new("RGB", (32, 32)).save(tmp_path / "a.png")
    with pytest.raises(RequestError, match=r"^ResNet: expected values to predict, found none: .* on the meta device"):
        tcnn.predict(timm.create_model("test_resnet").to("meta"), tmp_path)


@pytest.mark.parametrize("wrong", [None, 3, "yes", torch.zeros(2)])
def test_what_is_neither_true_nor_false(wrong: object, source: nn.Module) -> None:
    model = tcnn.convert(source).model
    for call in (lambda: tcnn.verify(source, model, randomise=wrong), lambda: tcnn.fold(model, randomise=wrong)):  # type: ignore[arg-type]
        with pytest.raises(RequestError, match=r"^randomise: expected True or False, found "):
            call()
