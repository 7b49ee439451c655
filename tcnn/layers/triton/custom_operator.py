"""Materialised attention as operators, one each way, for compilers.

A compiler sees shapes only. With `TCNN_TRANSPARENT_OPERATORS=1`, and where it knows every size, it sees what is in an
operator, products and Triton's kernels: it then launches them itself, which takes no Python, and joins what it has to
compute anyway (padding, gradients that are added) to kernels of its own. That is off, because it has been traced and
not yet been run on a GPU; `make gpu` measures both.

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

_SIZES = "int heads, SymInt[] flat, SymInt sinks, float scale"
_FORWARD = (
    "(Tensor tokens, Tensor? asking, Tensor query, Tensor? key, Tensor? value, Tensor gating, Tensor gate_temperature, "
    f"Tensor raws, Tensor centres, Tensor temperature, Tensor proj, Tensor? bias, {_SIZES}) "
    f"-> ({', '.join(['Tensor'] * (1 + len(Kept._fields)))})"
)
_BACKWARD = f"(Tensor gradient, Tensor[] tensors, bool[] absent, Tensor[] kept, {_SIZES}, bool[] wanted) -> Tensor[]"


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


def _sizes(heads: int, flat: Sequence[int], sinks: int, scale: float) -> Sizes:
    query, key, padded, origin, first, stride = ((flat[n], flat[n + 1]) for n in range(0, len(flat), 2))
    return Sizes(heads, query, key, padded, origin, first, stride, sinks, scale)


def _transparent(sizes: Sequence[int], *tensors: Optional) -> bool:
    """Whether a compiler is to see what is in the operator: all sizes are numbers then, on which tiles depend."""
    if os.environ.get("TCNN_TRANSPARENT_OPERATORS") != "1" or os.environ.get("TRITON_INTERPRET") == "1":
        return False
    every = [*sizes, *(n for tensor in tensors if tensor is not None for n in tensor.shape)]
    return not any(isinstance(n, torch.SymInt) for n in every)


def _forward(given: Sequence[Any], launcher: launches.Launcher) -> tuple[Tensor, ...]:
    """Output tokens, and what is `Kept`, the tokens only where they were padded."""
    inputs, sizes = Inputs(*given[: len(Inputs._fields)]), _sizes(*given[len(Inputs._fields) :])
    with without_autocast(inputs.tokens.device.type):
        out, kept = materialised.forward(inputs, sizes, launcher)
    return out, *(kept._replace(tokens=out.new_empty(0)) if _unpadded(inputs.tokens, sizes) else kept)


def _unpadded(tokens: Tensor, sizes: Sizes) -> bool:
    """Whether tokens are used as they are: an operator must not return what it was given."""
    return bool(tokens.shape[1] == sizes.pitch and tokens.is_contiguous())


def _opaque_forward(*given: Any) -> tuple[Tensor, ...]:
    return _forward(given, launches.itself)


def _open_forward(*given: Any) -> tuple[Tensor, ...]:
    heads, flat, *rest = given[len(Inputs._fields) :]
    if _transparent((*flat, rest[0]), *given[: len(Inputs._fields)]):
        return _forward(given, wrap_triton)
    found: tuple[Tensor, ...] = opaque_materialised_attention(*given)
    return found


opaque_materialised_attention = custom_op(
    "tcnn::opaque_materialised_attention", _opaque_forward, mutates_args=(), schema=_FORWARD
)
materialised_attention = triton_op("tcnn::materialised_attention", _open_forward, mutates_args=(), schema=_FORWARD)


@opaque_materialised_attention.register_fake
def _(*given: Any) -> tuple[Tensor, ...]:
    inputs, sizes = Inputs(*given[: len(Inputs._fields)]), _sizes(*given[len(Inputs._fields) :])
    tokens, asked, pitch, width = inputs.tokens, prod(sizes.query), sizes.pitch, inputs.query.shape[0]
    images, _, channels = tokens.shape
    apart, doubled = inputs.asking is not None, inputs.asking is None and inputs.key is not None
    return (
        tokens.new_empty(images, asked, inputs.proj.shape[0]),
        tokens.new_empty(0) if _unpadded(tokens, sizes) else tokens.new_empty(images, pitch, channels),
        tokens.new_empty(images, asked if apart else pitch, width * (2 if doubled else 1)),
        tokens.new_empty(images, pitch, width) if apart else tokens.new_empty(0),
        tokens.new_empty(0) if inputs.value is None else tokens.new_empty(images, pitch, channels),
        tokens.new_empty(images, asked * sizes.heads, pitch),
        tokens.new_empty(images, asked * sizes.heads, channels),
        tokens.new_empty(images, sizes.heads, asked, dtype=torch.float32),
    )


def _backward(
    launcher: launches.Launcher, gradient: Tensor, tensors: list[Tensor], absent: list[bool], kept: list[Tensor],
    heads: int, flat: list[int], sinks: int, scale: float, wanted: list[bool],
) -> list[Tensor]:  # fmt: skip
    """The wanted ones of the gradients, in order."""
    inputs, found = _with_absent(tensors, absent), Kept(*kept)
    found = found if found.tokens.numel() else found._replace(tokens=inputs.tokens)
    with without_autocast(gradient.device.type):
        gradients = materialised.backward(inputs, found, _sizes(heads, flat, sinks, scale), gradient, wanted, launcher)
    return [one.clone() if one._is_view() else one for one in gradients if one is not None]


def _opaque_backward(*given: Any) -> list[Tensor]:
    return _backward(launches.itself, *given)


def _open_backward(*given: Any) -> list[Tensor]:
    gradient, tensors, _, kept, _, flat, sinks, *_ = given
    if _transparent((*flat, sinks), gradient, *tensors, *kept):
        return _backward(wrap_triton, *given)
    found: list[Tensor] = opaque_materialised_attention_backward(*given)
    return found


opaque_materialised_attention_backward = custom_op(
    "tcnn::opaque_materialised_attention_backward", _opaque_backward, mutates_args=(), schema=_BACKWARD
)
materialised_attention_backward = triton_op(
    "tcnn::materialised_attention_backward", _open_backward, mutates_args=(), schema=_BACKWARD
)


@opaque_materialised_attention_backward.register_fake
def _(gradient: Tensor, tensors: list[Tensor], absent: list[bool], *rest: Any) -> list[Tensor]:
    return [
        torch.empty_like(one, memory_format=torch.contiguous_format)
        for one, wants in zip(_with_absent(tensors, absent), rest[-1], strict=True)
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


def _gradients(ctx: Any, gradient: Tensor, *_: Tensor | None) -> tuple[Tensor | None, ...]:
    there = ctx.absent.count(False)
    tensors, kept = ctx.saved_tensors[:there], ctx.saved_tensors[there:]
    wanted = list(ctx.needs_input_grad[: len(ctx.absent)])
    found = iter(materialised_attention_backward(gradient, list(tensors), ctx.absent, list(kept), *ctx.rest, wanted))
    return *(next(found) if wants else None for wants in wanted), None, None, None, None


materialised_attention.register_autograd(_gradients, setup_context=_save_for_backward)  # type: ignore[attr-defined]
