"""Mimetic initialisation of a ViT's attention: queries look for tokens like themselves, values are taken away.

Trockman and Kolter 2023, *Mimetic Initialization of Self-Attention Layers*, §3: in trained transformers W_qry W_keyᵀ is
near a positive multiple of the identity, and W_val W_out near a negative one. Shapes: D width, d head width, K heads.
"""

import torch
from timm.models.vision_transformer import Attention

from tcnn.errors import RequestError
from tcnn.layers.initialise import mimetic
from tcnn.vit.model import set_query_key

VALUE, IDENTITY = 0.4, 0.4
"""W_val W_out = VALUE·Z − IDENTITY·I, with Z of independent normal entries of variance 1/D."""


@torch.no_grad()
def draw(attention: Attention, generator: torch.Generator) -> None:
    """Draw W_qry, W_key, W_val and W_out of a layer, in place; raises `RequestError` where the heads are not D wide."""
    width = attention.qkv.weight.shape[1]
    if attention.attn_dim != width or attention.proj.weight.shape[0] != width:
        raise RequestError(f"attention of {attention.attn_dim} in {width} channels: mimetic needs as many as there are")
    for head in range(attention.num_heads):
        set_query_key(attention, head, *mimetic(width, attention.head_dim, generator))
    noise = torch.randn(width, width, generator=generator) * width**-0.5
    left, values, right = torch.linalg.svd(VALUE * noise - IDENTITY * torch.eye(width))
    root = values.sqrt()
    # Rows of W_val are channels of the heads: W_out·W_val is the product that a token sees.
    attention.qkv.weight.unflatten(0, (3, width))[2].copy_(root[:, None] * right)
    attention.proj.weight.copy_(left * root)
    for bias in (attention.qkv.bias, attention.proj.bias):
        if bias is not None:
            bias.zero_()
