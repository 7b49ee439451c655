"""Reference backend: the attention formula as written, all maps and padding included, of what every backend gets.

Other backends are tested by it. Shapes: B batch, C channels, h×w map, H×W padded map, N = H·W keys, M queries, K heads.
"""

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from tcnn.layers.terms import attention, positions, scopes
from tcnn.layers.terms.attention import AttentionMaps
from tcnn.layers.terms.parameters import Parameters, query_and_key
from tcnn.layers.terms.positions import Factors, Geometry, Pair
from tcnn.layers.terms.scopes import Scope


@dataclass(frozen=True, eq=False)
class AttentionInputs:
    """What every backend computes attention from: a feature map and the layer that attends to it."""

    x: Tensor
    """The map, (B, C_in, h, w)."""
    geometry: Geometry
    scope: Scope
    factors: Factors
    """Of the positional attention on the padded map."""
    parameters: Parameters

    @property
    def size(self) -> Pair:
        """Size (H, W) of the padded map."""
        return positions.padded_size(self.x.shape[-2:], self.geometry)

    @property
    def padded(self) -> Tensor:
        """The map after `positions.pad`, (B, C_in, H, W): computed when it is asked for, which few backends do."""
        return positions.pad(self.x, self.geometry)


def attend(inputs: AttentionInputs) -> Tensor:
    """Output tokens of the attention, (B, M, C_out)."""
    padded = inputs.padded
    return apply(attention.mixed(*_maps(inputs, padded)), padded, inputs.parameters)


def apply(weights: Tensor, padded: Tensor, parameters: Parameters) -> Tensor:
    """Output tokens (B, M, C_out) of attention weights (B, K, M, N) on a padded map (B, C_in, H, W)."""
    tokens = attention.to_tokens(padded)
    value = tokens if parameters.value is None else F.linear(tokens, parameters.value)  # (B, N, C_in)
    heads = weights.to(value.dtype) @ value[:, None]
    return attention.project(heads, parameters.proj, parameters.bias, parameters.groups)


def maps(inputs: AttentionInputs) -> AttentionMaps:
    """Attention maps of every head over all pixels of the padded map."""
    return _maps(inputs, inputs.padded)


def _maps(inputs: AttentionInputs, padded: Tensor) -> AttentionMaps:
    x, geometry, scope, factors = inputs.x, inputs.geometry, inputs.scope, inputs.factors
    parameters = inputs.parameters
    size = padded.shape[-2], padded.shape[-1]
    query_tokens = attention.to_tokens(positions.take_query_pixels(padded, geometry))
    w_query, w_key = query_and_key(parameters)
    query = attention.split_heads(query_tokens, w_query, parameters.heads)
    key = attention.split_heads(attention.to_tokens(padded), w_key, parameters.heads)
    query_pixels = scopes.query_pixels(size, geometry, padded.device)
    origin = positions.origin(x.shape[-2:], geometry)
    content = scopes.content(scope, query, key, size, x.shape[-2:], origin, *query_pixels)
    return AttentionMaps(content, attention.positional_map(factors), parameters.gate)
