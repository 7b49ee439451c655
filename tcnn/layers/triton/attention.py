"""Gated positional self-attention on a GPU by Triton kernels: one forward, two or three backward, no map in memory.

`attend` is a custom operator (`tcnn::gated_attention`): compilers and fake tensors see its shapes only, and the kernels
(`kernels.py`, `backward.py`) are imported when it first runs, so that this file can be imported where Triton is not
installed. `supported` says where it can be called.

Shapes: B images, K heads, d head width, C channels, Ho×Wo queries, M = Ho·Wo, h×w keys, R = h·w.
"""

import os
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib.util import find_spec
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from tcnn.layers.terms.execution import differentiable_gradients, is_exporting
from tcnn.layers.triton import tiles as triton_tiles
from tcnn.layers.triton.tiles import Kernel, Tiles

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
MAX_HEAD_DIM = 256
"""Largest head width d of which a tile of keys fits into shared memory."""
MAX_OUTPUT_ELEMENTS = 2**31
"""Limit of the elements of one image's output: within an image the kernels use 32-bit indices."""
INSTALLED = find_spec("triton") is not None

Gradients = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    rows: Tensor,
    columns: Tensor,
    gate: Tensor,
    sinks: int | None,
    scale: float,
) -> Tensor:
    """Attention applied to the values, A_h X W_val of every head, (B, M, K, C), contiguous (Transformed CNNs, Eq. 4).

    Args:
        query: (B, K, M, d). key: (B, K, R, d). value: (B, R, C), for all heads. Any strides.
        rows: (K, Ho, h). columns: (K, Wo, w). Their outer product is the positional attention.
        gate: σ(λ/τ), (K,).
        sinks: number of additional keys whose logit and value are 0; None is none.
        scale: of the logits, 1/√d.

    The result has the dtype of `value`, or autocast's; softmax and sums are float32. Two runs agree in every bit.
    """
    query, key, value = (tensor.to(_compute_dtype(value)) for tensor in (query, key, value))
    rows, columns, gate = (tensor.float().contiguous() for tensor in (rows, columns, gate))
    out, _ = gated_attention(query, key, value, rows, columns, gate, sinks or 0, scale)
    return out


def supported(query: Tensor, value: Tensor) -> bool:
    """Whether `attend` supports these inputs here, (B, K, M, d) and (B, R, C).

    That needs an NVIDIA GPU of compute capability 8.0 at least, or Triton's interpreter (`TRITON_INTERPRET=1`) on the
    CPU. An exported model must run without Triton; the operator has neither tangents nor rules for `torch.func`.
    """
    fits = (
        available(query, value)
        and query.shape[-1] % 8 == 0
        and 0 < query.shape[-1] <= MAX_HEAD_DIM
        and query.shape[1] * query.shape[2] * value.shape[1] * value.shape[2] > 0
        and query.shape[1] * query.shape[2] * value.shape[2] < MAX_OUTPUT_ELEMENTS
    )
    return fits and plain_autograd()


def available(query: Tensor, value: Tensor) -> bool:
    """Whether kernels run where these tensors are, and know their dtypes."""
    return runs_on(query.device) and query.dtype in DTYPES and _compute_dtype(value) in DTYPES


def _compute_dtype(value: Tensor) -> torch.dtype:
    kind, found = value.device.type, value.dtype
    mixed = found != torch.float64 and torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return torch.get_autocast_dtype(kind) if mixed else found


def plain_autograd() -> bool:
    """Whether only values and first derivatives are asked for."""
    if torch.compiler.is_compiling():
        return not is_exporting()
    transformed = torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0
    return not transformed and not torch.jit.is_tracing()  # type: ignore[attr-defined]


def runs_on(device: torch.device) -> bool:
    if not INSTALLED:
        return False
    if device.type != "cuda":
        return device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"
    # Every layer asks in every call, and the driver's answer stays; a compiler knows nothing of what was kept.
    return _capable(device) if torch.compiler.is_compiling() else _capable_once(device)


def _capable(device: torch.device) -> bool:
    if torch.version.hip is not None or not torch.cuda.is_available():
        return False
    found = torch.cuda.get_device_properties(device)  # what compilers can read
    return (found.major, found.minor) >= (8, 0)


_capable_once = cache(_capable)


