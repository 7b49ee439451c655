"""A layer's attention on a GPU with its maps in memory, once and in 16 bits: few launches, each near what it must move.

From tokens to output tokens: projections and products with maps are the library's; what is between is one Triton kernel
forward and three or four backward (`materialised_kernels.py`). The backward pass is written by hand, so that autograd
neither cuts nor copies, and a training step takes some thirty launches where operation by operation takes a hundred:
with small maps the host's time is all that counts. Compilers see one custom operator each way.

Shapes: B images, C channels, h×w keys, R = h·w, Ho×Wo queries, M = Ho·Wo, H×W padded map, K heads, P of them with a
positional part, d head width. A row of a map takes R' numbers, R rounded up to a multiple of 16.
"""

from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from tcnn.layers.terms.dtypes import without_autocast
from tcnn.layers.terms.eager import is_eager
from tcnn.layers.triton.attention import DTYPES, current_device, plain_autograd, runs_on
from tcnn.layers.triton.tiles import Size, power_of_two, width

HALF = (torch.float16, torch.bfloat16)
MAX_HEAD_DIM = 256
MAX_KEYS = 2**13
"""Largest map of keys, its sides rounded up to powers of two: the gradients of the factors hold one in registers."""

Optional = Tensor | None
Gradients = tuple[Optional, ...]


