"""The formula as it is written: every map, padding and all. What the other backends are tested against.

Shapes: B batch, C channels, H×W padded map, N = H·W keys, M queries, K heads.
"""

from torch import Tensor
from torch.nn import functional as F

from tcnn.layers.terms import attention, positions, scopes
from tcnn.layers.terms.attention import AttentionMaps
from tcnn.layers.terms.parameters import Parameters, needed_matrix
from tcnn.layers.terms.positions import Geometry
from tcnn.layers.terms.scopes import Scope


def attend(
    x: Tensor,
    padded: Tensor,
    geometry: Geometry,
    scope: Scope,
    factors: tuple[Tensor, Tensor],
    parameters: Parameters,
) -> Tensor:
    """The output tokens of a map x (B, C_in, h, w), (B, M, C_out); the arguments are those of `scoped.attend`."""
    tokens = attention.tokens(padded)
    value = tokens if parameters.value is None else F.linear(tokens, parameters.value)  # (B, N, C_in)
    seen = maps(x, padded, geometry, scope, factors, parameters).total.to(value.dtype)
    return attention.project(seen @ value[:, None], parameters.proj, parameters.bias, parameters.groups)


def maps(
    x: Tensor,
    padded: Tensor,
    geometry: Geometry,
    scope: Scope,
    factors: tuple[Tensor, Tensor],
    parameters: Parameters,
) -> AttentionMaps:
    """What every head looks at, over all pixels of the padded map."""
    size = padded.shape[-2], padded.shape[-1]
    asking = attention.tokens(positions.at_queries(padded, geometry))
    query = attention.split(asking, needed_matrix(parameters.query), parameters.heads)
    key = attention.split(attention.tokens(padded), needed_matrix(parameters.key), parameters.heads)
    places = scopes.query_pixels(size, geometry, padded.device)
    origin = positions.origin(x.shape[-2:], geometry)
    content = scopes.content(scope, query, key, size, x.shape[-2:], origin, *places)
    return AttentionMaps(content, attention.outer(*factors), parameters.gate)
