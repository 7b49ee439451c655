"""How a layer is computed: which of the exact ways, and what is kept from one call to the next.

In eval mode without gradients, what depends on parameters alone (the factors of the positional attention, W_val folded
into W_out, the filter) is computed once; it is dropped when they change, or when training begins.
"""

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tcnn.layers import attention, dense, hard, positions, scoped
from tcnn.layers.attention import Weights, at_least_float32, fold_value
from tcnn.layers.products import pack
from tcnn.layers.scopes import GLOBAL
from tcnn.layers.ways import way

if TYPE_CHECKING:
    from tcnn.layers.base import AttentionLayer
    from tcnn.layers.gpsa import GPSA2d

T = TypeVar("T")

DENSE_ELEMENTS = 2**25
"""Largest attention maps (batch × heads × queries × keys) that are computed at once: 128 MiB in float32, of which
training would keep five to seven."""
PART_ELEMENTS = 2**21
"""Parts into which larger ones are cut."""
CACHED_ELEMENTS = 2**20
"""Parts for inference on a CPU, where nothing is computed again and what fits its caches is quicker."""


def output(layer: "GPSA2d", x: Tensor) -> Tensor:
    """What the layer makes of a map: (B, C_in, h, w) to (B, C_out, Ho, Wo), in whatever memory format."""
    wanted = way()
    if wanted == "auto" and is_convolution(layer):
        return _convolution(layer, x)
    padded = positions.pad(x, layer.geometry)
    if wanted == "reference":
        return _map_of(_reference(layer, padded), padded, layer)
    return attend(layer, x, padded, layer.bias)


def attend(layer: "AttentionLayer", x: Tensor, padded: Tensor, bias: Tensor | None) -> Tensor:
    """What a layer's heads bring together, (B, C_out, Ho, Wo).

    Args:
        x: (B, C_in, h, w). padded: the same after `positions.pad`.
        bias: (C_out,), added to every pixel.
    """
    if _is_global(layer, padded):
        return _map_of(_dense(layer, x, padded, bias), padded, layer)
    factors = _factors(layer, padded)
    weights = _prepared_weights(layer, bias)
    tokens = scoped.attend(padded, layer.geometry, layer.scope, factors, layer.gate, weights)
    return _map_of(tokens, padded, layer)


def is_convolution(layer: "GPSA2d") -> bool:
    """Whether no head looks anywhere but at its own tap; where that cannot be known, False.

    A compiler cannot branch on values, a layer on the meta device has none, and what takes the parameters' place under
    `torch.func` may stand for many layers at once.
    """
    moving = (layer.gating_param, layer.locality_raw, layer.attention_centers, layer.temperature)
    if torch.compiler.is_compiling() or any(t.is_meta for t in moving) or not _plain(layer):
        return False

    def look() -> bool:
        return hard.is_hard(layer.gate, layer.strength, at_least_float32(layer.attention_centers), layer.geometry)

    if moving[0].device.type == "cpu":
        return look()
    return layer.memo.get("hard", moving, look)  # to look makes the host wait for the device


def _convolution(layer: "GPSA2d", x: Tensor) -> Tensor:
    def prepare() -> tuple[Tensor | None, Tensor]:
        weights = fold_value(layer.weights) if _settled(layer) else layer.weights
        return weights.value, hard.filter_of(weights.plain_proj, layer.geometry)

    value, kernel = _once(layer, "kernel", (layer.value, layer.proj), prepare)
    still = (layer.query, layer.key, layer.gating_param, layer.locality_raw, layer.attention_centers)
    return hard.convolve(x, layer.geometry, value, kernel, layer.bias, layer.groups, still)


def _reference(layer: "GPSA2d", padded: Tensor) -> Tensor:
    """The output tokens (B, M, C_out) as the formula is written."""
    value = F.linear(padded.flatten(2).transpose(1, 2), layer.value)  # (B, N, C_in)
    maps = layer.attention_of_padded(padded).total.to(value.dtype)
    return attention.project(maps @ value[:, None], layer.proj, layer.bias, layer.groups)


def _is_global(layer: "AttentionLayer", padded: Tensor) -> bool:
    """Whether the content part sees the whole map.

    A compiler is not asked about the size of the map, so that one graph serves all: computed within its scope, a layer
    whose scope covers the map gives the same.
    """
    return layer.scope == GLOBAL or (not torch.compiler.is_compiling() and layer.scope.covers(padded.shape[-2:]))


