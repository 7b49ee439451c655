"""What models do with their convolutions besides calling them with one input: they call them by the name of the input,
and ask them for their filter's dtype, shape and values, or for what attention has not; what tools put in its place."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from nets import relative_error
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.nn.utils.fusion import fuse_conv_bn_eval

import tcnn
from tcnn.errors import UnsupportedLayerError
from tcnn.layers import GPSA2d
from tcnn.layers.folded import FoldedGPSA2d

ROUNDING = 1e-12
"""Relative, in float64. Measured: 3e-16."""


class Calling(nn.Module):
    """Two convolutions, the second of which is called as `call` says."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8))
        self.conv = nn.Conv2d(8, 6, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.call(self.stem[1](input=self.stem[0](input=x))).mean((2, 3))

    def call(self, x: Tensor) -> Tensor:
        raise NotImplementedError


class ByName(Calling):
    def call(self, x: Tensor) -> Tensor:
        return self.conv(input=x)


class ByDtype(Calling):
    """As vision models of transformers ask their first convolutions."""

    def call(self, x: Tensor) -> Tensor:
        return self.conv(x.to(self.conv.weight.device, self.conv.weight.dtype))[:, : self.conv.weight.shape[0]]


class ByNorm(Calling):
    def call(self, x: Tensor) -> Tensor:
        return self.conv(x) / self.conv.weight.norm()


class BySame(Calling):
    def call(self, x: Tensor) -> Tensor:
        return self.conv(x)[..., : -self.conv.output_padding[0] or None]


IMAGES = torch.randn(2, 3, 16, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("made", [ByName, ByDtype, ByNorm, BySame])
def test_a_model_may_call_and_ask_as_it_likes(made: type[Calling]) -> None:
    source = made().double().eval()
    model, report = tcnn.convert(source, input_size=(16, 12))
    assert [layer.name for layer in report.layers] == ["conv"], "the stem reads the image, by name or not"
    assert tcnn.verify(source, model, randomise=True).passed
    folded = tcnn.fold(model, source=source).model
    for other in (model, tcnn.fuse(model), folded):
        assert relative_error(other(IMAGES), source(IMAGES)) < ROUNDING


def test_the_filter_is_a_view() -> None:
    """So that its gradient is W_out's, and what asks for it costs nothing."""
    source = ByNorm()
    model = tcnn.convert(source, input_size=(16, 12)).model
    assert isinstance(model.conv, GPSA2d)
    assert torch.equal(model.conv.weight, source.conv.weight)
    assert model.conv.weight.data_ptr() == model.conv.proj.data_ptr()
    assert "conv.weight" not in model.state_dict()


WRITES: dict[str, Callable[[GPSA2d], object]] = {
    "batch norm": lambda layer: fuse_conv_bn_eval(layer, nn.BatchNorm2d(6).eval()),  # type: ignore[type-var]
    "pruning": lambda layer: prune.l1_unstructured(layer, "weight", 0.5),
    "weight norm": torch.nn.utils.weight_norm,
    "spectral norm": torch.nn.utils.spectral_norm,
    "a parameter": lambda layer: setattr(layer, "weight", nn.Parameter(torch.zeros(6, 8, 3, 3))),
    "a tensor": lambda layer: setattr(layer, "weight", torch.zeros(6, 8, 3, 3)),
    "a call": lambda layer: torch.func.functional_call(layer, {"weight": torch.zeros(6, 8, 3, 3)}, (IMAGES,)),
}


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    "made", [GPSA2d, lambda *sizes, padding: GPSA2d.from_conv2d(nn.Conv2d(*sizes, padding=padding))]
)
@pytest.mark.parametrize("tool", WRITES)
def test_what_replaces_a_filter_is_told_where_it_is(tool: str, made: Callable[..., GPSA2d]) -> None:
    """And the layer stays as it was: it can be used, copied and pickled."""
    layer = made(8, 6, 3, padding=1).eval()
    x = torch.randn(2, 8, 7, 5)
    expected = layer(x)
    for found in (layer, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        with pytest.raises(UnsupportedLayerError, match=r"^GPSA2d has no parameter weight.*part of `proj`; prune"):
            WRITES[tool](found)
        assert torch.equal(found(x), expected)
    with pytest.raises(KeyError, match=r"^'other'$"):
        layer._parameters["other"]


def norm() -> nn.BatchNorm2d:
    made = nn.BatchNorm2d(6, dtype=torch.float64).eval()
    with torch.no_grad():
        made.weight.uniform_(0.5, 2)
    return made


def test_another_filter_beside_heads_that_attend_is_refused() -> None:
    """Merged into the filter alone, a batch norm left the attention unscaled: outputs were wrong, without a word."""
    source = ByName().double().eval()
    model = tcnn.convert(source, input_size=(16, 12)).model
    with torch.no_grad():
        model.conv.gating_param[:4] = -3
    folded: Any = tcnn.fold(model, source=source).model.eval()
    with pytest.raises(UnsupportedLayerError, match=r"^FoldedGPSA2d: its weight .* some heads only, and 4 more attend"):
        fuse_conv_bn_eval(folded.conv, norm())
    expected = folded(IMAGES)
    again = copy.deepcopy(folded)
    again.load_state_dict({name: tensor.clone() for name, tensor in folded.state_dict().items()}, assign=True)
    assert torch.equal(again(IMAGES), expected)
    prune.remove(prune.identity(again.conv, "weight"), "weight")
    assert torch.equal(again(IMAGES), expected)


def test_a_batch_norm_merges_into_a_folded_layer_without_attention() -> None:
    """Whose W_val stays before its filter."""
    layer, after, x = GPSA2d(8, 6, 3, groups=2, dtype=torch.float64), norm(), torch.randn(2, 8, 7, 5).double()
    with torch.no_grad():
        layer.value.add_(0.1)
    folded = FoldedGPSA2d.from_gpsa2d(layer, ["convolution"] * 9, list(range(9))).eval()
    merged = fuse_conv_bn_eval(folded, after)  # type: ignore[type-var]
    assert relative_error(after(folded(x)), merged(x)) < ROUNDING


def test_a_fused_layer_has_the_filter_that_is_part_of_a_product() -> None:
    model = tcnn.convert(ByDtype(), input_size=(16, 12), temperature=1.0).model.eval()
    with torch.no_grad():
        model.conv.value.mul_(1.5)
    fused = tcnn.fuse(model)
    assert relative_error(fused(IMAGES.float()), model(IMAGES.float())) < 1e-5
    assert fused.conv.weight.shape == (6, 8, 3, 3)
    assert torch.equal(fused.conv.weight, model.conv.weight)


def test_the_channels_of_a_model_without_a_convolution_of_images() -> None:
    """Noise has those of the attention that reads the image."""
    source = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 4, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model = tcnn.convert(source, target="0", input_size=(8, 8)).model
    assert tcnn.fold(model, source=source).report.images == "noise 2×3×8×8"
