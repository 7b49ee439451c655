"""What initialisation needs of a timm vision transformer: its grid, its tokens, its attention layers.

Shapes: B images, P prefix tokens (class, distillation, registers), H·W = N patches, D width.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from timm.models.vision_transformer import Attention, VisionTransformer
from torch import Tensor, nn

from tcnn.errors import RequestError
from tcnn.layers.terms.positions import Pair


class Tokens(NamedTuple):
    """Where a transformer's tokens lie: the grid of patches, behind so many prefix tokens."""

    grid: Pair
    prefix: int


def checked(model: nn.Module) -> tuple[VisionTransformer, Tokens]:
    """The model as a timm ViT with positional embedding and ordinary attention, or `RequestError` in one line."""
    kind = type(model).__name__
    if not isinstance(model, VisionTransformer):
        if any(part in type(module).__name__.lower() for module in model.modules() for part in ("relpos", "rotary")):
            raise RequestError(
                f"{kind}: its positions are relative or rotary, inside of its attention; expected a transformer with a "
                "positional embedding that is added to tokens, such as vit_tiny_patch16_224"
            )
        raise RequestError(
            f"{kind}: expected a timm vision transformer (vit_*, deit_*), whose blocks have queries, keys and values"
        )
    if not isinstance(model.pos_embed, Tensor):
        raise RequestError(f"{kind}: has no positional embedding, from which queries and keys could tell an offset")
    for name, block in model.blocks.named_children():
        attention = getattr(block, "attn", None)
        if not isinstance(attention, Attention) or not isinstance(attention.q_norm, nn.Identity):
            found = "normalises queries and keys" if isinstance(attention, Attention) else "has no attention of timm's"
            raise RequestError(f"{kind}: blocks.{name} {found}: its attention cannot be initialised as an offset")
    grid = model.patch_embed.grid_size
    if min(grid) < 2:
        raise RequestError(
            f"{kind}: {grid[0]}×{grid[1]} patches have no neighbours; take larger images or smaller patches"
        )
    return model, Tokens((grid[0], grid[1]), model.num_prefix_tokens)


def patch_positions(model: VisionTransformer, tokens: Tokens) -> Tensor:
    """The part (1, N, D) of the positional embedding that belongs to patches; a view of it."""
    count = tokens.grid[0] * tokens.grid[1]
    return model.pos_embed[:, model.pos_embed.shape[1] - count :]


def attention_inputs(model: VisionTransformer, images: Tensor) -> Iterator[tuple[Attention, Tensor]]:
    """Every attention layer with its input (B, P + N, D) in float64, in order.

    A layer may be changed before the next is asked for: later inputs then are those behind the changed one.
    """
    x = model.norm_pre(model.patch_drop(model._pos_embed(model.patch_embed(images))))
    for block in model.blocks:
        seen: list[Tensor] = []
        handle = block.attn.register_forward_pre_hook(lambda _, given, seen=seen: seen.append(given[0]))
        try:
            block(x)
        finally:
            handle.remove()
        yield block.attn, seen[0].double()
        x = block(x)


def query_key_logits(attention: Attention, z: Tensor, head: int) -> Tensor:
    """The logits (B, P + N, P + N) of one head for inputs z, (B, P + N, D), in their dtype."""
    query, key, _ = attention.qkv.weight.to(z.dtype).unflatten(0, (3, attention.num_heads, -1))[:, head]
    return attention.scale * (z @ query.T) @ (z @ key.T).transpose(1, 2)


@torch.no_grad()
def set_query_key(attention: Attention, head: int, query: Tensor, key: Tensor) -> None:
    """Set W_qry and W_key, (d, D) each, of one head; their biases become 0."""
    for part, weight in enumerate((query, key)):
        attention.qkv.weight.unflatten(0, (3, attention.num_heads, -1))[part, head].copy_(weight)
        if attention.qkv.bias is not None:
            attention.qkv.bias.unflatten(0, (3, attention.num_heads, -1))[part, head].zero_()
