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
from tcnn.layers.packed import pack
from tcnn.layers.scopes import GLOBAL
from tcnn.layers.ways import Way, way

if TYPE_CHECKING:
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
    rows, columns = positions.output_size(padded.shape[-2:], layer.geometry)
    if wanted == "reference":
        tokens = _reference(layer, padded)
    elif _is_global(layer, padded):
        tokens = _dense(layer, x, padded, wanted)
    else:
        tokens = _scoped(layer, padded)
    return tokens.unflatten(1, (rows, columns)).permute(0, 3, 1, 2)


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
        weights = fold_value(_weights(layer)) if _settled(layer) else _weights(layer)
        return weights.value, hard.filter_of(weights.plain_proj, layer.geometry)

    value, kernel = _once(layer, "kernel", (layer.value, layer.proj), prepare)
    still = (layer.query, layer.key, layer.gating_param, layer.locality_raw, layer.attention_centers)
    return hard.convolve(x, layer.geometry, value, kernel, layer.bias, layer.groups, still)


def _reference(layer: "GPSA2d", padded: Tensor) -> Tensor:
    """The output tokens (B, M, C_out) as the formula is written."""
    value = F.linear(padded.flatten(2).transpose(1, 2), layer.value)  # (B, N, C_in)
    maps = layer.attention_of_padded(padded).total.to(value.dtype)
    return attention.project(maps @ value[:, None], layer.proj, layer.bias, layer.groups)


def _is_global(layer: "GPSA2d", padded: Tensor) -> bool:
    """Whether the content part sees the whole map.

    A compiler is not asked about the size of the map, so that one graph serves all: computed within its scope, a layer
    whose scope covers the map gives the same.
    """
    return layer.scope == GLOBAL or (not torch.compiler.is_compiling() and layer.scope.covers(padded.shape[-2:]))


def _scoped(layer: "GPSA2d", padded: Tensor) -> Tensor:
    """The output tokens (B, M, C_out) in memory that is linear in the pixels."""
    factors = _factors(layer, padded)
    return scoped.attend(padded, layer.geometry, layer.scope, factors, layer.gate, _prepared_weights(layer))


def _dense(layer: "GPSA2d", x: Tensor, padded: Tensor, wanted: Way) -> Tensor:
    """The output tokens (B, M, C_out), all maps at once or in parts.

    A compiler gets them at once: it cannot loop over a number that depends on the size of the map.
    """
    limit = None
    if wanted != "dense" and not torch.compiler.is_compiling():
        queries = prod(positions.output_size(padded.shape[-2:], layer.geometry))
        elements = x.shape[0] * layer.heads * queries * prod(x.shape[-2:])
        if x.device.type == "cpu" and not torch.is_grad_enabled():
            limit = CACHED_ELEMENTS
        elif wanted == "fused" or elements > DENSE_ELEMENTS:
            limit = PART_ELEMENTS
    factors = _factors(layer, padded)
    return dense.attend(x, padded, layer.geometry, factors, layer.gate, _prepared_weights(layer), limit)


def _factors(layer: "GPSA2d", padded: Tensor) -> tuple[Tensor, Tensor]:
    size = (padded.shape[-2], padded.shape[-1])
    moving = (layer.locality_raw, layer.attention_centers, layer.temperature)
    return _once(layer, "positional", moving, lambda: layer.positional_factors(size), of=size)


def _weights(layer: "GPSA2d") -> Weights:
    return Weights(layer.query, layer.key, layer.value, layer.proj, layer.bias, layer.groups)


def _prepared_weights(layer: "GPSA2d") -> Weights:
    """The layer's matrices, ready for use: W_val folded in, in the order in which the processor wants them."""
    if not _settled(layer):
        return _weights(layer)
    plain = not torch.is_autocast_enabled(layer.proj.device.type)

    def prepare() -> Weights:
        weights = fold_value(_weights(layer))
        if plain:
            proj = pack(weights.proj) if weights.groups == 1 else weights.proj
            weights = weights._replace(query=pack(layer.query), key=pack(layer.key), proj=proj)
        return weights._replace(bias=None)

    matrices = (layer.query, layer.key, layer.value, layer.proj)
    return _once(layer, "weights", matrices, prepare, of=plain)._replace(bias=layer.bias)


def _once(layer: "GPSA2d", name: str, tensors: tuple[Tensor, ...], compute: Callable[[], T], of: object = None) -> T:
    return layer.memo.get(name, tensors, compute, of) if _settled(layer) else compute()


def _settled(layer: "GPSA2d") -> bool:
    """Whether nothing trains the layer, so that what is computed once will be used again."""
    quiet = not layer.training and not torch.is_grad_enabled() and not torch.compiler.is_compiling()
    return quiet and _plain(layer) and not layer.proj.is_meta


def _plain(layer: "GPSA2d") -> bool:
    return isinstance(layer.gating_param, nn.Parameter) and isinstance(layer.proj, nn.Parameter)