class Sizes(NamedTuple):
    """Everything about the maps that tensors do not say."""

    heads: int
    """K."""
    query: Size
    """Ho×Wo."""
    key: Size
    """h×w."""
    padded: Size
    """H×W, of the rows and columns."""
    origin: Size
    """Where on the padded map the keys begin, (top, left)."""
    sinks: int
    """Number of further keys whose logit and value are 0."""
    scale: float
    """Of the logits."""

    @property
    def pitch(self) -> int:
        """Numbers that a row of a map takes, R'."""
        return -(-prod(self.key) // 16) * 16


class Inputs(NamedTuple):
    """The tensors of a layer; those of 16 bits share one dtype."""

    tokens: Tensor
    """Of the keys, (B, R, C), contiguous."""
    asking: Optional
    """Of the queries, (B, M, C); None where they are those of the keys."""
    query: Tensor
    """W_qry, (K·d, C); or stacked on W_key, (2·K·d, C)."""
    key: Optional
    """W_key, (K·d, C)."""
    value: Optional
    """W_val, (C, C); None is the identity."""
    rows: Tensor
    """Row factor of the positional attention, (K, Ho, H), float32."""
    columns: Tensor
    """Column factor, (K, Wo, W), float32."""
    gating: Tensor
    """λ, (P,)."""
    temperature: Tensor
    """τ of the gates, ()."""
    proj: Tensor
    """W_out, (C_out, K·C)."""
    bias: Optional
    """(C_out,)."""


class Kept(NamedTuple):
    """What the forward pass leaves for the backward pass."""

    queries: Tensor
    """(B, M, K·d); with the keys beside them, (B, R, 2·K·d), where they are the same pixels."""
    keys: Tensor
    """(B, R, K·d), or empty."""
    values: Tensor
    """X W_val, (B, R, C); empty where W_val is the identity."""
    maps: Tensor
    """(B, M·K, R')."""
    mixed: Tensor
    """Maps times values, (B, M·K, C)."""
    lse: Tensor
    """Base-2 logarithms of the softmax sums, (B, K, M), float32."""


def supported(x: Tensor, sizes: Sizes, head_dim: int) -> bool:
    """Whether `attend` supports such inputs here, x (B, C, h, w): 16 bits on a GPU with Triton, any in its interpreter.

    A compiler is not asked of sizes, so that one graph serves all.
    """
    if not runs_on(x.device) or x.dtype not in (DTYPES if x.device.type == "cpu" else HALF):
        return False
    if head_dim % 8 or not 0 < head_dim <= MAX_HEAD_DIM or not plain_autograd():
        return False
    if torch.compiler.is_compiling():
        return True
    around = power_of_two(sizes.key[0]) * power_of_two(sizes.key[1])
    whole = type(x) in (Tensor, torch.nn.Parameter) and is_eager(x)
    return whole and around <= MAX_KEYS and len(x) * prod(sizes.query) * prod(sizes.key) > 0


def bytes_kept(images: int, channels: int, sizes: Sizes, itemsize: int) -> int:
    """Bytes of the maps and of what they mix, the largest that are kept for the backward pass."""
    return images * prod(sizes.query) * sizes.heads * (sizes.pitch + channels) * itemsize


def attend(inputs: Inputs, sizes: Sizes, keep_mixed: bool = True) -> Tensor:
    """Output tokens (B, M, C_out) in the dtype of the tokens (Transformed CNNs, Eq. 4–7), W_out and bias included.

    `keep_mixed`: whether the mixed values are kept for the backward pass; else they are computed again.
    """
    with without_autocast(inputs.tokens.device.type):
        if torch.compiler.is_compiling():
            like = inputs.tokens.dtype
            matrices = {
                name: None if (one := getattr(inputs, name)) is None else one.to(like)
                for name in ("asking", "query", "key", "value", "proj", "bias")
            }
            out: Tensor = materialised_attention(*inputs._replace(**matrices), *_flat(sizes))[0]
            return out
        found: Tensor = _Attention.apply(*inputs, sizes, keep_mixed)
        return found


class _Attention(torch.autograd.Function):
    """Eager execution, without what a custom operator costs the host."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:
        *tensors, ctx.sizes, keep_mixed = given
        used = _of_one_dtype(Inputs(*tensors))
        out, kept = _forward(used, ctx.sizes)
        ctx.save_for_backward(*used, *(kept if keep_mixed else kept._replace(mixed=out.new_empty(0))))
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Optional, ...]:
        (gradient,), saved = gradients, ctx.saved_tensors  # read once: checkpointing unpacks what is read
        inputs, kept = Inputs(*saved[: len(Inputs._fields)]), Kept(*saved[len(Inputs._fields) :])
        wanted = list(ctx.needs_input_grad[:-2])
        with without_autocast(gradient.device.type):
            if torch.is_grad_enabled():  # second derivatives: every step must be differentiable by PyTorch
                return *_differentiable(inputs, ctx.sizes, gradient, wanted), None, None
            return *_backward(inputs, kept, ctx.sizes, gradient, wanted), None, None


def _of_one_dtype(inputs: Inputs) -> Inputs:
    """Matrices in the dtype of the tokens, as under autocast."""
    like = inputs.tokens.dtype

    def cast(tensor: Optional) -> Optional:
        return None if tensor is None or tensor.dtype == like else tensor.to(like)

    found = {
        name: done for name in ("asking", "query", "key", "value", "proj", "bias")
        if (done := cast(getattr(inputs, name))) is not None
    }  # fmt: skip
    return inputs._replace(**found)


def _forward(inputs: Inputs, sizes: Sizes) -> tuple[Tensor, Kept]:
    tokens, images = inputs.tokens, len(inputs.tokens)
    if inputs.asking is None:
        stacked = inputs.query if inputs.key is None else torch.cat((inputs.query, inputs.key))
        queries, keys = F.linear(tokens, stacked), tokens.new_empty(0)
    else:
        assert inputs.key is not None  # noqa: S101 - it is stacked only where queries are keys
        queries, keys = F.linear(inputs.asking, inputs.query), F.linear(tokens, inputs.key)
    values = tokens if inputs.value is None else F.linear(tokens, inputs.value)
    maps, lse = _maps(queries, keys, inputs, sizes)
    mixed = torch.bmm(maps[:, :, : prod(sizes.key)], values)
    out = F.linear(mixed.view(images * prod(sizes.query), -1), inputs.proj, inputs.bias)
    kept = Kept(queries, keys, tokens.new_empty(0) if inputs.value is None else values, maps, mixed, lse)
    return out.view(images, prod(sizes.query), -1), kept


def _split(queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
    """Queries (B, M, K·d) and keys (B, R, K·d), as views."""
    if keys.numel():
        return queries, keys
    half = queries.shape[2] // 2
    return queries[:, :, :half], queries[:, :, half:]


def _maps(queries: Tensor, keys: Tensor, inputs: Inputs, sizes: Sizes) -> tuple[Tensor, Tensor]:
    """Attention maps (B, M·K, R') and lse (B, K, M)."""
    from tcnn.layers.triton import materialised_kernels as kernels

    query, key = _split(queries, keys)
    images, asked, wide = len(query), prod(sizes.query), query.shape[2] // sizes.heads
    table = query.new_empty(asked, sizes.heads, sizes.pitch, dtype=torch.float32)
    maps = query.new_empty(images, asked * sizes.heads, sizes.pitch)
    lse = query.new_empty(images, sizes.heads, asked, dtype=torch.float32)
    tiles = _tiles("forward", sizes, wide, query.element_size())
    with current_device(query.device):
        kernels.positional[(asked * sizes.heads,)](
            inputs.rows, inputs.columns, inputs.gating, inputs.temperature, table, sizes.heads, len(inputs.gating),
            sizes.query[1], *sizes.key, sizes.query[0], *sizes.padded, *sizes.origin, sizes.pitch,
            BLOCK=min(1024, power_of_two(sizes.pitch)), num_warps=1,
        )  # fmt: skip
        kernels.forward[(images * sizes.heads * -(-asked // tiles.queries),)](
            query, key, table, inputs.gating, inputs.temperature, maps, lse,
            *_strides(query, wide), *_strides(key, wide), images, sizes.heads, len(inputs.gating), asked,
            prod(sizes.key), sizes.pitch, float(sizes.sinks), sizes.scale,
            WHOLE=tiles.whole, **tiles.constants(wide, query.element_size()),
        )  # fmt: skip
    return maps, lse


def _backward(inputs: Inputs, kept: Kept, sizes: Sizes, gradient: Tensor, wanted: list[bool]) -> Gradients:
    """Gradients of the wanted ones of the inputs."""
    want = Inputs(*wanted)  # type: ignore[arg-type]
    tokens, (images, channels) = inputs.tokens, inputs.tokens.shape[::2]
    values = tokens if inputs.value is None else kept.values
    outer = gradient.contiguous().view(images * prod(sizes.query), -1)
    mixed = kept.mixed
    if want.proj and not mixed.numel():  # it was not kept
        mixed = torch.bmm(kept.maps[:, :, : prod(sizes.key)], values)
    found: dict[str, Optional] = dict.fromkeys(Inputs._fields)
    if want.bias:
        found["bias"] = outer.sum(0)
    if want.proj:
        found["proj"] = outer.t() @ mixed.view(len(outer), -1)
    del mixed
    grad_mixed = (outer @ inputs.proj).view(images, -1, channels)
    grad_maps = torch.empty_like(kept.maps)
    seen = grad_maps[:, :, : prod(sizes.key)]
    torch.bmm(grad_mixed, values.transpose(1, 2), out=seen)
    grad_values = torch.bmm(kept.maps[:, :, : prod(sizes.key)].transpose(1, 2), grad_mixed).flatten(0, 1)
    del grad_mixed
    grad_queries, grad_keys, factors = _gradients(inputs, kept, sizes, grad_maps, want)
    del grad_maps
    found |= dict(zip(("rows", "columns", "gating"), factors, strict=True))
    flat = tokens.flatten(0, 1)
    if want.value:
        found["value"] = grad_values.t() @ flat
    if inputs.value is not None and (want.tokens or want.asking):
        grad_values = grad_values @ inputs.value
    if inputs.asking is None:
        stacked = inputs.query if inputs.key is None else torch.cat((inputs.query, inputs.key))
        if want.tokens:
            found["tokens"] = torch.addmm(grad_values, grad_queries, stacked).view_as(tokens)
        if want.query or want.key:
            both = grad_queries.t() @ flat
            found |= {"query": both} if inputs.key is None else dict(zip(("query", "key"), both.chunk(2), strict=True))
    else:
        assert inputs.key is not None  # noqa: S101 - as above
        if want.tokens:
            found["tokens"] = torch.addmm(grad_values, grad_keys, inputs.key).view_as(tokens)
        if want.asking:
            found["asking"] = (grad_queries @ inputs.query).view_as(inputs.asking)
        found["query"] = grad_queries.t() @ inputs.asking.flatten(0, 1) if want.query else None
        found["key"] = grad_keys.t() @ flat if want.key else None
    return tuple(found.values())


def _gradients(
    inputs: Inputs, kept: Kept, sizes: Sizes, grad_maps: Tensor, want: Any
) -> tuple[Tensor, Tensor, Gradients]:
    """Gradients of queries and keys, laid out as they are, (B·M, …) and (B·R, …), and of rows, columns and λ."""
    from tcnn.layers.triton import materialised_kernels as kernels

    grad_queries, grad_keys = torch.empty_like(kept.queries), torch.empty_like(kept.keys)
    (query, key), (of_query, of_key) = _split(kept.queries, kept.keys), _split(grad_queries, grad_keys)
    images, wide = len(query), query.shape[2] // sizes.heads
    tiles = _tiles("backward_keys", sizes, wide, query.element_size())
    few = tiles if tiles.whole else _tiles("backward_queries", sizes, wide, query.element_size())
    blocks = 1 if tiles.whole else -(-prod(sizes.query) // few.queries)
    expected, sums = torch.empty_like(kept.lse), kept.lse.new_empty(images, sizes.heads, blocks)
    given = query, key, inputs.gating, inputs.temperature, grad_maps, kept.lse, expected, sums
    strides = *_strides(query, wide), *_strides(key, wide)
    rest = sizes.heads, len(inputs.gating), prod(sizes.query), prod(sizes.key), sizes.pitch, sizes.scale
    with current_device(query.device):
        if not tiles.whole:
            kernels.backward_queries[(images * sizes.heads * blocks,)](
                *given, of_query, *strides, *of_query.stride()[:2], *rest,
                **few.constants(wide, query.element_size()),
            )  # fmt: skip
        kernels.backward_keys[(images * sizes.heads * -(-prod(sizes.key) // tiles.keys),)](
            *given, of_query, of_key, *strides, *of_query.stride()[:2], *of_key.stride()[:2], *rest,
            WHOLE=tiles.whole, **tiles.constants(wide, query.element_size()),
        )  # fmt: skip
        factors: Gradients = None, None, None
        if want.rows or want.columns or want.gating:
            factors = _factors(inputs, sizes, grad_maps, sums)
    return grad_queries.flatten(0, 1), grad_keys.flatten(0, max(0, grad_keys.dim() - 2)), factors


def _factors(inputs: Inputs, sizes: Sizes, grad_maps: Tensor, sums: Tensor) -> Gradients:
    """Gradients of rows, columns and λ from that of the maps and the sums of Σ_r C D."""
    from tcnn.layers.triton import materialised_kernels as kernels

    heads, queries = sizes.heads, prod(sizes.query)
    row_parts, column_parts = (sums.new_empty(heads, queries, n) for n in sizes.key)
    gate_parts = sums.new_empty(heads, queries)
    high, wide = (power_of_two(n) for n in sizes.key)
    kernels.factors_of_queries[(heads * queries,)](
        grad_maps.sum(0, dtype=torch.float32), inputs.rows, inputs.columns, row_parts, column_parts, gate_parts, heads,
        *sizes.query, *sizes.key, *sizes.padded, *sizes.origin, sizes.pitch, ROWS=high, COLUMNS=wide,
        num_warps=1 if high * wide <= 512 else 4,
    )  # fmt: skip
    grads = torch.empty_like(inputs.rows), torch.empty_like(inputs.columns), torch.empty_like(inputs.gating)
    block = power_of_two(max(sizes.padded))
    tile = max(1, min(16, 4096 // block))
    kernels.factors[(heads, sum(-(-n // tile) for n in sizes.query) + 1)](
        inputs.gating, inputs.temperature, row_parts, column_parts, gate_parts, sums, *grads,
        heads, len(inputs.gating), len(grad_maps), sums.shape[2], *sizes.query, *sizes.key, *sizes.padded,
        *sizes.origin, TILE=tile, BLOCK=block, NUMBERS=1024, num_warps=4,
    )  # fmt: skip
    return grads


class _Tiles(NamedTuple):
    queries: int
    keys: int
    whole: bool
    """Whether one tile holds all keys."""
    warps: int
    stages: int = 2

    def constants(self, head_dim: int, itemsize: int) -> dict[str, int]:
        """Of a kernel's launch."""
        return {
            "QUERIES": self.queries, "KEYS": self.keys, "HEAD": head_dim, "WIDTH": width(head_dim, itemsize),
            "num_warps": self.warps, "num_stages": self.stages,
        }  # fmt: skip


def _tiles(kernel: str, sizes: Sizes, head_dim: int, itemsize: int) -> _Tiles:
    """Tile sizes: two or three tiles of a map in float32, side by side in registers, of at most 2¹⁴ numbers each."""
    wide = width(head_dim, itemsize)
    room = min(256, 2**14 // wide)
    around = power_of_two(sizes.pitch)
    whole = around <= room and kernel != "backward_queries"
    keys = around if whole else min(128, room, around)
    queries = min(64, 2**13 // keys) if kernel == "backward_keys" else 64
    if wide > 64:
        queries = min(queries, 32)
    queries = min(queries, max(16, power_of_two(prod(sizes.query))))
    return _Tiles(queries, keys, whole, 8 if keys * max(queries, wide) >= 2**13 else 4)


def _strides(tensor: Tensor, wide: int) -> tuple[int, int, int]:
    """Strides of an image, a head and a pixel of queries or keys (B, …, K·d)."""
    return tensor.stride(0), wide, tensor.stride(1)


def _flat(sizes: Sizes) -> tuple[int, list[int], int, float]:
    return (
        sizes.heads, [*sizes.query, *sizes.key, *sizes.padded, *sizes.origin], sizes.sinks, sizes.scale,
    )  # fmt: skip


def _sizes(heads: int, flat: list[int], sinks: int, scale: float) -> Sizes:
    pairs = [(flat[n], flat[n + 1]) for n in range(0, 8, 2)]
    return Sizes(heads, *pairs, sinks, scale)


@torch.library.custom_op("tcnn::materialised_attention", mutates_args=())
def materialised_attention(
    tokens: Tensor, asking: Tensor | None, query: Tensor, key: Tensor | None, value: Tensor | None, rows: Tensor,
    columns: Tensor, gating: Tensor, temperature: Tensor, proj: Tensor, bias: Tensor | None, heads: int,
    flat: list[int], sinks: int, scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """`attend` as a custom operator; returns what is `Kept`, too."""
    inputs = Inputs(tokens.contiguous(), asking, query, key, value, rows, columns, gating, temperature, proj, bias)
    out, kept = _forward(inputs, _sizes(heads, flat, sinks, scale))
    return out, *kept


@materialised_attention.register_fake
def _(
    tokens: Tensor, asking: Tensor | None, query: Tensor, key: Tensor | None, value: Tensor | None, rows: Tensor,
    columns: Tensor, gating: Tensor, temperature: Tensor, proj: Tensor, bias: Tensor | None, heads: int,
    flat: list[int], sinks: int, scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    sizes = _sizes(heads, flat, sinks, scale)
    (images, pixels, channels), asked = tokens.shape, prod(sizes.query)
    return (
        tokens.new_empty(images, asked, proj.shape[0]),
        tokens.new_empty(images, asked, query.shape[0] * (2 if asking is None and key is not None else 1)),
        tokens.new_empty(0) if asking is None or key is None else tokens.new_empty(images, pixels, key.shape[0]),
        tokens.new_empty(0) if value is None else tokens.new_empty(images, pixels, channels),
        tokens.new_empty(images, asked * heads, sizes.pitch),
        tokens.new_empty(images, asked * heads, channels),
        tokens.new_empty(images, heads, asked, dtype=torch.float32),
    )


@torch.library.custom_op("tcnn::materialised_attention_backward", mutates_args=())
def materialised_attention_backward(
    gradient: Tensor, tensors: list[Tensor], absent: list[bool], kept: list[Tensor], heads: int, flat: list[int],
    sinks: int, scale: float, wanted: list[bool],
) -> list[Tensor]:  # fmt: skip
    """Its backward pass: the wanted ones of the gradients, in order."""
    inputs = _with_absent(tensors, absent)
    found = _backward(inputs, Kept(*kept), _sizes(heads, flat, sinks, scale), gradient, wanted)
    return [one.clone() if one._is_view() else one for one in found if one is not None]


@materialised_attention_backward.register_fake
def _(
    gradient: Tensor, tensors: list[Tensor], absent: list[bool], kept: list[Tensor], heads: int, flat: list[int],
    sinks: int, scale: float, wanted: list[bool],
) -> list[Tensor]:  # fmt: skip
    given = _with_absent(tensors, absent)
    return [torch.empty_like(one) for one, wants in zip(given, wanted, strict=True) if wants]


def _with_absent(tensors: list[Tensor], absent: list[bool]) -> Inputs:
    """`Inputs` of the tensors there are: a list of an operator's arguments holds no None."""
    there = iter(tensors)
    return Inputs(*(None if missing else next(there) for missing in absent))  # type: ignore[arg-type]


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    tensors, ctx.rest = inputs[: len(Inputs._fields)], inputs[len(Inputs._fields) :]
    ctx.absent = [tensor is None for tensor in tensors]
    ctx.save_for_backward(*(tensor for tensor in tensors if tensor is not None), *output[1:])
    ctx.mark_non_differentiable(*output[1:])


def _backward_of_operator(ctx: Any, gradient: Tensor, *_: Optional) -> tuple[Optional, ...]:
    there = ctx.absent.count(False)
    tensors, kept = ctx.saved_tensors[:there], ctx.saved_tensors[there:]
    wanted = list(ctx.needs_input_grad[: len(ctx.absent)])
    found = iter(materialised_attention_backward(gradient, list(tensors), ctx.absent, list(kept), *ctx.rest, wanted))
    return *(next(found) if wants else None for wants in wanted), None, None, None, None


materialised_attention.register_autograd(_backward_of_operator, setup_context=_save_for_backward)


def _differentiable(inputs: Inputs, sizes: Sizes, gradient: Tensor, wanted: list[bool]) -> Gradients:
    """The gradients through plain operations, for second derivatives, which the kernels do not have."""
    places = Inputs(*(None if tensor is None else tensor.view_as(tensor) for tensor in inputs))  # type: ignore[arg-type]
    moving = [place for place, moves in zip(places, wanted, strict=True) if moves and place is not None]
    out = _plain(places, sizes)
    found = iter(torch.autograd.grad(out, moving, gradient, create_graph=True))
    return tuple(next(found) if moves else None for moves in wanted)


def _plain(inputs: Inputs, sizes: Sizes) -> Tensor:
    """`attend` in plain operations with full maps."""
    tokens, heads = inputs.tokens, sizes.heads
    stacked = inputs.query if inputs.key is None else torch.cat((inputs.query, inputs.key))
    if inputs.asking is None:
        query, key = F.linear(tokens, stacked).chunk(2, dim=2)
    else:
        assert inputs.key is not None  # noqa: S101 - as above
        query, key = F.linear(inputs.asking, inputs.query), F.linear(tokens, inputs.key)
    query, key = (one.unflatten(2, (heads, -1)).transpose(1, 2).float() for one in (query, key))
    logits = sizes.scale * (query @ key.mT)
    lse = logits.logsumexp(-1, keepdim=True)
    content = (logits - lse).exp() * (lse - torch.tensor(float(sizes.sinks)).log()).sigmoid()
    (top, left), (high, wide) = sizes.origin, sizes.key
    factors = inputs.rows[:, :, top : top + high], inputs.columns[:, :, left : left + wide]
    positional = torch.einsum("kiy,kjx->kijyx", *factors).flatten(3).flatten(1, 2)
    gate = torch.sigmoid(inputs.gating.float() / inputs.temperature.float())
    gate = F.pad(gate, (0, heads - len(gate)))[:, None, None]
    values = tokens if inputs.value is None else F.linear(tokens, inputs.value)
    maps = ((1 - gate) * content + gate * positional).to(values.dtype)
    mixed = torch.einsum("bkmr,brc->bmkc", maps, values).flatten(2)
    return F.linear(mixed, inputs.proj, inputs.bias)