@torch.library.custom_op("tcnn::gated_attention", mutates_args=())
def gated_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    rows: Tensor,
    columns: Tensor,
    gate: Tensor,
    sinks: int,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """`attend` as a custom operator; also returns the base-2 logarithms of the softmax sums, (B, K, M), float32."""
    from tcnn.layers.triton import kernels as triton_kernels

    query, key, value = _contiguous_channels(query), _contiguous_channels(key), _contiguous_channels(value)
    rows, columns, gate = rows.contiguous(), columns.contiguous(), gate.contiguous()
    out, lse = _outputs(query, value)
    tiles = _tiles("forward", query, value, rows, columns)
    programs = query.shape[0] * query.shape[1] * prod(triton_tiles.count(_map_sizes(rows, columns)[0], tiles.query))
    if programs:
        with current_device(query.device):
            triton_kernels.forward[(programs,)](
                query, key, value, rows, columns, gate, out, lse,
                *_strides(query, key), *value.stride()[:2], *_sizes(query, value, rows, columns), float(sinks), scale,
                WHOLE=tiles.whole, **_constants(tiles, query),
            )  # fmt: skip
    return out, lse


@torch.library.custom_op("tcnn::gated_attention_backward", mutates_args=())
def gated_attention_backward(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    rows: Tensor,
    columns: Tensor,
    gate: Tensor,
    lse: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Backward pass: gradients of query, key, value, rows, columns and gate from that of the output, (B, M, K, C)."""
    from tcnn.layers.triton import backward as triton_backward

    gradient, query, key, value = (
        gradient.contiguous(),
        _contiguous_channels(query),
        _contiguous_channels(key),
        _contiguous_channels(value),
    )
    rows, columns, gate = rows.contiguous(), columns.contiguous(), gate.contiguous()
    grad_query, grad_key, grad_value, *grad_factors = _gradients(query, key, value, rows, columns, gate)
    images, heads = query.shape[:2]
    if not images:
        return grad_query, grad_key, grad_value, *(tensor.zero_() for tensor in grad_factors)  # type: ignore[return-value]
    (query_size, key_size), sizes = _map_sizes(rows, columns), _sizes(query, value, rows, columns)
    strides, spans = _strides(query, key), value.stride()[:2]
    tiles = _tiles("backward_keys", query, value, rows, columns)
    few = tiles if tiles.whole else _tiles("backward_queries", query, value, rows, columns)
    down, over = triton_tiles.count(query_size, few.query)
    across = triton_tiles.count(key_size, few.key)[1]
    expected = torch.empty_like(lse)
    grad_rows = lse.new_empty(images, heads, over, down, across, few.query[0], key_size[0])
    grad_columns = lse.new_empty(images, heads, over, down, few.query[1], key_size[1])
    given = query, key, value, rows, columns, gate, lse, gradient
    with current_device(query.device):
        if not tiles.whole:
            triton_backward.backward_queries[(images * heads * down * over,)](
                *given, expected, grad_query, grad_rows, grad_columns, *strides, *spans, *sizes, scale,
                **_constants(few, query),
            )  # fmt: skip
        triton_backward.backward_keys[(images * heads * prod(triton_tiles.count(key_size, tiles.key)),)](
            *given, expected, grad_query, grad_key, grad_rows, grad_columns, *strides, *spans, *sizes, scale,
            WHOLE=tiles.whole, **_constants(tiles, query),
        )  # fmt: skip
        tiles = _tiles("backward_values", query, value, rows, columns)
        steps = -(-value.shape[2] // tiles.channels)
        triton_backward.backward_values[(images * steps * prod(triton_tiles.count(key_size, tiles.key)),)](
            *given, grad_value, *strides, *sizes, scale, **_constants(tiles, query)
        )
    # What the kernels summed within tiles, summed over tiles and images.
    by_row = grad_rows.sum((0, 2, 4)).flatten(1, 2)[:, : query_size[0]]  # (K, Ho, h)
    by_column = grad_columns.sum((0, 3)).flatten(1, 2)[:, : query_size[1]]  # (K, Wo, w)
    grad_gate = (rows * by_row).sum((1, 2)) - expected.sum((0, 2))
    return grad_query, grad_key, grad_value, gate[:, None, None] * by_row, gate[:, None, None] * by_column, grad_gate


@gated_attention.register_fake
def _(
    query: Tensor, key: Tensor, value: Tensor, rows: Tensor, columns: Tensor, gate: Tensor, sinks: int, scale: float
) -> tuple[Tensor, Tensor]:
    return _outputs(query, value)


@gated_attention_backward.register_fake
def _(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, rows: Tensor, columns: Tensor, gate: Tensor,
    lse: Tensor, scale: float,
) -> Gradients:  # fmt: skip
    return _gradients(query, key, value, rows, columns, gate)


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.sinks, ctx.scale = inputs
    ctx.save_for_backward(*tensors, output[1])
    ctx.mark_non_differentiable(output[1])


def _backward(ctx: Any, gradient: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    *tensors, lse = ctx.saved_tensors
    if torch.is_grad_enabled():  # the gradients are to be differentiated: only plain operations can be
        moving = ctx.needs_input_grad[: len(tensors)]

        def compute(*places: Tensor) -> Tensor:
            return _reference(list(places), ctx.sinks, ctx.scale)

        return *differentiable_gradients(compute, tensors, moving, gradient), None, None
    return *gated_attention_backward(gradient, *tensors, lse, ctx.scale), None, None


gated_attention.register_autograd(_backward, setup_context=_save_for_backward)


def _reference(tensors: list[Tensor], sinks: int, scale: float) -> Tensor:
    """`attend` in plain PyTorch operations with full maps: for second derivatives, which the kernels do not have."""
    query, key, value, rows, columns, gate = tensors
    logits = scale * (query.float() @ key.float().mT)
    lse = logits.logsumexp(-1, keepdim=True)
    content = (logits - lse).exp() * (lse - torch.tensor(float(sinks)).log()).sigmoid()
    positional = torch.einsum("kiy,kjx->kijyx", rows, columns).flatten(3).flatten(1, 2)
    maps = (1 - gate[:, None, None]) * content + gate[:, None, None] * positional
    return torch.einsum("bkmr,brc->bmkc", maps.to(value.dtype), value)


def _contiguous_channels(tensor: Tensor) -> Tensor:
    """The tensor with contiguous channels (last axis)."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _outputs(query: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    images, heads, queries, _ = query.shape
    out = value.new_empty(images, queries, heads, value.shape[2])
    return out, query.new_empty(images, heads, queries, dtype=torch.float32)


def _gradients(query: Tensor, key: Tensor, value: Tensor, rows: Tensor, columns: Tensor, gate: Tensor) -> Gradients:
    """Empty gradients; those of queries and keys have the memory layout of what they were split from, (B, M, K·d)."""
    grad_query, grad_key = (
        t.new_empty(t.shape[0], t.shape[2], t.shape[1], t.shape[3]).transpose(1, 2) for t in (query, key)
    )
    grad_value, *others = (t.new_empty(t.shape) for t in (value, rows, columns, gate))
    return grad_query, grad_key, grad_value, others[0], others[1], others[2]


def _map_sizes(rows: Tensor, columns: Tensor) -> tuple[triton_tiles.Size, triton_tiles.Size]:
    """Sizes of the query map (Ho, Wo) and the key map (h, w)."""
    return (rows.shape[1], columns.shape[1]), (rows.shape[2], columns.shape[2])


def _tiles(kernel: Kernel, query: Tensor, value: Tensor, rows: Tensor, columns: Tensor) -> Tiles:
    return triton_tiles.choose(kernel, *_map_sizes(rows, columns), query.shape[3], value.shape[2], value.element_size())


def _sizes(query: Tensor, value: Tensor, rows: Tensor, columns: Tensor) -> tuple[int, ...]:
    query_size, key_size = _map_sizes(rows, columns)
    return query.shape[1], query.shape[3], value.shape[2], *query_size, *key_size


def _strides(query: Tensor, key: Tensor) -> tuple[int, ...]:
    return *query.stride()[:3], *key.stride()[:3]


def _constants(tiles: Tiles, query: Tensor) -> dict[str, int]:
    return {
        "Q_ROWS": tiles.query[0], "Q_COLUMNS": tiles.query[1], "K_ROWS": tiles.key[0], "K_COLUMNS": tiles.key[1],
        "WIDTH": triton_tiles.width(query.shape[3], query.element_size()), "CHANNELS": tiles.channels,
        "num_warps": tiles.warps, "num_stages": tiles.stages, "enable_fp_fusion": True,
    }  # fmt: skip


def current_device(device: torch.device) -> AbstractContextManager[object]:
    """Context that makes a GPU current, where Triton launches its kernels."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
