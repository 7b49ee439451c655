"""Cordonnier's network inspected: every map of every layer is what the layer itself applies, and every head is told."""

import pytest
import torch
from torch import Tensor, nn

from tcnn.analysis.attention import encode
from tcnn.analysis.inspect import inspect
from tcnn.analysis.measures import non_locality
from tcnn.config import PositionKind
from tcnn.layers.self_attention import SelfAttention2d
from tcnn.networks.attentive import AttentiveNet

KINDS: list[tuple[PositionKind, bool]] = [
    ("isotropic", False), ("quadratic", False), ("relative", False), ("relative", True),
]  # fmt: skip


def network(position: PositionKind, content: bool) -> nn.Module:
    torch.manual_seed(0)
    sizes = {"depth": 2, "heads": 3, "embed_dim": 8, "mlp_dim": 8}
    return AttentiveNet(num_classes=4, position=position, content=content, **sizes).eval().double()  # type: ignore[arg-type]


@pytest.mark.parametrize(("position", "content"), KINDS)
@torch.no_grad()
def test_maps_are_those_that_are_applied(position: PositionKind, content: bool) -> None:
    model, images = network(position, content), torch.randn(2, 3, 12, 16, dtype=torch.float64)
    inputs: list[Tensor] = []
    layers = [module for module in model.modules() if isinstance(module, SelfAttention2d)]
    for layer in layers:
        layer.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    encoded = encode(model, images)
    for query in ((0.0, 0.0), (0.4, 0.7), (1.0, 1.0)):
        for at, layer, x in zip(encoded.at(query), layers, inputs, strict=True):
            assert at.size == (6, 8)
            maps = layer.attention(x).expand(2, 3, 48, 48)[:, :, at.query[0] * 8 + at.query[1]]
            assert torch.allclose(at.combined.flatten(-2), maps, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(("position", "content"), KINDS)
@torch.no_grad()
def test_measures_of_every_head(position: PositionKind, content: bool) -> None:
    model, images = network(position, content), torch.randn(2, 3, 12, 16, dtype=torch.float64)
    found = inspect(model, images, shown=0).layers[0]
    assert (found.kind, found.map, len(found.heads)) == ("cordonnier", (6, 8), 3)
    layer = next(module for module in model.modules() if isinstance(module, SelfAttention2d))
    inputs: list[Tensor] = []
    layer.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    model(images)
    grid = torch.cartesian_prod(torch.arange(6.0), torch.arange(8.0)).double()
    far = non_locality(layer.attention(inputs[0]), torch.cdist(grid, grid)).mean(-1)
    for head, expected in zip(found.heads, far if far.dim() == 1 else far.mean(0), strict=True):
        assert head.non_locality.total == pytest.approx(expected.item(), rel=1e-12)
        assert (head.gate is None) == content
        assert (head.centre is None) == (position == "relative" and content)
