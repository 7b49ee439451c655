"""Materialised attention as custom operators, one each way, for compilers, which see shapes only.

Shapes: those of `materialised`.
"""

from math import prod
from typing import Any

import torch
from torch import Tensor

from tcnn.layers.terms.execution import without_autocast
from tcnn.layers.triton import materialised
from tcnn.layers.triton.materialised_inputs import MATRICES, Inputs, Kept, Sizes

Seven = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
Eight = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def attend(inputs: Inputs, sizes: Sizes) -> Tensor:
    """`materialised.attend` for a compiler."""
    like = inputs.tokens.dtype
    inputs = Inputs(  # and not `_replace`, which torch 2.8's compiler does not know
        *(  # type: ignore[arg-type]
            one.to(like) if name in MATRICES and one is not None else one
            for name, one in zip(Inputs._fields, inputs, strict=True)
        )
    )
    heads, *pairs, sinks, scale = sizes
    flat = [n for pair in pairs for n in pair]
    out: Tensor = materialised_attention(*inputs, heads, flat, sinks, scale)[0]
    return out


def _sizes(heads: int, flat: list[int], sinks: int, scale: float) -> Sizes:
    pairs = [(flat[n], flat[n + 1]) for n in range(0, len(flat), 2)]
    query, key, padded, origin, first, stride = pairs
    return Sizes(heads, query, key, padded, origin, first, stride, sinks, scale)


@torch.library.custom_op("tcnn::materialised_attention", mutates_args=())
def materialised_attention(
    tokens: Tensor, asking: Tensor | None, query: Tensor, key: Tensor | None, value: Tensor | None, gating: Tensor,
    gate_temperature: Tensor, raws: Tensor, centres: Tensor, temperature: Tensor, proj: Tensor, bias: Tensor | None,
    heads: int, flat: list[int], sinks: int, scale: float,
) -> Eight:  # fmt: skip
    """Output tokens, and what is `Kept`, the tokens only where they were padded."""
    inputs = Inputs(
        tokens, asking, query, key, value, gating, gate_temperature, raws, centres, temperature, proj, bias
    )  # fmt: skip
    with without_autocast(tokens.device.type):
        out, kept = materialised.forward(inputs, _sizes(heads, flat, sinks, scale))
    return out, *(kept._replace(tokens=tokens.new_empty(0)) if kept.tokens is tokens else kept)


@materialised_attention.register_fake
def _(
    tokens: Tensor, asking: Tensor | None, query: Tensor, key: Tensor | None, value: Tensor | None, gating: Tensor,
    gate_temperature: Tensor, raws: Tensor, centres: Tensor, temperature: Tensor, proj: Tensor, bias: Tensor | None,
    heads: int, flat: list[int], sinks: int, scale: float,
) -> Eight:  # fmt: skip
    sizes = _sizes(heads, flat, sinks, scale)
    (images, pixels, channels), asked, pitch = tokens.shape, prod(sizes.query), sizes.pitch
    apart, doubled = asking is not None, asking is None and key is not None
    unpadded = pixels == pitch and tokens.is_contiguous()
    return (
        tokens.new_empty(images, asked, proj.shape[0]),
        tokens.new_empty(0) if unpadded else tokens.new_empty(images, pitch, channels),
        tokens.new_empty(images, asked if apart else pitch, query.shape[0] * (2 if doubled else 1)),
        tokens.new_empty(images, pitch, query.shape[0]) if apart else tokens.new_empty(0),
        tokens.new_empty(0) if value is None else tokens.new_empty(images, pitch, channels),
        tokens.new_empty(images, asked * heads, pitch),
        tokens.new_empty(images, asked * heads, channels),
        tokens.new_empty(images, heads, asked, dtype=torch.float32),
    )


@torch.library.custom_op("tcnn::materialised_attention_backward", mutates_args=())
def materialised_attention_backward(
    gradient: Tensor, tensors: list[Tensor], absent: list[bool], kept: list[Tensor], heads: int, flat: list[int],
    sinks: int, scale: float, wanted: list[bool],
) -> list[Tensor]:  # fmt: skip
    """The wanted ones of the gradients, in order."""
    inputs, found = _with_absent(tensors, absent), Kept(*kept)
    found = found if found.tokens.numel() else found._replace(tokens=inputs.tokens)
    with without_autocast(gradient.device.type):
        gradients = materialised.backward(inputs, found, _sizes(heads, flat, sinks, scale), gradient, wanted)
    return [one.clone() if one._is_view() else one for one in gradients if one is not None]


@materialised_attention_backward.register_fake
def _(
    gradient: Tensor, tensors: list[Tensor], absent: list[bool], kept: list[Tensor], heads: int, flat: list[int],
    sinks: int, scale: float, wanted: list[bool],
) -> list[Tensor]:  # fmt: skip
    given = _with_absent(tensors, absent)
    return [
        torch.empty_like(one, memory_format=torch.contiguous_format)
        for one, wants in zip(given, wanted, strict=True)
        if wants and one is not None
    ]


def _with_absent(tensors: list[Tensor], absent: list[bool]) -> Inputs:
    """`Inputs` of the tensors there are: a list of an operator's arguments holds no None."""
    there = iter(tensors)
    return Inputs(*(None if missing else next(there) for missing in absent))  # type: ignore[arg-type]


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    tensors, ctx.rest = inputs[: len(Inputs._fields)], inputs[len(Inputs._fields) :]
    ctx.absent = [tensor is None for tensor in tensors]
    ctx.save_for_backward(*(tensor for tensor in tensors if tensor is not None), *output[1:])
    ctx.mark_non_differentiable(*output[1:])


def _backward(ctx: Any, gradient: Tensor, *_: Tensor | None) -> tuple[Tensor | None, ...]:
    there = ctx.absent.count(False)
    tensors, kept = ctx.saved_tensors[:there], ctx.saved_tensors[there:]
    wanted = list(ctx.needs_input_grad[: len(ctx.absent)])
    found = iter(materialised_attention_backward(gradient, list(tensors), ctx.absent, list(kept), *ctx.rest, wanted))
    return *(next(found) if wants else None for wants in wanted), None, None, None, None


materialised_attention.register_autograd(_backward, setup_context=_save_for_backward)
