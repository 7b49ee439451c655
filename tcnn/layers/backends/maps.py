"""Attention maps of a chunk from its logits, and the gradient back: plain operations, or on a GPU one kernel each way.

Shapes: b images of a chunk, m queries of a chunk, K heads, R' keys.
"""

import math
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from tcnn.layers.backends.chunks import Chunk
from tcnn.layers.backends.dense import Heads
from tcnn.layers.terms.execution import at_least_float32, is_observed
from tcnn.layers.terms.products import batched
from tcnn.layers.triton import attention as triton_attention

MAX_KEYS = 8192
"""Longest row of a map that a kernel holds in registers."""


class Maps(Protocol):
    """What is between the product of queries and keys, and that of maps and values."""

    def kept(self, chunk: Chunk) -> Tensor:
        """What the other methods are given of a chunk, (b, K, m, R'), worth keeping for the backward pass."""

    def maps(self, kept: Tensor, gated: Tensor, share: Tensor, dtype: torch.dtype) -> Tensor:
        """Attention maps A_h, query-major, (b, m·K, R'), in a dtype.

        `gated` is the gated positional attention, (m, K, R'), contiguous; `share`, 1 − g, (K,).
        """

    def gradients(self, kept: Tensor, share: Tensor, grad_maps: Tensor) -> tuple[Tensor, Tensor]:
        """Gradient of the logits, (b·K, m, R'), and Σ_r C D, (b, K, m), from that of the maps, D, (b, m, K, R')."""


def maps_for(heads: Heads) -> Maps:
    """Kernels where there are any for these heads, else plain operations."""
    if heads.key.shape[2] <= MAX_KEYS and triton_attention.available(heads.query, heads.value):
        return KernelMaps(heads)
    return PlainMaps(heads)


def sink_logit(heads: Heads) -> float:
    """The logit of each sink: together they weigh as much as the padding that they represent."""
    last = heads.key.shape[2] - heads.pixels
    return math.log(heads.sinks / last) if heads.sinks else -math.inf


def content_attention(heads: Heads, chunk: Chunk, cast: Callable[[Tensor], Tensor] = lambda logits: logits) -> Tensor:
    """Softmax of a chunk's content logits, (b, K, m, R'), in the dtype to which `cast` brings them.

    Without one it is that of the product of queries and keys: PyTorch's softmax computes in float32 in any case, and to
    keep bfloat16 saves three copies of the map, there and back.
    """
    logits = cast(batched(chunk.query, chunk.key.transpose(1, 2)))
    if heads.sinks is not None:
        logits = logits.clone() if is_observed() else logits
        logits[..., heads.pixels :].fill_(sink_logit(heads))
    return torch.softmax(logits, dim=-1).unflatten(0, (-1, heads.gate.shape[0]))


class PlainMaps:
    """Plain operations, which keep the content attention in float32."""

    def __init__(self, heads: Heads) -> None:
        self._heads = heads

    def kept(self, chunk: Chunk) -> Tensor:
        return content_attention(self._heads, chunk, at_least_float32)

    def maps(self, kept: Tensor, gated: Tensor, share: Tensor, dtype: torch.dtype) -> Tensor:
        maps = kept.new_empty(kept.shape[0], *gated.shape)
        torch.addcmul(gated, share[:, None], kept.transpose(1, 2), out=maps)
        return maps.flatten(1, 2).to(dtype)

    def gradients(self, kept: Tensor, share: Tensor, grad_maps: Tensor) -> tuple[Tensor, Tensor]:
        # The softmax's own gradient: content · (grad_maps − Σ content · grad_maps), times the share of content.
        # The attention comes first in the product, whose order in memory is then its own, head-major.
        logits = kept * at_least_float32(grad_maps).transpose(1, 2)
        sums = logits.sum(-1, keepdim=True)
        logits.addcmul_(kept, sums, value=-1).mul_(share[:, None, None])
        return logits.flatten(0, 1).to(self._heads.query.dtype), sums.squeeze(-1)


class KernelMaps:
    """Kernels, which keep the logits as the product left them."""

    def __init__(self, heads: Heads) -> None:
        from tcnn.layers.triton import map_kernels as maps

        self._heads, self._kernels = heads, maps

    def kept(self, chunk: Chunk) -> Tensor:
        logits = batched(chunk.query, chunk.key.transpose(1, 2))
        return logits.unflatten(0, (-1, self._heads.gate.shape[0]))

    def maps(self, kept: Tensor, gated: Tensor, share: Tensor, dtype: torch.dtype) -> Tensor:
        pixels, sink = self._heads.pixels, sink_logit(self._heads)
        with triton_attention.current_device(kept.device):
            return self._kernels.maps_of(kept, gated.float(), share.float(), pixels, sink, dtype).flatten(1, 2)

    def gradients(self, kept: Tensor, share: Tensor, grad_maps: Tensor) -> tuple[Tensor, Tensor]:
        pixels, sink = self._heads.pixels, sink_logit(self._heads)
        with triton_attention.current_device(kept.device):
            found, sums = self._kernels.gradients_of(kept, share.float(), grad_maps.contiguous(), pixels, sink)
        return found.flatten(0, 1), sums
