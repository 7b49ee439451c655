"""Record the attention of timm's models (ViT, DeiT, ConViT), so that a T-CNN can be compared with them.

timm computes most attention by torch's `scaled_dot_product_attention`, which never returns its map. That function is
intercepted during a forward pass: its queries and keys suffice, whatever norms, rotations or biases a model has applied
to them. ConViT's layers do not use it; their projections are read instead.

Shapes: B images, K heads, d head width, N tokens = P prefix tokens + H·W patches.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from timm.models.convit import GPSA, MHSA
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from tcnn.analysis.recorded import Grid, RecordedLayer
from tcnn.layers.convit import axis_attention
from tcnn.layers.gpsa import GPSA2d
from tcnn.layers.terms.execution import at_least_float32
from tcnn.layers.terms.positions import Pair

MAX_PREFIX_TOKENS = 32
"""Largest number of prefix tokens; with more, the tokens are not the expected map."""


class AttentionRecorder(TorchFunctionMode):
    """Calls `found(name, query, key, bias)` for every scaled dot-product attention inside a named layer."""

    def __init__(self, found: Callable[[str, Tensor, Tensor, Tensor | None], None]) -> None:
        super().__init__()
        self.found = found
        self.inside: str | None = None

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = dict(kwargs or {})
        if func is F.scaled_dot_product_attention and self.inside is not None:
            names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
            self._note(**{**dict(zip(names, args, strict=False)), **options})
        return func(*args, **options)

    def _note(
        self, query: Tensor, key: Tensor, attn_mask: Tensor | None = None, scale: float | None = None, **rest: Any
    ) -> None:
        if rest.get("is_causal") or query.dim() != 4 or self.inside is None:
            return
        if scale is not None:
            query = query * (scale * query.shape[-1] ** 0.5)
        if key.shape[1] != query.shape[1]:  # grouped-query attention: several heads share a key
            key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
        self.found(self.inside, query, key, _additive(attn_mask))


def _additive(mask: Tensor | None) -> Tensor | None:
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, device=mask.device).masked_fill(~mask, float("-inf"))


@contextmanager
def record_timm(model: nn.Module, grid: Pair | None, keep: Callable[[RecordedLayer], None]) -> Iterator[None]:
    """Context that calls `keep` with every global attention layer of timm while the model runs.

    `grid` is the number of patches (H, W); None where the model has no such map, and then nothing is recorded. Layers
    that attend within windows, or to another map, are skipped.
    """
    if grid is None:
        yield
        return
    watched = AttentionRecorder(lambda name, *tensors: _keep(keep, _content_layer(name, grid, *tensors)))
    modules = {name: module for name, module in model.named_modules() if not isinstance(module, GPSA2d)}
    fused = [module for module in modules.values() if getattr(module, "fused_attn", None) is False]
    handles = []
    for name, module in modules.items():
        if isinstance(module, GPSA | MHSA):
            read = _convit_gpsa if isinstance(module, GPSA) else _convit_mhsa
            handles.append(
                module.register_forward_hook(
                    lambda layer, args, out, name=name, read=read: _keep(keep, read(name, layer, args[0], grid))
                )
            )
        elif hasattr(module, "fused_attn"):
            handles.append(
                module.register_forward_pre_hook(lambda layer, args, name=name: setattr(watched, "inside", name))
            )
            handles.append(module.register_forward_hook(lambda *ignored: setattr(watched, "inside", None)))
    try:
        for module in fused:
            module.fused_attn = True  # the same numbers, by the function that is watched
        with watched:
            yield
    finally:
        for module in fused:
            module.fused_attn = False
        for handle in handles:
            handle.remove()


def patch_grid(model: nn.Module, size: Pair) -> Pair | None:
    """Number of patches (H, W) of an image of `size`, or None for a model without patches."""
    embed: Any = getattr(model, "patch_embed", None)
    patch = getattr(embed, "patch_size", None)
    if patch is None:
        fixed = getattr(embed, "grid_size", None)
        return None if fixed is None else (int(fixed[0]), int(fixed[1]))
    rows, columns = (patch, patch) if isinstance(patch, int) else patch
    return size[0] // rows, size[1] // columns


def _keep(keep: Callable[[RecordedLayer], None], layer: RecordedLayer | None) -> None:
    if layer is not None:
        keep(layer)


def _content_layer(name: str, grid: Pair, query: Tensor, key: Tensor, bias: Tensor | None) -> RecordedLayer | None:
    """Queries and keys of all tokens (B, K, N, d) as a layer, if the tokens are the patches and at most a prefix."""
    tokens = query.shape[2]
    prefix = tokens - grid[0] * grid[1]
    if key.shape[2] != tokens or not 0 <= prefix <= MAX_PREFIX_TOKENS:
        return None
    if bias is not None:
        bias = bias.expand(*bias.shape[:-2], tokens, tokens)[..., prefix:, :]
    return RecordedLayer(name, "attention", _whole(grid), query[:, :, prefix:], key, bias=bias)


def _convit_mhsa(name: str, layer: Any, x: Tensor, grid: Pair) -> RecordedLayer | None:
    query, key, _ = layer.qkv(x).unflatten(2, (3, layer.num_heads, -1)).permute(2, 0, 3, 1, 4)
    return _content_layer(name, grid, query, key, None)


def _convit_gpsa(name: str, layer: Any, x: Tensor, grid: Pair) -> RecordedLayer | None:
    """A GPSA layer of ConViT (Eq. 7); its positional logit v·(x, y, x² + y²) is separable, as that of `GPSA2d` is."""
    query, key = layer.qk(x).unflatten(2, (2, layer.num_heads, -1)).permute(2, 0, 3, 1, 4)
    if x.shape[1] != grid[0] * grid[1]:
        return None
    right, down, square = at_least_float32(layer.pos_proj.weight).unbind(1)  # (K,) each
    factors = tuple(axis_attention(slope, square, size) for slope, size in zip((down, right), grid, strict=True))
    gate = torch.sigmoid(at_least_float32(layer.gating_param))
    strength = -square  # −α‖δ − Δ‖² = −αδ² + 2αΔ·δ and a constant
    centres = torch.stack([down, right], dim=1) / (2 * strength[:, None])
    centres[strength <= 0] = float("nan")
    return RecordedLayer(
        name,
        "convit",
        _whole(grid),
        query,
        key,
        factors=(factors[0], factors[1]),
        gate=gate,
        strength=strength,
        spans=1 / strength,
        centres=centres,
    )


def _whole(grid: Pair) -> Grid:
    return Grid(size=grid, padding=(0, 0, 0, 0), first=(0, 0), stride=(1, 1), queries=grid)
