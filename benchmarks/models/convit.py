"""timm's ConViTs with their own attention and with `tcnn.layers.convit`, side by side: a layer, and the network.

    python -m benchmarks.models.convit [--device cpu|cuda] [--models convit_tiny …] [--batch 4] [--rounds 7]

Round by round in turn, on the same weights; ratios are medians over the rounds, and the lowest and highest of them
stand beside it. Two equal networks are timed as well: what they differ by is what a ratio may be wrong by. The floor
is the network with its attention left out, maps and all, and the products are those of content attention without its
softmax, positions and gates: what no layer with the same maps can do without. Results go to
`benchmarks/results/convit_DEVICE.json`.
"""

import argparse
import copy
import json
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor, nn

from benchmarks.reporting import hardware, versions
from benchmarks.timing import in_turn, ratio
from tcnn.layers.convit import use_fast_attention

RESULTS = Path(__file__).parents[1] / "results"


class Nothing(nn.Module):
    """Attention without attention: the projections alone."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.qk, self.v, self.proj = layer.qk, layer.v, layer.proj

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(self.v(x)) + 0 * self.qk(x).mean()


class Products(Nothing):
    """The two products of content attention, (Q Kᵀ) V, and in a backward pass the four of their gradients."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__(layer)
        self.heads = layer.num_heads

    def forward(self, x: Tensor) -> Tensor:
        query, key = self.qk(x).unflatten(2, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        value = self.v(x).unflatten(2, (self.heads, -1)).transpose(1, 2)
        return self.proj((query @ key.transpose(-2, -1) @ value).transpose(1, 2).flatten(2))


def networks(name: str) -> dict[str, nn.Module]:
    torch.manual_seed(0)
    own: Any = timm.create_model(name).eval()
    again, fast, bare, products = (copy.deepcopy(own) for _ in range(4))
    use_fast_attention(fast)
    for model, kind in ((bare, Nothing), (products, Products)):
        for block in model.blocks:
            if hasattr(block.attn, "gating_param"):
                block.attn = kind(block.attn)
    return {"timm": own, "timm again": again, "fast": fast, "products": products, "floor": bare}


def step(model: nn.Module, images: Tensor) -> None:
    model(images).square().mean().backward()
    model.zero_grad(set_to_none=True)


@torch.inference_mode()
def look(model: nn.Module, images: Tensor) -> None:
    model(images)


def measure(name: str, device: str, batch: int, rounds: int) -> dict[str, Any]:
    images = torch.randn(batch, 3, 224, 224, generator=torch.Generator().manual_seed(0)).to(device)
    models = {key: model.to(device) for key, model in networks(name).items()}
    with torch.inference_mode():
        error = (models["fast"](images) - models["timm"](images)).abs().max().item()
    layers = {key: model.blocks[0].attn for key, model in models.items()}
    tokens = torch.randn(batch, 196, layers["timm"].dim, generator=torch.Generator().manual_seed(0)).to(device)
    return {
        "largest difference of logits": error,
        "layer, forward": compare({key: partial(look, layer, tokens) for key, layer in layers.items()}, device, rounds),
        "layer, forward and backward": compare(
            {key: partial(step, layer, tokens) for key, layer in layers.items()}, device, rounds
        ),
        "network, forward": compare(
            {key: partial(look, model, images) for key, model in models.items()}, device, rounds
        ),
        "network, forward and backward": compare(
            {key: partial(step, model, images) for key, model in models.items()}, device, rounds
        ),
    }


def compare(works: dict[str, Callable[[], object]], device: str, rounds: int) -> dict[str, Any]:
    seconds = in_turn(works, device, rounds)
    rates = [one / other for one, other in zip(seconds["timm"], seconds["fast"], strict=True)]
    return {
        "seconds": {key: statistics.median(values) for key, values in seconds.items()},
        "times as fast": ratio(seconds["timm"], seconds["fast"]),
        "lowest, highest": [min(rates), max(rates)],
        "timm over itself": ratio(seconds["timm"], seconds["timm again"]),
        "with its products alone": ratio(seconds["timm"], seconds["products"]),
        "could be": ratio(seconds["timm"], seconds["floor"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--models", nargs="+", default=["convit_tiny", "convit_small"])
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    rows = {name: measure(name, given.device, given.batch, given.rounds) for name in given.models}
    file = RESULTS / f"convit_{given.device}.json"
    about = {
        "hardware": hardware(given.device), "threads": given.threads, "batch": given.batch, "rounds": given.rounds,
        "size": 224, "versions": versions("torch", "timm"), "networks": rows,
    }  # fmt: skip
    file.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
