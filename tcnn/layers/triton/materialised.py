"""A layer's attention on a GPU with its maps in memory, once and in 16 bits: few launches, each near what it must move.

From tokens to output tokens: projections and products with maps are the library's; what is between are two Triton
kernels forward and three or four backward (`launches.py`). The backward pass is written by hand, so that autograd
neither cuts nor copies, and a training step takes some thirty launches where operation by operation takes a hundred:
with small maps the host's time is all that counts. Compilers see one custom operator each way (`custom_operator.py`).

Shapes: B images, C channels, h×w keys, R = h·w, M queries, K heads, P of them with a positional part, d head width. A
row of a map takes R' numbers, R rounded up to a multiple of 16, and tokens have R' rows, the last ones zeros: products
whose sides are no multiples of 8 take three times as long (measured on an H100).
"""

from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tcnn.layers.terms.execution import differentiable_gradients, differentiated_by_pytorch, without_autocast
from tcnn.layers.terms.isotropic import strength_of
from tcnn.layers.terms.positions import axis_attention, without_traces
from tcnn.layers.triton import launches
from tcnn.layers.triton.materialised_inputs import Inputs, Kept, Optional, Sizes, of_one_dtype


def attend(inputs: Inputs, sizes: Sizes, keep_mixed: bool = True) -> Tensor:
    """Output tokens (B, M, C_out) in the dtype of the tokens (Transformed CNNs, Eq. 4–7), W_out and bias included.

    `keep_mixed`: whether the mixed values are kept for the backward pass; else they are computed again.
    """
    with without_autocast(inputs.tokens.device.type):
        found: Tensor = _Attention.apply(*inputs, sizes, keep_mixed)
        return found