def _map_of(tokens: Tensor, padded: Tensor, layer: "AttentionLayer") -> Tensor:
    """(B, M, C_out) to (B, C_out, Ho, Wo), a view."""
    size = positions.output_size(padded.shape[-2:], layer.geometry)
    return tokens.unflatten(1, size).permute(0, 3, 1, 2)


def _dense(layer: "AttentionLayer", x: Tensor, padded: Tensor, bias: Tensor | None) -> Tensor:
    """The output tokens (B, M, C_out), all maps at once or in parts.

    A compiler gets them at once: it cannot loop over a number that depends on the size of the map.
    """
    limit, wanted = None, way()
    if wanted != "dense" and not torch.compiler.is_compiling():
        queries = prod(positions.output_size(padded.shape[-2:], layer.geometry))
        one = layer.heads * queries * prod(x.shape[-2:])
        if x.device.type == "cpu" and not torch.is_grad_enabled():
            # One image, or as many as take half of it: what they bring together is larger than their maps.
            limit = CACHED_ELEMENTS if one > CACHED_ELEMENTS else max(one, CACHED_ELEMENTS // 2)
        elif wanted == "fused" or x.shape[0] * one > DENSE_ELEMENTS:
            limit = PART_ELEMENTS
    factors = _factors(layer, padded)
    weights = _prepared_weights(layer, bias)
    placed = _placed(layer, x, padded, factors)
    return dense.attend(x, padded, layer.geometry, factors, layer.gate, weights, limit, placed)


def _placed(layer: "AttentionLayer", x: Tensor, padded: Tensor, factors: tuple[Tensor, Tensor]) -> Tensor | None:
    """The positional maps, where they are small enough to be kept; they are the same for every image."""
    queries = prod(positions.output_size(padded.shape[-2:], layer.geometry))
    if not _settled(layer) or layer.heads * queries * prod(x.shape[-2:]) > CACHED_ELEMENTS:
        return None
    moving = (layer.gating_param, layer.locality_raw, layer.attention_centers, layer.temperature)
    there = tuple(tensor for tensor in moving if tensor is not None)
    size = x.shape[-2], x.shape[-1]
    return _once(layer, "placed", there, lambda: dense.place(size, layer.geometry, factors, layer.gate), of=size)


def _factors(layer: "AttentionLayer", padded: Tensor) -> tuple[Tensor, Tensor]:
    size = (padded.shape[-2], padded.shape[-1])
    moving = (layer.locality_raw, layer.attention_centers, layer.temperature)
    there = tuple(tensor for tensor in moving if tensor is not None)  # a layer may have folded all positions away
    return _once(layer, "positional", there, lambda: layer.positional_factors(size), of=size)


def _prepared_weights(layer: "AttentionLayer", bias: Tensor | None) -> Weights:
    """The layer's matrices, ready for use: W_val folded in, in the order in which the processor wants them."""
    if not _settled(layer):
        return layer.weights._replace(bias=bias)
    plain = not torch.is_autocast_enabled(layer.proj.device.type)

    def prepare() -> Weights:
        weights = fold_value(layer.weights)
        if plain:
            proj = pack(weights.proj) if weights.groups == 1 else weights.proj
            weights = weights._replace(query=pack(layer.query), key=pack(layer.key), proj=proj)
        return weights._replace(bias=None)

    matrices = tuple(matrix for matrix in (layer.query, layer.key, layer.value, layer.proj) if matrix is not None)
    return _once(layer, "weights", matrices, prepare, of=plain)._replace(bias=bias)


def _once(
    layer: "AttentionLayer", name: str, tensors: tuple[Tensor, ...], compute: Callable[[], T], of: object = None
) -> T:
    return layer.memo.get(name, tensors, compute, of) if _settled(layer) else compute()


def _settled(layer: "AttentionLayer") -> bool:
    """Whether nothing trains the layer, so that what is computed once will be used again."""
    quiet = not layer.training and not torch.is_grad_enabled() and not torch.compiler.is_compiling()
    return quiet and _plain(layer) and not layer.proj.is_meta


def _plain(layer: "AttentionLayer") -> bool:
    """Whether its parameters are its own; one that has no positional part has no gate, either."""
    own = layer.gating_param is None or isinstance(layer.gating_param, nn.Parameter)
    return own and isinstance(layer.proj, nn.Parameter)
