"""timm's `reparameterize_model` on a converted model: blocks that hold attention stay as they are, all others merge.

`timm.models.reparameterize_model` asks every block for `fuse()`, `reparameterize()` or `switch_to_deploy()`, which
add up the filters of parallel convolutions (RepVGG, MobileOne, FastViT, RepViT, GhostNet, …). Attention has no filter
to add.
"""

from functools import partial

from torch import nn

from tcnn.layers.base import AttentionLayer

METHODS = ("fuse", "reparameterize", "switch_to_deploy")


def keep_attending_blocks(model: nn.Module) -> None:
    """Exempt every block with an attention layer inside from timm's `reparameterize_model`, in place.

    A model's own method, which goes through its blocks, is left alone.
    """
    for name, block in model.named_modules():
        if name and _attends(block):
            for method in METHODS:
                if hasattr(type(block), method):
                    setattr(block, method, partial(_merged, block, method))


def _merged(block: nn.Module, method: str) -> nn.Module | None:
    """The block itself, or what its own method gives if a fold has made its attention convolutions again."""
    return block if _attends(block) else getattr(type(block), method)(block)


def _attends(block: nn.Module) -> bool:
    return any(isinstance(module, AttentionLayer) for module in block.modules())
