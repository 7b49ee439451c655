"""Record the attention of timm's models (ViT, DeiT, ConViT), so that a T-CNN can be compared with them.

timm computes most attention by torch's `scaled_dot_product_attention`, which never returns its map. That function is
intercepted during a forward pass: its queries and keys suffice, whatever norms, rotations or biases a model has applied
to them. ConViT's layers do not use it; their projections are read instead.

Shapes: B images, K heads, d head width, N tokens = P prefix tokens + H·W patches.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from timm.models.convit import GPSA, MHSA
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from tcnn.analysis.recorded import Grid, RecordedLayer, Recording
from tcnn.formatting import some
from tcnn.layers.convit import axis_attention
from tcnn.layers.gpsa import GPSA2d
from tcnn.layers.terms.execution import at_least_float32
from tcnn.layers.terms.positions import Pair

MAX_PREFIX_TOKENS = 32
"""Largest number of prefix tokens; with more, the tokens are not the expected map."""


class Logits(NamedTuple):
    """What the logits of one scaled dot-product attention are made of."""

    query: Tensor
    key: Tensor
    bias: Tensor | None


class AttentionRecorder(TorchFunctionMode):
    """Collects the scaled dot-product attentions of every layer that is entered and left; None for one of a kind that
    has no map of all tokens."""

    def __init__(self) -> None:
        super().__init__()
        self._entered: list[list[Logits | None]] = []

    def enter(self) -> None:
        """Collect for a layer, inside of another or of none."""
        self._entered.append([])

    def leave(self) -> list[Logits | None]:
        """What the layer that was entered last has computed."""
        return self._entered.pop()

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = dict(kwargs or {})
        if func is F.scaled_dot_product_attention and self._entered:
            names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
            self._entered[-1].append(_logits(**{**dict(zip(names, args, strict=False)), **options}))
        return func(*args, **options)


def _logits(
    query: Tensor, key: Tensor, attn_mask: Tensor | None = None, scale: float | None = None, **rest: Any
) -> Logits | None:
    if rest.get("is_causal") or query.dim() != 4:
        return None
    if scale is not None:
        query = query * (scale * query.shape[-1] ** 0.5)
    if key.shape[1] != query.shape[1]:  # grouped-query attention: several heads share a key
        key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    return Logits(query, key, _additive(attn_mask))


def _additive(mask: Tensor | None) -> Tensor | None:
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, device=mask.device).masked_fill(~mask, float("-inf"))


class Tokens(NamedTuple):
    """The tokens that a model makes of an image."""

    grid: Pair
    """Number of patches (H, W)."""
    prefix: int | None
    """Number of prefix tokens; None where the model does not say."""


@contextmanager
def record_timm(model: nn.Module, tokens: Tokens | None, recording: Recording) -> Iterator[None]:
    """Context that records every global attention layer of timm while the model runs.

    Nothing is recorded where the model has no `tokens`. Layers that attend within windows, or to another map, are
    skipped.
    """
    if tokens is None:
        yield
        return
    watched = AttentionRecorder()
    modules = {name: module for name, module in model.named_modules() if not isinstance(module, GPSA2d)}
    fused = [module for module in modules.values() if getattr(module, "fused_attn", None) is False]
    handles = []
    for name, module in modules.items():
        if isinstance(module, GPSA | MHSA):
            read = _convit_gpsa if isinstance(module, GPSA) else _convit_mhsa
            handles.append(
                module.register_forward_hook(
                    lambda layer, args, out, name=name, read=read: read(recording, name, layer, args[0], tokens)
                )
            )
        elif hasattr(module, "fused_attn"):
            handles.append(module.register_forward_pre_hook(lambda *ignored: watched.enter()))
            handles.append(
                module.register_forward_hook(
                    lambda *ignored, name=name: _keep_computed(recording, name, tokens, watched.leave())
                )
            )
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


def tokens_of(model: nn.Module, size: Pair) -> Tokens | None:
    """The tokens of an image of `size`, or None for a model without patches."""
    grid, prefix = _patch_grid(getattr(model, "patch_embed", None), size), getattr(model, "num_prefix_tokens", None)
    return None if grid is None else Tokens(grid, prefix if isinstance(prefix, int) else None)


def _patch_grid(embed: Any, size: Pair) -> Pair | None:
    if hasattr(embed, "dynamic_feat_size"):  # it knows whether the image is padded to whole patches
        rows, columns = embed.dynamic_feat_size(size)
        return int(rows), int(columns)
    patch = getattr(embed, "patch_size", None)
    if patch is None:
        fixed = getattr(embed, "grid_size", None)
        return None if fixed is None else (int(fixed[0]), int(fixed[1]))
    rows, columns = (patch, patch) if isinstance(patch, int) else patch
    return size[0] // rows, size[1] // columns


def _keep_computed(recording: Recording, name: str, tokens: Tokens, computed: Sequence[Logits | None]) -> None:
    """Keep the attention of a layer, unless it applies a mixture of several."""
    known = [one for one in computed if one is not None]
    if len(computed) > 1 and any(_beyond_patches(tokens, one.query, one.key) is not None for one in known):
        several = f"attention is computed {len(computed)} times in each pass there, as in differential attention"
        recording.leave_out(name, f"{several}, and none of these maps is applied alone")
    elif known:
        _keep_content(recording, name, tokens, *known[0])


def _beyond_patches(tokens: Tokens, query: Tensor, key: Tensor) -> int | None:
    """How many tokens there are besides the patches; None where it is so many that they are of another map."""
    count = query.shape[2]
    beyond = count - tokens.grid[0] * tokens.grid[1]
    most = max(MAX_PREFIX_TOKENS, tokens.prefix or 0)
    return beyond if key.shape[2] == count and 0 <= beyond <= most else None


def _keep_content(
    recording: Recording, name: str, tokens: Tokens, query: Tensor, key: Tensor, bias: Tensor | None = None
) -> None:
    """Keep queries and keys of all tokens (B, K, N, d) as a layer, if the tokens are the patches and at most a prefix.

    A layer of windows or of another map is skipped without a note.
    """
    prefix, count = _beyond_patches(tokens, query, key), query.shape[2]
    if prefix is None:
        return
    if tokens.prefix is not None and prefix not in (0, tokens.prefix):
        expected = f"{tokens.grid[0]}×{tokens.grid[1]} patches and {some(tokens.prefix, 'prefix token')}"
        recording.leave_out(name, f"the map is unknown: expected {expected}, found {count} tokens")
        return
    if bias is not None:
        bias = bias.expand(*bias.shape[:-2], count, count)[..., prefix:, :]
    recording.keep(RecordedLayer(name, "attention", _whole(tokens.grid), query[:, :, prefix:], key, bias=bias))


def _convit_mhsa(recording: Recording, name: str, layer: Any, x: Tensor, tokens: Tokens) -> None:
    query, key, _ = layer.qkv(x).unflatten(2, (3, layer.num_heads, -1)).permute(2, 0, 3, 1, 4)
    _keep_content(recording, name, tokens, query, key)


def _convit_gpsa(recording: Recording, name: str, layer: Any, x: Tensor, tokens: Tokens) -> None:
    """A GPSA layer of ConViT (Eq. 7); its positional logit v·(x, y, x² + y²) is separable, as that of `GPSA2d` is."""
    grid = tokens.grid
    query, key = layer.qk(x).unflatten(2, (2, layer.num_heads, -1)).permute(2, 0, 3, 1, 4)
    if x.shape[1] != grid[0] * grid[1]:
        return
    right, down, square = at_least_float32(layer.pos_proj.weight).unbind(1)  # (K,) each
    factors = tuple(axis_attention(slope, square, size) for slope, size in zip((down, right), grid, strict=True))
    gate = torch.sigmoid(at_least_float32(layer.gating_param))
    strength = -square  # −α‖δ − Δ‖² = −αδ² + 2αΔ·δ and a constant
    centres = torch.stack([down, right], dim=1) / (2 * strength[:, None])
    centres[strength <= 0] = float("nan")
    made = RecordedLayer(
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
    recording.keep(made)


def _whole(grid: Pair) -> Grid:
    return Grid(size=grid, padding=(0, 0, 0, 0), first=(0, 0), stride=(1, 1), queries=grid)
