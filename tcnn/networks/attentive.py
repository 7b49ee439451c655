"""The fully attentional network of Cordonnier, Loukas and Jaggi 2020 (§4.1, Table 2), by names of timm's registry.

An image is down-sampled 2×2 without loss (Jacobsen et al. 2018), six blocks of self-attention over all its pixels and
of two dense layers follow, as in BERT, and a mean over pixels is classified. There is no convolution.
"""

import copy
import sys
from collections.abc import Sequence
from typing import Any

import torch
from timm.layers import DropPath
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from torch import Tensor, nn
from torch.nn import functional as F

from tcnn.config import PositionKind
from tcnn.errors import RequestError
from tcnn.layers.self_attention import SelfAttention2d
from tcnn.layers.terms import kinds

__all__ = ["AttentiveNet"]
EPSILON = 1e-12
"""Of layer normalisation (Table 2)."""


class Block(nn.Module):
    """Self-attention and two dense layers, each added to what it reads and normalised after that. (B, H, W, C)."""

    def __init__(
        self,
        channels: int,
        hidden: int,
        heads: int,
        position: PositionKind,
        content: bool,
        drop: float,
        drop_path: float,
    ) -> None:
        super().__init__()
        self.attn = SelfAttention2d(channels, heads, position, content)
        self.attn_out = nn.Linear(channels, channels)
        self.norm1 = nn.LayerNorm(channels, EPSILON)
        self.fc1 = nn.Linear(channels, hidden)
        self.fc2 = nn.Linear(hidden, channels)
        self.norm2 = nn.LayerNorm(channels, EPSILON)
        self.drop = nn.Dropout(drop)
        self.drop_path = DropPath(drop_path) if drop_path else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x + self.drop_path(self.drop(self.attn_out(self.attn(x)))))
        y: Tensor = self.norm2(x + self.drop_path(self.drop(self.fc2(F.gelu(self.fc1(x))))))
        return y


class AttentiveNet(nn.Module):
    """Cordonnier's network.

    Args:
        num_classes, in_chans, drop_rate, drop_path_rate: as in timm.
        depth, heads, embed_dim, mlp_dim: of Table 2 by default; heads may be one number for every block, as they are
            after pruning.
        position, content: of every `SelfAttention2d`.
        patch_size: side of the squares whose pixels become channels.

    Input (B, in_chans, height, width), sides that are multiples of `patch_size`; output (B, num_classes).
    """

    def __init__(
        self,
        num_classes: int = 10,
        in_chans: int = 3,
        depth: int = 6,
        heads: int | Sequence[int] = 9,
        embed_dim: int = 400,
        mlp_dim: int = 512,
        position: PositionKind = "isotropic",
        content: bool = False,
        patch_size: int = 2,
        drop_rate: float = 0.1,
        drop_path_rate: float = 0.0,
    ) -> None:
        super().__init__()
        own = (heads,) * depth if isinstance(heads, int) else tuple(heads)
        if len(own) != depth or min(own, default=1) < 1:
            raise RequestError(f"heads: expected a number of at least 1, or {depth} of them, one a block, got {heads}")
        self.num_classes, self.num_features, self.in_chans = num_classes, embed_dim, in_chans
        self.head_hidden_size, self.patch_size = embed_dim, patch_size
        self.stem = nn.Linear(in_chans * patch_size**2, embed_dim)
        rates = torch.linspace(0, drop_path_rate, depth, device="cpu").tolist()
        self.blocks = nn.Sequential(
            *(
                Block(embed_dim, mlp_dim, count, position, content, drop_rate, rate)
                for count, rate in zip(own, rates, strict=True)
            )
        )
        self.head = nn.Linear(embed_dim, num_classes) if num_classes else nn.Identity()

    def forward_features(self, x: Tensor) -> Tensor:
        """(B, height/patch, width/patch, C)."""
        found: Tensor = self.blocks(self.stem(F.pixel_unshuffle(x, self.patch_size).permute(0, 2, 3, 1)))
        return found

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """The mean over pixels, classified; the mean itself with `pre_logits`."""
        x = x.mean((1, 2))
        return x if pre_logits else self.head(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))

    def attention_layers(self) -> dict[str, SelfAttention2d]:
        """The attention of every block by dotted name, in their order."""
        return {name: module for name, module in self.named_modules() if isinstance(module, SelfAttention2d)}

    def with_heads(self, kept: Sequence[Sequence[int]]) -> "AttentiveNet":
        """A copy of which every block has some of its heads only, and which timm builds again as it is."""
        made = copy.deepcopy(self)
        for block, heads in zip(made.blocks.children(), kept, strict=True):
            attention: SelfAttention2d = block.get_submodule("attn")  # type: ignore[assignment]
            block.add_module("attn", attention.take(heads))
        made._model_args = {**getattr(self, "_model_args", {}), "heads": [len(heads) for heads in kept]}  # type: ignore[assignment]
        return made

    def get_classifier(self) -> nn.Module:
        """The classifier, as timm's models have it."""
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Give it a fresh classifier of another width; 0 for none."""
        self.num_classes = num_classes
        self.head = nn.Linear(self.num_features, num_classes) if num_classes else nn.Identity()

    def no_weight_decay(self) -> set[str]:
        """Where heads look does not decay: a decayed centre is another place."""
        return {name for name, _ in self.named_parameters() if name.rpartition(".")[2] in kinds.PARAMETERS}


VARIANTS: dict[str, dict[str, Any]] = {
    "quadratic": {"position": "isotropic"},
    "gaussian": {"position": "quadratic"},
    "learned": {"position": "relative"},
    "learned_content": {"position": "relative", "content": True},
}
"""SA quadratic emb. of Table 1, its generalised form of Table 4, SA learned emb., and SA learned emb. + content."""
TINY: dict[str, Any] = {"embed_dim": 64, "mlp_dim": 96}
"""A width that trains on a processor."""
NETWORKS = {f"cordonnier_{name}": own for name, own in VARIANTS.items()} | {
    f"cordonnier_{name}_tiny": {**TINY, **own} for name, own in VARIANTS.items()
}
default_cfgs = generate_default_cfgs(
    {
        name: {
            "num_classes": 10, "input_size": (3, 32, 32), "fixed_input_size": False, "pool_size": None, "crop_pct": 1.0,
            "interpolation": "bicubic", "mean": (0.4914, 0.4822, 0.4465), "std": (0.247, 0.2435, 0.2616),
            "first_conv": None, "classifier": "head",
        }
        for name in NETWORKS
    }
)  # fmt: skip


def _register(name: str, own: dict[str, Any]) -> None:
    """Register a function such as timm's `resnet18` under this name."""

    def create(pretrained: bool = False, **kwargs: Any) -> AttentiveNet:
        model: AttentiveNet = build_model_with_cfg(AttentiveNet, name, pretrained, **{**own, **kwargs})
        return model

    create.__name__ = create.__qualname__ = name
    create.__module__ = __name__
    create.__doc__ = f"Cordonnier's network with {own}; takes the arguments of `AttentiveNet`."
    setattr(sys.modules[__name__], name, create)
    register_model(create)


for _name, _own in NETWORKS.items():
    _register(_name, _own)
