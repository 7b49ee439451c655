"""Materialised attention as operators, one each way, for compilers.

A compiler sees shapes only. With `TCNN_TRANSPARENT_OPERATORS=1`, and where it knows every size, it sees what is in an
operator, products and Triton's kernels: it then launches them itself, which takes no Python, and joins what it has to
compute anyway (padding, gradients that are added) to kernels of its own. That is off, because it has not been measured
on a GPU; `make gpu` measures both. Which of the two is wanted is an argument of the operator and so a part of the
graph: compilers keep what they made of a graph, for other processes too, and know no variables of the environment.

Shapes: those of `materialised`.
"""

import os
from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op, triton_op, wrap_triton

from tcnn.layers.terms.execution import without_autocast
from tcnn.layers.triton import launches, materialised
from tcnn.layers.triton.materialised_inputs import MATRICES, Inputs, Kept, Optional, Sizes

Eight = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
"""Output tokens, and what is `Kept`."""


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
    transparent = os.environ.get("TCNN_TRANSPARENT_OPERATORS") == "1"
    out: Tensor = materialised_attention(*inputs, heads, flat, sinks, scale, transparent)[0]
    return out


def _sizes(heads: int, flat: Sequence[int], sinks: int, scale: float) -> Sizes:
    query, key, padded, origin, first, stride = ((flat[n], flat[n + 1]) for n in range(0, len(flat), 2))
    return Sizes(heads, query, key, padded, origin, first, stride, sinks, scale)


