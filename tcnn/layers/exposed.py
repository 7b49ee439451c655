"""Attention that can be found by name, as timm's can: its `AttentionExtract`, torchvision's `create_feature_extractor`.

Where attention is not fused (`timm.layers.set_fused_attn(False)` before a model is built, `layer.fused_attn = False`
afterwards) a layer computes its maps one by one, and they pass two points of its submodule `attn`:

    attn.softmax      a node of the graph: content attention softmax_k(Q Kᵀ/√d)
    attn.attn_drop    a module: what the layer applies, (1 − gate)·content + gate·positional; also a node

Shapes: B batch, C channels, h×w map, K heads, M queries, N keys, all pixels of the padded map.
"""

import torch
from torch import Tensor, nn

from tcnn.layers import shards
from tcnn.layers.backends import reference
from tcnn.layers.backends.reference import AttentionInputs
from tcnn.layers.terms import attention, positions
from tcnn.layers.terms.parameters import Parameters
from tcnn.layers.terms.positions import Factors, Geometry
from tcnn.layers.terms.scopes import Scope

for _name in ("softmax", "gated", "applied"):
    torch.fx.wrap(_name)  # nodes of the graph under these names: what is chosen in them is not traced


class AttentionPoint(nn.Module):
    """The submodule `attn` of a layer: its attention weights, (B, K, M, N), pass its points."""

    def __init__(self) -> None:
        super().__init__()
        self.attn_drop: nn.Module = nn.Identity()

    def forward(self, x: Tensor, parameters: Parameters, geometry: Geometry, scope: Scope) -> Tensor:
        weights: Tensor = self.attn_drop(gated(softmax(x, parameters, geometry, scope), x, parameters, geometry))
        return weights


def softmax(x: Tensor, parameters: Parameters, geometry: Geometry, scope: Scope) -> Tensor:
    """Content attention of every head, (B, K, M, N), of (B, C_in, h, w) or (C_in, h, w)."""
    if x.dim() == 3:
        return softmax(x[None], parameters, geometry, scope)
    if shards.is_sharded(x):
        return shards.on_shards(softmax, x, parameters, geometry, scope)
    factors = _factors(x, parameters, geometry)
    return reference.maps(AttentionInputs(x, geometry, scope, factors, parameters)).content


def gated(content: Tensor, x: Tensor, parameters: Parameters, geometry: Geometry) -> Tensor:
    """The weights that the layer applies: content attention and positional attention, mixed by the gate."""
    if x.dim() == 3:
        return gated(content, x[None], parameters, geometry)
    if shards.is_sharded(x):
        return shards.on_shards(gated, x, parameters, geometry, beside=content)
    factors = _factors(x, parameters, geometry)
    return attention.mixed(content, attention.positional_map(factors), parameters.gate)


def applied(weights: Tensor, x: Tensor, parameters: Parameters, geometry: Geometry) -> Tensor:
    """The layer's output, (B, C_out, Ho, Wo), for attention weights (B, K, M, N)."""
    if x.dim() == 3:
        return applied(weights, x[None], parameters, geometry)[0]
    if shards.is_sharded(x):
        return shards.on_shards(applied, x, parameters, geometry, beside=weights)
    size = positions.padded_size(x.shape[-2:], geometry)
    tokens = reference.apply(weights, positions.pad(x, geometry), parameters)
    height, width = positions.output_size(size, geometry)
    return tokens.transpose(1, 2).unflatten(2, (height, width))


def _factors(x: Tensor, parameters: Parameters, geometry: Geometry) -> Factors:
    from tcnn.layers.functional import positional_factors

    return positional_factors(parameters, positions.padded_size(x.shape[-2:], geometry), geometry, x)
