"""Materialised attention in plain operations, for second derivatives, which its kernels do not have.

Shapes: those of `materialised`.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from tcnn.layers.terms.isotropic import strength_of
from tcnn.layers.terms.positions import axis_attention, without_traces
from tcnn.layers.triton.launches import Sizes

if TYPE_CHECKING:
    from tcnn.layers.triton.materialised import Inputs


def differentiable_gradients(
    inputs: "Inputs", sizes: Sizes, gradient: Tensor, wanted: list[bool]
) -> tuple[Tensor | None, ...]:
    """Gradients of the wanted ones of the inputs, by autograd through `attend`; None of the others."""
    places = [None if tensor is None else tensor.view_as(tensor) for tensor in inputs]
    moving = [place for place, moves in zip(places, wanted, strict=True) if moves and place is not None]
    placed = inputs._replace(**dict(zip(inputs._fields, places, strict=True)))  # type: ignore[arg-type]
    out = attend(placed, sizes)
    found = iter(torch.autograd.grad(out, moving, gradient, create_graph=True))
    return tuple(next(found) if moves else None for moves in wanted)


def attend(inputs: "Inputs", sizes: Sizes) -> Tensor:
    """Output tokens (B, M, C_out), with whole maps in float32."""
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