def _transparent(sizes: Sequence[int], *tensors: Optional) -> bool:
    """Whether a compiler can see what is in the operator: all sizes are numbers then, on which tiles depend."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        return False
    every = [*sizes, *(n for tensor in tensors if tensor is not None for n in tensor.shape)]
    return not any(isinstance(n, torch.SymInt) for n in every)


def _forward(inputs: Inputs, sizes: Sizes, launcher: launches.Launcher) -> Eight:
    """`materialised.forward`, the tokens only where they were padded: an operator must not return what it was given."""
    with without_autocast(inputs.tokens.device.type):
        out, kept = materialised.forward(inputs, sizes, launcher)
    return out, *(kept._replace(tokens=out.new_empty(0)) if _unpadded(inputs.tokens, sizes) else kept)


def _unpadded(tokens: Tensor, sizes: Sizes) -> bool:
    return bool(tokens.shape[1] == sizes.pitch and tokens.is_contiguous())


@custom_op("tcnn::opaque_materialised_attention", mutates_args=())
def opaque_materialised_attention(
    tokens: Tensor, asking: Tensor | None, query: Tensor, key: Tensor | None, value: Tensor | None, gating: Tensor,
    gate_temperature: Tensor, raws: Tensor, centres: Tensor, temperature: Tensor, proj: Tensor, bias: Tensor | None,
    heads: int, flat: list[int], sinks: int, scale: float,
) -> Eight:  # fmt: skip
    """`materialised.forward`, of which a compiler sees the shapes."""
    inputs = Inputs(
        tokens, asking, query, key, value, gating, gate_temperature, raws, centres, temperature, proj, bias
    )  # fmt: skip
    return _forward(inputs, _sizes(heads, flat, sinks, scale), launches.itself)


@opaque_materialised_attention.register_fake
def _(
    tokens: Tensor, asking: Tensor | None, query: Tensor, key: Tensor | None, value: Tensor | None, gating: Tensor,
    gate_temperature: Tensor, raws: Tensor, centres: Tensor, temperature: Tensor, proj: Tensor, bias: Tensor | None,
    heads: int, flat: list[int], sinks: int, scale: float,
) -> Eight:  # fmt: skip
    sizes = _sizes(heads, flat, sinks, scale)
    (images, _, channels), asked, pitch, width = tokens.shape, prod(sizes.query), sizes.pitch, query.shape[0]
    apart, doubled = asking is not None, asking is None and key is not None
    return (
        tokens.new_empty(images, asked, proj.shape[0]),
        tokens.new_empty(0) if _unpadded(tokens, sizes) else tokens.new_empty(images, pitch, channels),
        tokens.new_empty(images, asked if apart else pitch, width * (2 if doubled else 1)),
        tokens.new_empty(images, pitch, width) if apart else tokens.new_empty(0),
        tokens.new_empty(0) if value is None else tokens.new_empty(images, pitch, channels),
        tokens.new_empty(images, asked * heads, pitch),
        tokens.new_empty(images, asked * heads, channels),
        tokens.new_empty(images, heads, asked, dtype=torch.float32),
    )


@triton_op("tcnn::materialised_attention", mutates_args=())
def materialised_attention(
    tokens: Tensor, asking: Tensor | None, query: Tensor, key: Tensor | None, value: Tensor | None, gating: Tensor,
    gate_temperature: Tensor, raws: Tensor, centres: Tensor, temperature: Tensor, proj: Tensor, bias: Tensor | None,
    heads: int, flat: list[int], sinks: int, scale: float, transparent: bool,
) -> Eight:  # fmt: skip
    """The same, transparent where that is wanted and possible."""
    inputs = Inputs(
        tokens, asking, query, key, value, gating, gate_temperature, raws, centres, temperature, proj, bias
    )  # fmt: skip
    if transparent and _transparent((*flat, sinks), *inputs):
        return _forward(inputs, _sizes(heads, flat, sinks, scale), wrap_triton)
    found: Eight = opaque_materialised_attention(*inputs, heads, flat, sinks, scale)
    return found


def _backward(
    inputs: Inputs, kept: Kept, sizes: Sizes, gradient: Tensor, wanted: list[bool], launcher: launches.Launcher
) -> list[Tensor]:
    """The wanted ones of the gradients, in order."""
    kept = kept if kept.tokens.numel() else kept._replace(tokens=inputs.tokens)
    with without_autocast(gradient.device.type):
        gradients = materialised.backward(inputs, kept, sizes, gradient, wanted, launcher)
    return [one.clone() if one._is_view() else one for one in gradients if one is not None]


@custom_op("tcnn::opaque_materialised_attention_backward", mutates_args=())
def opaque_materialised_attention_backward(
    gradient: Tensor, tensors: list[Tensor], absent: list[bool], kept: list[Tensor], heads: int, flat: list[int],
    sinks: int, scale: float, wanted: list[bool],
) -> list[Tensor]:  # fmt: skip
    """`materialised.backward`, of which a compiler sees the shapes."""
    inputs, sizes = _with_absent(tensors, absent), _sizes(heads, flat, sinks, scale)
    return _backward(inputs, Kept(*kept), sizes, gradient, wanted, launches.itself)


@opaque_materialised_attention_backward.register_fake
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


@triton_op("tcnn::materialised_attention_backward", mutates_args=())
def materialised_attention_backward(
    gradient: Tensor, tensors: list[Tensor], absent: list[bool], kept: list[Tensor], heads: int, flat: list[int],
    sinks: int, scale: float, transparent: bool, wanted: list[bool],
) -> list[Tensor]:  # fmt: skip
    """The same, transparent where that is wanted and possible."""
    if transparent and _transparent((*flat, sinks), gradient, *tensors, *kept):
        inputs, sizes = _with_absent(tensors, absent), _sizes(heads, flat, sinks, scale)
        return _backward(inputs, Kept(*kept), sizes, gradient, wanted, wrap_triton)
    found: list[Tensor] = opaque_materialised_attention_backward(
        gradient, tensors, absent, kept, heads, flat, sinks, scale, wanted
    )
    return found


def _with_absent(tensors: list[Tensor], absent: list[bool]) -> Inputs:
    """`Inputs` of the tensors there are: a list of an operator's arguments holds no None."""
    there = iter(tensors)
    return Inputs(*(None if missing else next(there) for missing in absent))  # type: ignore[arg-type]


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    tensors, ctx.rest = inputs[: len(Inputs._fields)], inputs[len(Inputs._fields) :]
    ctx.absent = [tensor is None for tensor in tensors]
    ctx.save_for_backward(*(tensor for tensor in tensors if tensor is not None), *output[1:])
    ctx.mark_non_differentiable(*output[1:])


def _differentiate(ctx: Any, gradient: Tensor, *_: Tensor | None) -> tuple[Tensor | None, ...]:
    there = ctx.absent.count(False)
    tensors, kept = ctx.saved_tensors[:there], ctx.saved_tensors[there:]
    wanted = list(ctx.needs_input_grad[: len(ctx.absent)])
    found = iter(materialised_attention_backward(gradient, list(tensors), ctx.absent, list(kept), *ctx.rest, wanted))
    return *(next(found) if wants else None for wants in wanted), None, None, None, None, None


materialised_attention.register_autograd(_differentiate, setup_context=_save_for_backward)
