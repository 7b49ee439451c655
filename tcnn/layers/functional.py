"""Gated positional self-attention as one pure function, `gpsa`, which selects the backend that computes it.

Shapes: B batch, C channels, h×w map, H×W the padded map, Ho×Wo output map, M = Ho·Wo queries, N = H·W keys, K heads,
d head width, G groups.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from tcnn.errors import EmptyMapError, UnsupportedLayerError
from tcnn.layers import shards
from tcnn.layers.backends import convolution, reference, scoped, selection
from tcnn.layers.backends.reference import AttentionInputs
from tcnn.layers.terms import attention, kinds, positions
from tcnn.layers.terms.execution import is_eager
from tcnn.layers.terms.parameters import Parameters, require_matrix, value_in_projection
from tcnn.layers.terms.positions import Factors, Geometry, Pair
from tcnn.layers.terms.scopes import GLOBAL, Scope

Positional = Callable[[Tensor], tuple[Factors, Tensor | None]]
"""Looks up cached positional attention for an input: the factors, and `dense.gated_positional` of them or None."""


def gpsa(
    x: Tensor, parameters: Parameters, geometry: Geometry, scope: Scope = GLOBAL, known_hard: bool = False
) -> Tensor:
    """Gated positional self-attention on a feature map (Transformed CNNs, Eq. 4–7; the formula is in `GPSA2d`).

    Args:
        x: (B, C_in, h, w) or (C_in, h, w), not padded.
        geometry: of the convolution that the attention replaces.
        scope: the keys that content attention uses.
        known_hard: the caller guarantees that the layer is in the hard limit (`convolution.is_hard`). On a CPU the
            values are checked in any case; on a GPU they are not, because the host would have to wait.

    Returns: (B, C_out, Ho, Wo), channels-last if x is; (C_out, Ho, Wo) for one image.

    Raises: `UnsupportedLayerError` for an input of another shape, `EmptyMapError` for one smaller than the kernel.
    """
    refuse_no_tensor(x)
    if x.dim() == 3:
        return gpsa(x[None], parameters, geometry, scope, known_hard)[0]
    if shards.is_sharded(x):
        return shards.on_shards(gpsa, x, parameters, geometry, scope, known_hard)
    check_input(x, parameters.in_channels, geometry)
    backend = selection.backend()
    if backend == "auto" and (known_hard or in_hard_limit(parameters, geometry)):
        if not parameters.content_heads:
            return match_memory_format(x, convolution.attend(x, parameters, geometry))
        positional, content = parameters.parts
        y = convolution.attend(x, positional, geometry) + attend(x, content, geometry, scope)
        return match_memory_format(x, y)
    return match_memory_format(x, attend(x, parameters, geometry, scope))


def convolution_and_attention(
    x: Tensor,
    geometry: Geometry,
    scope: Scope,
    weight: Tensor | None,
    value: Tensor | None,
    bias: Tensor | None,
    groups: int,
    parameters: Parameters | None,
    positional: Positional | None = None,
) -> Tensor:
    """The sum of a convolution by `weight` (C_out, C_in/G, kh, kw) and attention, either of them optional; as `gpsa`.

    Args:
        value: W_val, (C_in, C_in), applied before the convolution; None is the identity.
        bias: (C_out,), of the convolution.
        parameters: of the attention, with W_val and a bias of its own.
        positional: as for `attend`.
    """
    refuse_no_tensor(x)
    others = geometry, scope, weight, value, bias, groups, parameters, positional
    if x.dim() == 3:
        return convolution_and_attention(x[None], *others)[0]
    if shards.is_sharded(x):
        return shards.on_shards(convolution_and_attention, x, *others)
    if weight is None:
        assert parameters is not None  # noqa: S101 - a layer without a head is all convolution
        check_input(x, parameters.in_channels, geometry)
        return match_memory_format(x, attend(x, parameters, geometry, scope, positional))
    check_input(x, weight.shape[1] * groups, geometry)
    y = convolution.convolve(x, geometry, value, weight, bias, groups)
    return match_memory_format(x, y if parameters is None else y + attend(x, parameters, geometry, scope, positional))


def attend(
    x: Tensor,
    parameters: Parameters,
    geometry: Geometry,
    scope: Scope = GLOBAL,
    positional: Positional | None = None,
) -> Tensor:
    """Compute the attention, never as a convolution: (B, C_in, h, w) to (B, C_out, Ho, Wo), in any memory format.

    `positional` returns cached positional attention for x, where it was prepared: `positional_factors` on the padded
    map, and `dense.gated_positional` of them or None.
    """
    backend = selection.backend()
    size = positions.output_size(positions.padded_size(x.shape[-2:], geometry), geometry)

    def inputs(x: Tensor, p: Parameters) -> "tuple[AttentionInputs, Tensor | None]":  # as text for torch 2.8's compiler
        if positional is not None and p is parameters:  # it is of these and of no others
            factors, gated = positional(x)
            return AttentionInputs(x, geometry, scope, factors, p), gated
        factors = positional_factors(p, positions.padded_size(x.shape[-2:], geometry), geometry, x)
        return AttentionInputs(x, geometry, scope, factors, p), None

    if backend != "reference":
        parameters = value_in_projection(parameters, x)
    if backend == "reference":
        tokens = reference.attend(inputs(x, parameters)[0])
    elif not is_global(scope, x, geometry):
        tokens = scoped.attend(inputs(x, parameters)[0])
    else:
        tokens = selection.attend(x, parameters, geometry, scope, backend, inputs)
    return to_map(tokens, size)


def in_hard_limit(parameters: Parameters, geometry: Geometry) -> bool:
    """Whether the layer equals its convolution, where the host can read the values without waiting; elsewhere False."""
    p = parameters
    tensors = (p.gating_param, *kinds.tensors_of(p.position), p.gate_temperature, p.position_temperature)
    readable = p.gating_param is not None and p.gating_param.device.type == "cpu" and is_eager(*tensors)
    return readable and convolution.is_hard(p, geometry)


def positional_factors(parameters: Parameters, size: Pair, geometry: Geometry, x: Tensor | None = None) -> Factors:
    """The positional attention on a padded map of `size` (H, W), as factors or as maps (`positions.Factors`).

    Zeros for content heads. Where positions depend on content, x (B, C_in, h, w) is the unpadded map.
    """
    p = parameters
    if p.position is None:
        counts = positions.output_size(size, geometry)
        nothing = p.gate.new_zeros(())
        none, nor_these = (nothing.expand(p.heads, m, n) for m, n in zip(counts, size, strict=True))
        return none, nor_these
    rows, columns = p.position.attention(p.temperature, size, geometry, lambda: _queries(p, geometry, x))
    if not p.content_heads:
        return rows, columns
    if columns is None:
        return pad(rows, (0, 0) * 4 + (0, p.content_heads)), None
    content = (0, 0, 0, 0, 0, p.content_heads)
    return pad(rows, content), pad(columns, content)


def _queries(parameters: Parameters, geometry: Geometry, x: Tensor | None) -> Tensor:
    """Queries of the heads with a positional part, (B, P, Ho, Wo, d)."""
    p = parameters
    if x is None:
        raise UnsupportedLayerError("GPSA2d: its positional attention depends on its input, and none was given")
    pixels = positions.take_query_pixels(positions.pad(x, geometry), geometry)
    query = attention.split_heads(attention.to_tokens(pixels), require_matrix(p.query), p.heads)
    return query[:, : p.heads - p.content_heads].unflatten(2, (pixels.shape[-2], pixels.shape[-1]))


def depend_on_content(parameters: Parameters) -> bool:
    """Whether the positional attention is another for every image."""
    return parameters.position is not None and kinds.reads_content(parameters.position)


def is_global(scope: Scope, x: Tensor, geometry: Geometry) -> bool:
    """Whether content attention is global: its keys are the whole map, or all of it except zero padding.

    Under a compiler the size of the map is not read, so that one graph serves all sizes: a layer whose scope covers the
    map gives the same result when computed within its scope.
    """
    inner = x.shape[-2], x.shape[-1]
    size = positions.padded_size(inner, geometry)
    if not scope.padding and geometry.padding_mode != "zeros" and size != inner:
        return False
    return scope.kind == "global" or (not torch.compiler.is_compiling() and scope.covers(size, inner))


def refuse_no_tensor(x: object) -> None:
    """Raise for an input that is no tensor, and no stand-in for one, as symbolic tracing gives."""
    if not isinstance(x, Tensor) and not hasattr(x, "dim"):  # asked by name alone, torch 2.8's compiler finds no `dim`
        raise UnsupportedLayerError(f"GPSA2d: expected a tensor of shape (B, C, H, W), got {type(x).__name__}")


def check_input(x: Tensor, channels: int, geometry: Geometry) -> None:
    """Check the shape of an input: raise if it does not have `channels` channels or is smaller than the kernel."""
    refuse_no_tensor(x)
    if x.dim() != 4 or x.shape[1] != channels:
        raise UnsupportedLayerError(f"GPSA2d: expected an input of shape (B, {channels}, H, W), got {tuple(x.shape)}")
    if torch.compiler.is_compiling():
        return
    size = positions.padded_size(x.shape[-2:], geometry)
    if min(positions.output_size(size, geometry)) < 1:
        spans = [d * (k - 1) + 1 for k, d in zip(geometry.kernel_size, geometry.dilation, strict=True)]
        raise EmptyMapError(
            f"GPSA2d: expected a map of at least {spans[0]}×{spans[1]} after padding, got {size[0]}×{size[1]}: "
            "the kernel does not fit into it"
        )


def to_map(tokens: Tensor, size: Sequence[int]) -> Tensor:
    """Reshape tokens (B, M, C_out) to a feature map (B, C_out, Ho, Wo), a view."""
    return tokens.unflatten(1, tuple(size)).permute(0, 3, 1, 2)


def match_memory_format(x: Tensor, y: Tensor) -> Tensor:
    """`y` in the memory format of x: channels-last if x is (and only that), else contiguous."""
    if _is_batched(x) or _is_batched(y):
        return y  # its memory format can be neither asked for nor chosen
    last = x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
    return y.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)


def _is_batched(x: Tensor) -> bool:
    """Whether `torch.func.vmap` is at work on a tensor, perhaps inside of `torch.func.grad`."""
    functorch = torch._C._functorch
    while not torch.compiler.is_compiling() and functorch.is_gradtrackingtensor(x):
        x = functorch.get_unwrapped(x)
    return bool(functorch.is_batchedtensor(x))