class _Attention(torch.autograd.Function):
    """Eager execution, without what a custom operator costs the host."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:
        *tensors, ctx.sizes, keep_mixed = given
        used = of_one_dtype(Inputs(*tensors))
        out, kept = forward(used, ctx.sizes)
        ctx.save_for_backward(*used, *(kept if keep_mixed else kept._replace(mixed=out.new_empty(0))))
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Optional, ...]:
        (gradient,), saved = gradients, ctx.saved_tensors  # read once: checkpointing unpacks what is read
        inputs, kept = Inputs(*saved[: len(Inputs._fields)]), Kept(*saved[len(Inputs._fields) :])
        wanted = list(ctx.needs_input_grad[:-2])
        with without_autocast(gradient.device.type):
            if differentiated_by_pytorch(gradient):

                def plain(*places: Any) -> Tensor:
                    return _plain(Inputs(*places), ctx.sizes)

                return *differentiable_gradients(plain, inputs, wanted, gradient), None, None
            return *backward(inputs, kept, ctx.sizes, gradient, wanted), None, None


def forward(inputs: Inputs, sizes: Sizes, launcher: launches.Launcher = launches.itself) -> tuple[Tensor, Kept]:
    """Output tokens, and what the backward pass needs."""
    tokens = _padded(inputs.tokens, sizes.pitch)
    if inputs.asking is None:
        queries, keys = F.linear(tokens, inputs.stacked), tokens.new_empty(0)
    else:
        assert inputs.key is not None  # noqa: S101 - it is stacked only where queries are keys
        queries, keys = F.linear(inputs.asking, inputs.query), F.linear(tokens, inputs.key)
    values = tokens if inputs.value is None else F.linear(tokens, inputs.value)
    maps, lse = launches.maps(queries, keys, inputs.position, sizes, launcher)
    mixed = torch.bmm(maps, values)
    out = F.linear(mixed.view(len(tokens) * prod(sizes.query), -1), inputs.proj, inputs.bias)
    values = tokens.new_empty(0) if inputs.value is None else values
    return out.view(len(tokens), prod(sizes.query), -1), Kept(tokens, queries, keys, values, maps, mixed, lse)


def _padded(tokens: Tensor, rows: int) -> Tensor:
    """Tokens, and zeros up to so many rows; contiguous."""
    more = rows - tokens.shape[1]
    return F.pad(tokens, (0, 0, 0, more)) if more else tokens.contiguous()


def backward(
    inputs: Inputs, kept: Kept, sizes: Sizes, gradient: Tensor, wanted: list[bool],
    launcher: launches.Launcher = launches.itself,
) -> tuple[Optional, ...]:  # fmt: skip
    """Gradients of the wanted ones of the inputs, None of the others; that of the tokens is cut out of a larger one."""
    want = Inputs(*wanted)  # type: ignore[arg-type]
    tokens, (images, _, channels) = kept.tokens, kept.tokens.shape
    values = tokens if inputs.value is None else kept.values
    outer = gradient.contiguous().view(images * prod(sizes.query), -1)
    found: dict[str, Optional] = dict.fromkeys(Inputs._fields)
    if want.bias:
        found["bias"] = outer.sum(0)
    if want.proj:
        mixed = kept.mixed if kept.mixed.numel() else torch.bmm(kept.maps, values)
        found["proj"] = outer.t() @ mixed.view(len(outer), -1)
        del mixed
    grad_mixed = (outer @ inputs.proj).view(images, -1, channels)
    grad_maps = torch.bmm(grad_mixed, values.transpose(1, 2))
    grad_values = torch.bmm(kept.maps.transpose(1, 2), grad_mixed).flatten(0, 1)
    del grad_mixed
    moving = bool(want.gating or want.raws or want.centres)
    grad_queries, grad_keys, of_position = launches.gradients(
        kept.queries, kept.keys, inputs.position, grad_maps, kept.lse, sizes, moving, launcher
    )
    del grad_maps
    if of_position is not None:
        found |= dict(zip(("gating", "raws", "centres"), of_position, strict=True))
    flat, grad_queries = tokens.flatten(0, 1), grad_queries.flatten(0, 1)
    if want.value:
        found["value"] = grad_values.t() @ flat
    if inputs.value is not None and want.tokens:
        grad_values = grad_values @ inputs.value
    if inputs.asking is None:
        if want.tokens:
            found["tokens"] = torch.addmm(grad_values, grad_queries, inputs.stacked)
        if want.query or want.key:
            both = grad_queries.t() @ flat
            found |= {"query": both} if inputs.key is None else dict(zip(("query", "key"), both.chunk(2), strict=True))
    else:
        assert inputs.key is not None  # noqa: S101 - as above
        grad_keys = grad_keys.flatten(0, 1)
        if want.tokens:
            found["tokens"] = torch.addmm(grad_values, grad_keys, inputs.key)
        if want.asking:
            found["asking"] = (grad_queries @ inputs.query).view_as(inputs.asking)
        found["query"] = grad_queries.t() @ inputs.asking.flatten(0, 1) if want.query else None
        found["key"] = grad_keys.t() @ flat if want.key else None
    if (whole := found["tokens"]) is not None:
        found["tokens"] = whole.view_as(tokens).narrow(1, 0, prod(sizes.key))
    return tuple(found.values())


def _plain(inputs: Inputs, sizes: Sizes) -> Tensor:
    """`attend` in plain operations, with whole maps in float32."""
    tokens, heads = inputs.tokens, sizes.heads
    if inputs.asking is None:
        query, key = F.linear(tokens, inputs.stacked).chunk(2, dim=2)
    else:
        assert inputs.key is not None  # noqa: S101 - it is stacked only where queries are keys
        query, key = F.linear(inputs.asking, inputs.query), F.linear(tokens, inputs.key)
    query, key = (one.unflatten(2, (heads, -1)).transpose(1, 2).float() for one in (query, key))
    logits = sizes.scale * (query @ key.mT)
    lse = logits.logsumexp(-1, keepdim=True)
    content = (logits - lse).exp() * (lse - torch.tensor(float(sizes.sinks)).log()).sigmoid()
    strength, centres = strength_of(inputs.raws) / inputs.temperature.float(), inputs.centres.float()
    factors = []
    for axis in (0, 1):
        queries = sizes.first[axis] + sizes.stride[axis] * torch.arange(sizes.query[axis], device=tokens.device)
        whole = without_traces(axis_attention(strength, centres[:, axis], queries.float(), sizes.padded[axis]))
        factors.append(whole[:, :, sizes.origin[axis] : sizes.origin[axis] + sizes.key[axis]])
    positional = torch.einsum("kiy,kjx->kijyx", *factors).flatten(3).flatten(1, 2)
    gated = torch.sigmoid(inputs.gating.float() / inputs.gate_temperature.float())
    others = heads - len(gated)
    gate = F.pad(gated, (0, others))[:, None, None]
    positional = F.pad(positional, (0, 0, 0, 0, 0, others))
    values = tokens if inputs.value is None else F.linear(tokens, inputs.value)
    maps = ((1 - gate) * content + gate * positional).to(values.dtype)
    mixed = torch.einsum("bkmr,brc->bmkc", maps, values).flatten(2)
    return F.linear(mixed, inputs.proj, inputs.bias)
